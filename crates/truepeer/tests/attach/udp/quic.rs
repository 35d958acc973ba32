//! QUIC behind a sender whose flows have one header each.

use anyhow::{Result, ensure};
use truepeer_testbed::servers::quic;
use truepeer_testbed::{Bed, Test, Topology, wait_for};

use super::dns::sender_of_flows;
use super::{command, counter_in};

pub(crate) fn tests() -> Vec<Test> {
    let name = "a_quic_connection_goes_on_as_another_flow_when_its_client_moves";
    let test = Test::new(name, a_quic_connection_goes_on_as_another_flow_when_its_client_moves);
    vec![test.needs_program("gtlsclient").needs_program("gtlsserver").needs_program("openssl")]
}

/// The sender has a flow for each of the client's ports, and the server's answers go to the newest.
fn a_quic_connection_goes_on_as_another_flow_when_its_client_moves(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    let server = quic::server(bed, host, "0.0.0.0")?;
    let attach = |args: &[&str]| command(bed, args)?.in_netns(&host.netns).run(bed);
    attach(&["--port", "4433/udp", "--udp-dialect", "first", "--allow", "private"])?;
    let at = [false, true];
    let (listen, to) = (at.map(|v6| lb.at(v6, 4433)), at.map(|v6| host.at(v6, 4433)));
    let _sender = sender_of_flows(bed, lb, listen, to, "first")?;
    quic::downloads_arrive(bed, client, lb)?;
    let status = serde_json::from_str(&attach(&["status", "--json"])?)?;
    // Two connections; the second has moved to another port of the client.
    ensure!(counter_in(&status, "header_v2")? == 3, "{status}");
    ensure!(counter_in(&status, "refused_no_flow")? == 0, "{status}");
    let seen = client.v4.to_string();
    wait_for("the client in the server's output", || server.log().contains(&seen))
}
