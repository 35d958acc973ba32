//! How an application sees a client, depending on the family of its socket.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use truepeer_policy::ClientAddr;

/// What an application sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The client, in the form of its socket's family.
    As(SocketAddr),
    /// An IPv6 client can't be shown on an AF_INET socket: programs pass room for 16 bytes there, or fail on
    /// the other family. The application sees the sender.
    NotShowable,
}

/// `family_is_v6`: the family of the socket (`AF_INET6`), not of the connection's addresses.
pub fn as_seen_by(client: ClientAddr, family_is_v6: bool) -> Shown {
    match (client.get(), family_is_v6) {
        (SocketAddr::V4(client), true) => Shown::As(mapped(SocketAddr::V4(client))),
        (SocketAddr::V6(_), false) => Shown::NotShowable,
        (client, _) => Shown::As(client),
    }
}

/// `::ffff:a.b.c.d`, as the kernel shows IPv4 on an AF_INET6 socket.
fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddrV6::new(ip.to_ipv6_mapped(), addr.port(), 0, 0).into(),
        IpAddr::V6(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_shown_as_the_sockets_family_allows() {
        let client = |text: &str| ClientAddr::new(text.parse().unwrap());
        let shown = |text: &str| Shown::As(text.parse().unwrap());
        for (addr, v6, expected) in [
            ("192.0.2.1:80", false, shown("192.0.2.1:80")),
            ("192.0.2.1:80", true, shown("[::ffff:192.0.2.1]:80")),
            ("[::ffff:192.0.2.1]:80", false, shown("192.0.2.1:80")),
            ("[2001:db8::1]:80", true, shown("[2001:db8::1]:80")),
            ("[2001:db8::1]:80", false, Shown::NotShowable),
        ] {
            assert_eq!(as_seen_by(client(addr), v6), expected, "{addr} {v6}");
        }
    }
}
