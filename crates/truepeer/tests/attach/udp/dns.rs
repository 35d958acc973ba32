//! dnsdist in front of Unbound, and a truepeer that sends a header in a flow's first datagram only.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::datagrams::{ask, socket};
use truepeer_testbed::servers::dns::{self, Dnsdist, Unbound};
use truepeer_testbed::{Bed, Host, Running, Test, Topology, Truepeer};

use super::command;

pub(crate) fn tests() -> Vec<Test> {
    let dnsdist =
        Test::new("unbound_sees_the_clients_of_dnsdist", |bed| unbound_sees_its_clients(bed, "every"));
    let flows = ["first", "standalone"].map(|dialect| {
        let name = format!("unbound_sees_the_clients_of_a_sender_in_{dialect}");
        Test::new(name, move |bed| unbound_sees_its_clients(bed, dialect))
    });
    let all = [dnsdist.needs_program("dnsdist")].into_iter().chain(flows);
    all.map(|test| test.needs_program("unbound").time_limit(Duration::from_secs(120))).collect()
}

const QUERIES: u16 = 500;

/// The sender's host adds headers: dnsdist to each datagram. Unbound is unmodified, on the loopback.
fn unbound_sees_its_clients(bed: &Bed, dialect: &str) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    for n in 0..5 {
        client.ip(&[
            &format!("addr add 10.77.0.{}/24 dev lb", 100 + n),
            &format!("addr add fd77:0::{}/64 dev lb nodad", 100 + n),
        ])?;
    }
    let backends = ["127.0.0.1:53".parse()?, "[::1]:53".parse()?];
    let unbound = Unbound::start(bed, &backends, |program| program.in_netns(&host.netns))?;
    let allow = ["--allow", "10.77.0.0/16", "--allow", "fd77::/16"];
    let options = ["--port", "53/udp", "--udp-dialect", dialect];
    command(bed, &[&options[..], &allow].concat())?.in_netns(&host.netns).run(bed)?;
    let _sender = if dialect == "every" {
        let dnsdist = Dnsdist::default().relay(lb.at(false, 53), host.at(false, 53), true);
        let dnsdist = dnsdist.relay(lb.at(true, 54), host.at(true, 53), true);
        dnsdist.start(bed, |program| program.in_netns(&lb.netns))?
    } else {
        sender_of_flows(
            bed,
            lb,
            [lb.at(false, 53), lb.at(true, 54)],
            [host.at(false, 53), host.at(true, 53)],
            dialect,
        )?
    };
    let asked = client.run(|| ask_in_turn(&[lb.at(false, 53), lb.at(true, 54)]))??;
    for (name, asker) in &asked {
        let seen = Unbound::client_of(&unbound.log(), name)
            .with_context(|| format!("Unbound did not see {name}"))?;
        ensure!(seen == asker.to_string(), "Unbound saw {name} from {seen}, but {asker} had asked");
    }
    ensure!(asked.len() == usize::from(QUERIES));
    Ok(())
}

/// It has a port of its own towards the server for each client.
pub(super) fn sender_of_flows(
    bed: &Bed,
    lb: &Host,
    listen: [SocketAddr; 2],
    to: [SocketAddr; 2],
    dialect: &str,
) -> Result<Running> {
    let sender = Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer"))
        .args(&[
            "-p",
            "udp",
            "--header",
            "forbid",
            "--allow",
            "any",
            "--send-proxy",
            "v2",
            "--udp-dialect",
            dialect,
        ])
        .option("-l", listen[0])
        .option("-l", listen[1])
        .ipv4(to[0])
        .ipv6(to[1])
        .with(|program| program.in_netns(&lb.netns))
        .start_unready(bed)?;
    listen.iter().try_for_each(|at| sender.wait_for_log(&format!("listening on {at}")))?;
    Ok(sender)
}

fn ask_in_turn(servers: &[SocketAddr; 2]) -> Result<HashMap<String, IpAddr>> {
    let mut asked = HashMap::new();
    for id in 0..QUERIES {
        let v6 = id % 2 == 1;
        let n = 100 + id / 2 % 5;
        let socket = socket(if v6 { format!("[fd77::{n}]:0") } else { format!("10.77.0.{n}:0") })?;
        socket.connect(servers[usize::from(v6)])?;
        let name = format!("q{id}.test");
        let answer = ask(&socket, &[&dns::query(id, &name)])?;
        ensure!(dns::is_answer(&answer, id), "{answer:?}");
        asked.insert(name, socket.local_addr()?.ip());
    }
    Ok(asked)
}
