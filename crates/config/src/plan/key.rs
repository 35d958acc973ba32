//! The identity of a listener.

use std::fmt;
use std::net::SocketAddr;

use crate::spec::Protocol;

/// The identity of a listener across two plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    pub protocol: Protocol,
    pub address: SocketAddr,
    /// Distinguishes listeners on the same address: only port 0, for which the kernel chooses, may be given
    /// twice.
    pub(crate) copy: usize,
}

impl ListenerKey {
    /// Whether one of the two can't be opened while the other is open. A wildcard address covers both
    /// families.
    pub fn conflicts(&self, other: &Self) -> bool {
        let (ip, other_ip) = (self.address.ip().to_canonical(), other.address.ip().to_canonical());
        let is_one_port = self.protocol == other.protocol
            && self.address.port() == other.address.port()
            && self.address.port() != 0;
        self == other || is_one_port && (ip == other_ip || ip.is_unspecified() || other_ip.is_unspecified())
    }
}

impl ListenerKey {
    /// Whether one of the two is the wildcard of the other one's family and port.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        let (ip, other_ip) = (self.address.ip().to_canonical(), other.address.ip().to_canonical());
        self.protocol == other.protocol
            && self.address.port() == other.address.port()
            && self.address.port() != 0
            && ip.is_ipv4() == other_ip.is_ipv4()
            && (ip.is_unspecified() || other_ip.is_unspecified())
    }
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Tcp => write!(f, "{}", self.address),
            Protocol::Udp => write!(f, "{} (UDP)", self.address),
        }
    }
}
