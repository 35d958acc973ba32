//! The private network of one cell: only `lo`, and no history.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use truepeer_testbed::{NetNs, ip_here};

/// The address of contestants: the port of the seeds' benchmarks.
pub(crate) const ENTRANCE: SocketAddr = local(1122);
/// The address of backends.
pub(crate) const BACKEND: SocketAddr = local(1123);
/// The address at which a backend reports its counters.
pub(crate) const TALLY: SocketAddr = local(1124);

/// The address of the second program of a contestant that needs two.
pub(crate) const BETWEEN: SocketAddr = local(1125);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// How many TIME_WAIT sockets the kernel keeps: enough that none is removed early.
const TIME_WAIT_MAX: &str = "1000000";

/// A network of one cell.
pub(crate) struct Place {
    netns: NetNs,
}

impl Place {
    /// Creates it. `congestion` is the TCP congestion control; without it, the machine's default.
    pub(crate) fn make(congestion: Option<&str>) -> anyhow::Result<Self> {
        let netns = NetNs::create()?;
        netns.run(|| furnish(congestion))??;
        Ok(Self { netns })
    }

    /// Runs `work` in it on a separate thread. Threads and programs started there are in it, too.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        self.netns.run(work)?
    }
}

fn furnish(congestion: Option<&str>) -> anyhow::Result<()> {
    ip_here(&["link set lo up"])?;
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

/// The classic rule and route for replies to spoofed clients, as in the manuals of the seeds and peers: replies
/// of the backend on loopback stay on this machine.
pub(crate) fn route_replies() -> anyhow::Result<()> {
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", "route add local 0.0.0.0/0 dev lo table 123"])
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
