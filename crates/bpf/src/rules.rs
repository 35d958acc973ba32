//! What the programs are told: the policy, as far as they carry it out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use truepeer_policy::{Claims, HeaderRule, PrefixSet};

/// A UDP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Where the backend is bound: the same port, or another.
    pub backend_port: u16,
    /// Where the header is.
    pub dialect: UdpDialect,
}

/// The UDP dialects in which each datagram has its header: of the others, a datagram says nothing by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpDialect {
    /// v2 in each datagram.
    Every,
    /// Simple Proxy Protocol, in answers too.
    Spp,
}

impl UdpDialect {
    /// As the command line spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::Spp => "spp",
        }
    }
}

/// [`Rules::max_flows`], unless said otherwise.
pub const MAX_FLOWS: NonZeroU32 = NonZeroU32::MIN.saturating_add((1 << 20) - 1);

/// [`Rules::max_udp_flows`], unless said otherwise.
pub const MAX_UDP_FLOWS: NonZeroU32 = NonZeroU32::MIN.saturating_add((1 << 17) - 1);

/// The rules of one network namespace.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The TCP ports of the backends.
    pub tcp_ports: BTreeSet<u16>,
    /// What senders send datagrams to.
    pub udp_ports: BTreeMap<u16, Gate>,
    /// Who may send. Others pass untouched, as if truepeer weren't there; but see `udp_silence`.
    pub senders: PrefixSet,
    /// Whether their connections begin with a header. With [`HeaderRule::Forbid`] nothing is touched.
    pub header: HeaderRule,
    /// Who may be claimed, and who is refused.
    pub claims: Claims,
    /// This host's addresses, which must not be claimed either unless `claims` allows them. As they are when it is
    /// attached: nothing of truepeer runs afterwards.
    pub own_addresses: BTreeSet<IpAddr>,
    /// How long a sender may take for its header. Looked at when the kernel sends its SYN-ACK again: after 1, 3, 7, 15 s.
    pub header_timeout: Duration,
    /// The longest header, in bytes.
    pub header_max: usize,
    /// How long a client's answers go to its sender after its last datagram from there, to a second. Until then, a client that comes
    /// by itself from the same address and port is answered through the sender, too.
    pub udp_silence: Duration,
    /// How many TCP connections may be open at a time; more are refused. Holds from the first attachment until everything is removed.
    pub max_flows: NonZeroU32,
    /// How many UDP flows are remembered; beyond that the one that was silent longest is forgotten, until its client's next datagram. Memory
    /// for all of them is taken at once. Holds likewise.
    pub max_udp_flows: NonZeroU32,
}
