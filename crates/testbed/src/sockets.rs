//! The kernel's view of a test's sockets.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::wait::wait_for;

/// A line of `/proc/net/tcp` or `tcp6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketEntry {
    /// The local end.
    pub local: SocketAddr,
    /// The remote end; unspecified for a listener.
    pub remote: SocketAddr,
    /// As in the kernel's `enum tcp_state`: 1 established, 6 TIME_WAIT, 10 listening.
    pub state: u8,
    /// The number of bytes that were sent and not acknowledged, or not sent yet.
    pub unsent: u64,
    /// The number of bytes that were received and not read.
    pub unread: u64,
}

/// All TCP sockets in the calling thread's network namespace. The kernel scans its whole table, which takes
/// tens of milliseconds.
pub fn all() -> Vec<SocketEntry> {
    [of_family(false), of_family(true)].concat()
}

fn of_family(v6: bool) -> Vec<SocketEntry> {
    // Not /proc/net: it shows the network namespace of the process, not of the thread.
    let table = if v6 { "/proc/thread-self/net/tcp6" } else { "/proc/thread-self/net/tcp" };
    fs::read_to_string(table).unwrap_or_default().lines().filter_map(parse).collect()
}

/// Waits until the other end's kernel has acknowledged everything that was written.
pub fn wait_until_sent(stream: &TcpStream) -> anyhow::Result<()> {
    let (near, far) = (stream.local_addr()?, stream.peer_addr()?);
    wait_for("the other side's kernel to have what was sent", || {
        let sockets = of_family(near.is_ipv6());
        !sockets.iter().any(|s| (s.local, s.remote) == (near, far) && s.unsent > 0)
    })
}

/// Waits until the other end's program has read everything that was written.
pub fn wait_until_read(stream: &TcpStream) -> anyhow::Result<()> {
    let (near, far) = (stream.local_addr()?, stream.peer_addr()?);
    wait_for("the other side to read what was sent", || {
        let sockets = of_family(near.is_ipv6());
        let unsent = sockets.iter().any(|s| (s.local, s.remote) == (near, far) && s.unsent > 0);
        let unread = sockets.iter().any(|s| (s.local, s.remote) == (far, near) && s.unread > 0);
        !unsent && !unread
    })
}

/// Limits the buffers of new connections in the calling thread's network namespace, so that a stalled end is
/// noticed soon: those that receive to `most` bytes, those that send to half of it.
pub fn keep_buffers_below(most: u32) -> anyhow::Result<()> {
    for (direction, most) in [("rmem", most), ("wmem", most / 2)] {
        let file = format!("/proc/sys/net/ipv4/tcp_{direction}");
        fs::write(&file, format!("4096 {} {most}", most / 2)).context(file)?;
    }
    Ok(())
}

/// Waits until no more bytes move between the sockets of this network namespace.
pub fn wait_until_stuck() -> anyhow::Result<()> {
    let held = || all().iter().map(|socket| socket.unread + socket.unsent).sum::<u64>();
    let mut before = 0;
    let mut quiet_looks = 0;
    wait_for("all sessions to be stuck", || {
        thread::sleep(Duration::from_millis(20)); // no byte may move during this interval
        let now = held();
        quiet_looks = if now == before && now > 0 { quiet_looks + 1 } else { 0 };
        before = now;
        quiet_looks == 10
    })
}

/// `0: 0100007F:1F90 0100007F:0050 01 00000000:00000000 …`
fn parse(line: &str) -> Option<SocketEntry> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote) = (parse_address(fields.next()?)?, parse_address(fields.next()?)?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let (unsent, unread) = fields.next()?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(SocketEntry { local, remote, state, unsent: number(unsent)?, unread: number(unread)? })
}

/// `0100007F:0050`: each 32-bit word of the address in this machine's byte order, then the port.
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for place in (0..address.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(address.get(place..place + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_addresses_are_read() {
        let read = |text| parse_address(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(read("00000000000000000000000001000000:1F90").as_deref(), Some("[::1]:8080"));
        assert_eq!(read("nonsense"), None);
    }
}
