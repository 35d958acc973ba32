//! Listening sockets of this network namespace, from `/proc/net/tcp` and its siblings (proc(5)).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use truepeer_routes::item::IpTransport;

/// How a backend on this machine is bound, as far as it can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// To exactly this address.
    Exactly,
    /// To every address.
    Wildcard,
    /// Nothing listens.
    Nobody,
}

/// Finds the socket that would receive packets sent to `address`.
pub(super) fn bound(address: SocketAddr, transport: IpTransport) -> Bound {
    let sockets = sockets_of(transport).into_iter().map(|socket| socket.address);
    let sockets: Vec<SocketAddr> = sockets.filter(|socket| socket.port() == address.port()).collect();
    if sockets.iter().any(|socket| socket.ip().to_canonical() == address.ip().to_canonical()) {
        Bound::Exactly
    } else if sockets.iter().any(|socket| serves_all(socket.ip(), address.ip())) {
        Bound::Wildcard
    } else {
        Bound::Nobody
    }
}

/// `[::]` usually accepts IPv4, too. IPV6_V6ONLY prevents that, but can't be seen here.
fn serves_all(socket: IpAddr, address: IpAddr) -> bool {
    socket.is_unspecified() && (socket.is_ipv6() || address.is_ipv4())
}

/// A socket that receives packets for its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// Where it listens.
    pub address: SocketAddr,
    /// What links in /proc/PID/fd name it by.
    pub inode: u64,
}

/// Returns listening TCP sockets, or unconnected UDP sockets.
pub fn sockets_of(transport: IpTransport) -> Vec<Socket> {
    let (tables, state) = match transport {
        IpTransport::Tcp => (["tcp", "tcp6"], "0A"),
        IpTransport::Udp => (["udp", "udp6"], "07"),
    };
    let read = |table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    tables.into_iter().map(read).flat_map(|table| sockets(&table, state)).collect()
}

/// The other ends of TCP connections to a port, also of those that have just ended.
pub(super) fn peers_of(port: u16) -> Vec<IpAddr> {
    // ESTABLISHED, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
    const CONNECTED: [&str; 7] = ["01", "04", "05", "06", "08", "09", "0B"];
    let read = |table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    let peer = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_meant = CONNECTED.contains(fields.get(3)?) && address(fields.get(1)?)?.port() == port;
        is_meant.then(|| address(fields.get(2)?)).flatten().map(|peer| peer.ip().to_canonical())
    };
    let tables = ["tcp", "tcp6"].map(read);
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(peer).collect()
}

/// proc_net_tcp: number, local address, remote address, state, five more, inode.
fn sockets(table: &str, state: &str) -> Vec<Socket> {
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_meant = *fields.get(3)? == state;
        let inode = fields.get(9)?.parse().ok()?;
        is_meant.then(|| address(fields.get(1)?)).flatten().map(|address| Socket { address, inode })
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// Each 32-bit word is printed as a number in this machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (i, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(i * 8)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        assert_eq!(address("0100007F:01BB"), Some("127.0.0.1:443".parse().unwrap()));
        assert_eq!(address("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address("0100007F"), None);
        assert_eq!(address("zz00007F:0001"), None);
    }

    #[test]
    fn a_listener_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(bound(address, IpTransport::Tcp), Bound::Exactly);
        drop(listener);
        let everywhere = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let address = SocketAddr::new("127.0.0.1".parse().unwrap(), everywhere.local_addr().unwrap().port());
        assert_eq!(bound(address, IpTransport::Tcp), Bound::Wildcard);
    }
}
