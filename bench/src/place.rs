//! The private network of one cell: only `lo`, or three hosts in a line, and no history.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context;
use truepeer_testbed::{Host, NetNs, Program, Topology, ip_here};

use crate::clients::{CLAIMED_NETWORK, SENDERS_NETWORK};
use crate::suites::Load;

/// The address of contestants: the port of the seeds' benchmarks.
pub(crate) const ENTRANCE: SocketAddr = local(1122);
/// The address of backends.
pub(crate) const BACKEND: SocketAddr = local(1123);

/// The address of the second program of a contestant that needs two.
pub(crate) const BETWEEN: SocketAddr = local(1125);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The addresses of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoints {
    /// The contestant's.
    pub(crate) entrance: SocketAddr,
    /// The backend's.
    pub(crate) backend: SocketAddr,
    /// Where the backend reports its counters.
    pub(crate) tally: SocketAddr,
}

impl Endpoints {
    const fn new(entrance: IpAddr, backend: IpAddr) -> Self {
        Self {
            entrance: SocketAddr::new(entrance, ENTRANCE.port()),
            backend: SocketAddr::new(backend, BACKEND.port()),
            tally: Self::tally_on(backend),
        }
    }

    /// All on loopback.
    pub(crate) const LOOPBACK: Self = Self::new(ENTRANCE.ip(), BACKEND.ip());

    /// Where a backend on this address reports its counters.
    pub(crate) const fn tally_on(backend: IpAddr) -> SocketAddr {
        SocketAddr::new(backend, 1124)
    }
}

/// How many TIME_WAIT sockets the kernel keeps: enough that none is removed early.
const TIME_WAIT_MAX: &str = "1000000";

/// The hosts of a cell over three hosts, in a line. They are named so in `ip`, too: each device after the
/// host at its other end.
const LOAD: &str = "load";
const RELAY: &str = "relay";
const SERVER: &str = "server";

/// A network of one cell.
#[derive(Debug)]
pub(crate) enum Place {
    Loopback(NetNs),
    /// Load, contestant and backend in a line of veth pairs. The contestant's host forwards, so that without
    /// a proxy the load reaches the backend through it.
    Hosts(Topology),
}

impl Place {
    /// Creates the network of a load. `congestion` is the TCP congestion control; without it, the machine's
    /// default.
    pub(crate) fn make(load: Load, congestion: Option<&str>) -> anyhow::Result<Self> {
        if !load.is_over_hosts() {
            let netns = NetNs::create()?;
            netns.run(|| {
                ip_here(&["link set lo up"])?;
                furnish(congestion)
            })??;
            return Ok(Self::Loopback(netns));
        }
        let line = Topology::line(&[LOAD, RELAY, SERVER])?;
        for name in [LOAD, RELAY, SERVER] {
            line.host(name).run(|| furnish(congestion))??;
        }
        // The load owns all senders' addresses.
        line.host(LOAD).ip(&[&format!("route add local {SENDERS_NETWORK} dev lo")])?;
        line.host(RELAY).run(|| write("conf/all/rp_filter", "0"))??;
        Ok(Self::Hosts(line))
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        match self {
            Self::Loopback(_) => Endpoints::LOOPBACK,
            Self::Hosts(line) => Endpoints::new(line.host(RELAY).v4.into(), line.host(SERVER).v4.into()),
        }
    }

    /// Runs `work` on the load's host, on a separate thread. Threads and programs started there are on it,
    /// too.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let netns = match self {
            Self::Loopback(netns) => netns,
            Self::Hosts(line) => &line.host(LOAD).netns,
        };
        netns.run(work)?
    }

    /// A program, on the contestant's host.
    pub(crate) fn on_the_relay(&self, program: Program) -> Program {
        self.on(RELAY, program)
    }

    /// A program, on the backend's host.
    pub(crate) fn on_the_server(&self, program: Program) -> Program {
        self.on(SERVER, program)
    }

    fn on(&self, host: &str, program: Program) -> Program {
        match self {
            Self::Loopback(_) => program,
            Self::Hosts(line) => program.in_netns(&line.host(host).netns),
        }
    }

    /// The classic rule and route for replies to spoofed clients, as in the manuals of the seeds and peers:
    /// replies of the backend stay on the contestant's host. To be called on the load's host.
    pub(crate) fn route_replies(&self) -> anyhow::Result<()> {
        const ROUTE: &str = "route add local 0.0.0.0/0 dev lo table 123";
        match self {
            Self::Loopback(_) => ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", ROUTE]),
            Self::Hosts(line) => {
                let rule = format!("rule add to {CLAIMED_NETWORK} iif {SERVER} table 123");
                Host::ip(line.host(RELAY), &[&rule, ROUTE])
            }
        }
    }
}

fn furnish(congestion: Option<&str>) -> anyhow::Result<()> {
    write("ip_local_port_range", "10000 65535")?;
    write("tcp_max_tw_buckets", TIME_WAIT_MAX)?;
    congestion.map_or(Ok(()), |name| write("tcp_congestion_control", name))
}

fn write(name: &str, value: &str) -> anyhow::Result<()> {
    fs::write(sysctl(name), value).with_context(|| format!("sysctl net.ipv4.{name}={value}"))
}

/// A setting of the calling thread's network namespace.
pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(sysctl(name)).unwrap_or_default().trim().to_owned()
}

fn sysctl(name: &str) -> String {
    format!("/proc/sys/net/ipv4/{name}")
}

/// Sockets in TIME_WAIT, and how many were removed early, in the calling thread's network namespace.
pub(crate) fn time_wait() -> (u64, u64) {
    let file = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let waiting = file("sockstat")
        .lines()
        .find(|line| line.starts_with("TCP:"))
        .and_then(|line| line.split_whitespace().skip_while(|word| *word != "tw").nth(1)?.parse().ok());
    (waiting.unwrap_or(0), netstat(&file("netstat"), "TCPTimeWaitOverflow").unwrap_or(0))
}

/// `/proc/net/netstat` has a line of names above each line of values.
fn netstat(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let column = names.split_whitespace().position(|own| own == name);
        if let Some(column) = column {
            return values.split_whitespace().nth(column)?.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_from_under_its_name() {
        let text = "TcpExt: A TCPTimeWaitOverflow C\nTcpExt: 1 2 3\nIpExt: X\nIpExt: 9\n";
        assert_eq!(netstat(text, "TCPTimeWaitOverflow"), Some(2));
        assert_eq!(netstat(text, "X"), Some(9));
        assert_eq!(netstat(text, "Y"), None);
    }
}
