//! QUIC behind a sender whose flows have one header each.

use anyhow::{Context, Result, ensure};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Program, Test, Topology, wait_for};

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
    let (key, certificate) = (bed.dir().join("key.pem"), bed.dir().join("cert.pem"));
    Program::new("openssl")
        .args(["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=lb", "-days", "2", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .run(bed)?;
    let content = Pattern::bytes(3_000_000);
    bed.write("htdocs/file", &content)?;
    let server = Program::new("gtlsserver")
        .args(["--no-quic-dump", "--no-http-dump", "-d"])
        .arg(bed.dir().join("htdocs"))
        .args(["0.0.0.0", "4433"])
        .args([&key, &certificate])
        .in_netns(&host.netns)
        .start(bed)?;
    server.wait_bound_udp("0.0.0.0:4433")?;
    let attach = |args: &[&str]| command(bed, args)?.in_netns(&host.netns).run(bed);
    attach(&["--port", "4433/udp", "--udp-dialect", "first", "--allow", "private"])?;
    let at = [false, true];
    let (listen, to) = (at.map(|v6| lb.at(v6, 4433)), at.map(|v6| host.at(v6, 4433)));
    let _sender = sender_of_flows(bed, lb, listen, to, "first")?;
    for (number, options) in [&[][..], &["--change-local-addr=20ms"]].into_iter().enumerate() {
        let downloads = bed.dir().join(format!("downloads{number}"));
        std::fs::create_dir_all(&downloads)?;
        Program::new("gtlsclient")
            .args([
                "-q",
                "--exit-on-all-streams-close",
                "--max-data=300K",
                "--max-stream-data-bidi-local=100K",
            ])
            .arg(format!("--download={}", downloads.display()))
            .args(options)
            .args([lb.v4.to_string(), "4433".to_owned(), "https://lb/file".to_owned()])
            .in_netns(&client.netns)
            .run(bed)?;
        let got = std::fs::read(downloads.join("file")).context("nothing was downloaded")?;
        ensure!(got == content, "{} bytes with {options:?}", got.len());
    }
    let status = serde_json::from_str(&attach(&["status", "--json"])?)?;
    // Two connections; the second has moved to another port of the client.
    ensure!(counter_in(&status, "header_v2")? == 3, "{status}");
    ensure!(counter_in(&status, "refused_no_flow")? == 0, "{status}");
    let seen = format!("{}", client.v4);
    wait_for("the client in the server's output", || server.log().contains(&seen))
}
