//! The rows over UDP: dnsdist as the load balancer, and Unbound, whose query log names the client (without
//! its port).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Context;
use truepeer_testbed::servers::dns::{self, Dnsdist, Unbound};
use truepeer_testbed::{Bed, Host, Program, Running};

use crate::Row;

/// Unbound's port for queries without truepeer. It differs because the rules for a backend's IPv6 replies
/// match its port.
const PLAIN_PORT: u16 = 54;
const TRUEPEER_PORT: u16 = 5300;
/// dnsdist's ports, each with its own server: directly to Unbound, and through truepeer. The next port is for
/// IPv6.
const PLAIN: u16 = 1053;
const TRUE: u16 = 2053;

/// The started programs.
pub(crate) struct Dns {
    // in the order in which they are stopped
    _dnsdist: Running,
    _truepeer: Running,
    unbound: Running,
}

impl Dns {
    pub(crate) fn start(bed: &Bed, exe: &str, lb: &Host, host: &Host) -> anyhow::Result<Dns> {
        let loopback = ["127.0.0.1:53".parse()?, "[::1]:53".parse()?];
        let addresses = [&loopback[..], &[false, true].map(|v6| host.at(v6, PLAIN_PORT))].concat();
        let unbound = Unbound::start(bed, &addresses, |program| program.in_netns(&host.netns))?;
        let truepeer = start_truepeer(bed, exe, host)?;
        let mut dnsdist = Dnsdist::default();
        for v6 in [false, true] {
            let next = u16::from(v6);
            dnsdist = dnsdist.relay(lb.at(v6, PLAIN + next), host.at(v6, PLAIN_PORT), false);
            dnsdist = dnsdist.relay(lb.at(v6, TRUE + next), host.at(v6, TRUEPEER_PORT), true);
        }
        let dnsdist = dnsdist.start(bed, |program| program.in_netns(&lb.netns))?;
        Ok(Dns { _dnsdist: dnsdist, _truepeer: truepeer, unbound })
    }

    /// One row: two queries with the same client, address and port.
    pub(crate) fn measure(&self, client: &Host, lb: &Host, v6: bool, port: u16) -> Row {
        let from = client.at(v6, port);
        let next = u16::from(v6);
        let ask = |name: &str, to: SocketAddr| {
            client.run(|| query(from, to, name))??;
            let seen = Unbound::client_of(&self.unbound.log(), name).context("no such query in the log")?;
            Ok(SocketAddr::new(seen.parse::<IpAddr>()?, 0))
        };
        Row {
            what: format!("Unbound (UDP), IPv{}", if v6 { 6 } else { 4 }),
            client: SocketAddr::new(from.ip(), 0),
            without: ask(&format!("plain{next}.test"), lb.at(v6, PLAIN + next)),
            with: ask(&format!("true{next}.test"), lb.at(v6, TRUE + next)),
        }
    }
}

fn start_truepeer(bed: &Bed, exe: &str, host: &Host) -> anyhow::Result<Running> {
    let listeners = [host.at(false, TRUEPEER_PORT).to_string(), host.at(true, TRUEPEER_PORT).to_string()];
    let truepeer = Program::new(exe)
        .args(["proxy", "-p", "udp", "--ipv4", "127.0.0.1:53", "--ipv6", "[::1]:53"])
        .args(["--allow", "10.77.0.0/16", "--allow", "fd77::/16"])
        .args(listeners.iter().flat_map(|at| ["--listen", at]))
        .in_netns(&host.netns)
        .start(bed)?;
    for at in &listeners {
        truepeer.wait_bound_udp(at)?;
    }
    Ok(truepeer)
}

fn query(from: SocketAddr, to: SocketAddr, name: &str) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.connect(to)?;
    socket.send(&dns::query(7, name))?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).context("no answer")?;
    anyhow::ensure!(dns::is_answer(&answer[..length], 7), "not the answer: {:?}", &answer[..length]);
    Ok(())
}
