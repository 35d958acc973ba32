//! Addresses by role: the compiler rejects a sender's address where a client's or a backend's is expected.
//!
//! The roles don't convert into each other. Code that needs it writes `ClientAddr::new(sender.get())`.

use core::fmt;
use core::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The canonical form of an address, which rules compare: IPv4-mapped IPv6 becomes IPv4, the flow label is
/// removed, and only link-local addresses keep their scope.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = addr else { return addr };
    match v6.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, v6.port())),
        IpAddr::V6(ip) => {
            let scope_id = if ip.is_unicast_link_local() { v6.scope_id() } else { 0 };
            SocketAddr::V6(SocketAddrV6::new(ip, v6.port(), 0, scope_id))
        }
    }
}

macro_rules! role {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(SocketAddr);

        impl $name {
            /// Takes the address in canonical form: an IPv4-mapped IPv6 address becomes IPv4.
            pub fn new(addr: SocketAddr) -> Self {
                Self(canonical(addr))
            }

            /// The address and port.
            pub fn get(self) -> SocketAddr {
                self.0
            }

            /// The address without its port.
            pub fn ip(self) -> IpAddr {
                self.0.ip()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

role! {
    /// The host that opened the downstream connection and wrote the header, as the kernel reports it.
    SenderAddr
}
role! {
    /// The host behind the session. Only the policy creates one from a header.
    ClientAddr
}
role! {
    /// The destination of the upstream connection.
    BackendAddr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(text: &str) -> String {
        SenderAddr::new(text.parse().unwrap()).to_string()
    }

    #[test]
    fn ipv4_mapped_addresses_become_ipv4() {
        assert_eq!(sender("[::ffff:192.0.2.1]:80"), "192.0.2.1:80");
        assert_eq!(sender("[::ffff:127.0.0.1]:80"), "127.0.0.1:80");
        // Deprecated, and never used on a wire. It is not a mapped address, so it isn't converted to IPv4
        // (claims refuse it instead).
        assert_eq!(sender("[::127.0.0.1]:80"), "[::7f00:1]:80");
        assert_eq!(sender("[2001:db8::1]:80"), "[2001:db8::1]:80");
    }

    #[test]
    fn scope_survives_only_on_link_local_and_flow_label_nowhere() {
        let with = |ip: &str| SocketAddr::V6(SocketAddrV6::new(ip.parse().unwrap(), 1, 9, 3));
        let plain = |ip: &str, scope| SocketAddr::V6(SocketAddrV6::new(ip.parse().unwrap(), 1, 0, scope));
        assert_eq!(SenderAddr::new(with("fe80::1")).get(), plain("fe80::1", 3));
        assert_eq!(SenderAddr::new(with("2001:db8::1")).get(), plain("2001:db8::1", 0));
    }
}
