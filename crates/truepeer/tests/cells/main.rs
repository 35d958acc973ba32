//! Each way over each kind of link between three hosts: the backend sees the client, and a digest of the
//! bytes is right both ways. `make kernels` runs these over network cards of several drivers, on several
//! kernels, and makes a table of the outcomes. Elsewhere the links are veth pairs.
//!
//! Where a way can't be taken, the sessions go another way, and must be right, too. Then the test is skipped,
//! with the reason.

mod attach;
mod conversation;
mod datagrams;
mod proxy;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use truepeer_testbed::{Bed, Test, Topology};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
/// How many sessions a test has at once: several queues of a card.
const SESSIONS: u16 = 4;

/// A kind of link.
#[derive(Clone, Copy)]
struct Net {
    name: &'static str,
    v6: bool,
    is_vlan: bool,
}

const NETS: [Net; 4] = [
    Net { name: "ipv4", v6: false, is_vlan: false },
    Net { name: "ipv6", v6: true, is_vlan: false },
    Net { name: "a_vlan_ipv4", v6: false, is_vlan: true },
    Net { name: "a_vlan_ipv6", v6: true, is_vlan: true },
];

type Cell = fn(&Bed, Net) -> Result<()>;

/// A way, by the name that the table has.
const WAYS: [(&str, Cell); 4] = [
    ("attach", attach::tcp),
    ("auto", proxy::auto),
    ("attach_udp", datagrams::attach),
    ("proxy_udp", datagrams::proxy),
];

impl Net {
    fn hosts(self) -> Result<Topology> {
        const NAMES: [&str; 3] = ["sender", "relay", "backend"];
        if self.is_vlan { Topology::line_of_vlans(&NAMES) } else { Topology::line(&NAMES) }
    }

    fn client(self, port: u16) -> SocketAddr {
        let ip = if self.v6 { "2001:db8::7" } else { "203.0.113.7" };
        SocketAddr::new(ip.parse().expect("an address"), port)
    }

    fn site(self) -> SocketAddr {
        let ip = if self.v6 { "2001:db8::1" } else { "192.0.2.1" };
        SocketAddr::new(ip.parse().expect("an address"), 443)
    }
}

fn main() -> ExitCode {
    let cells = WAYS.iter().flat_map(|(way, run)| {
        NETS.map(|net| Test::new(format!("{way}_over_{}", net.name), move |bed: &Bed| run(bed, net)))
    });
    truepeer_testbed::main(cells.collect())
}
