//! The rules for the programs: the part of the policy that they carry out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use ipnet::IpNet;
use truepeer_policy::{Claims, Dialect, HeaderRule, PrefixSet, Secrets};

use crate::ports::{PortRange, ranges_over};

/// A UDP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpPort {
    /// The port that the backend is bound to: the same port, or another.
    pub backend_port: u16,
    /// The dialect.
    pub dialect: Dialect,
}

/// One of these secrets must be the value of a TLV of each header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredSecret {
    /// The headers of these senders.
    pub senders: PrefixSet,
    /// The type of the TLV.
    pub kind: u8,
    /// The secrets.
    pub secrets: Secrets,
}

/// The rules of one network namespace.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The TCP ports of the backends.
    pub tcp_ports: BTreeSet<u16>,
    /// The UDP ports to which senders send.
    pub udp_ports: BTreeMap<u16, UdpPort>,
    /// TCP ports that are counted together, and shown as one. They don't overlap.
    pub tcp_ranges: Vec<PortRange>,
    /// UDP ports, likewise.
    pub udp_ranges: Vec<PortRange>,
    /// The senders. Packets of all others pass unchanged, as without truepeer; for an exception see
    /// `udp_silence`.
    pub senders: PrefixSet,
    /// Whether their connections start with a header. With [`HeaderRule::Forbid`] packets pass unchanged.
    pub header: HeaderRule,
    /// Other rules for senders among them, by prefix: the longest one applies.
    pub exceptions: BTreeMap<IpNet, HeaderRule>,
    /// The secrets that headers must have; at most one for a prefix.
    pub required_tlvs: Vec<RequiredSecret>,
    /// Which clients may be claimed, and which are refused.
    pub claims: Claims,
    /// This host's addresses, which must not be claimed either unless `claims` allows them. They are read
    /// when attaching: afterwards no truepeer process runs.
    pub own_addresses: BTreeSet<IpAddr>,
    /// How long a sender may take for its header. Checked when the kernel repeats its SYN-ACK: after 1, 3, 7,
    /// 15 s.
    pub header_timeout: Duration,
    /// How long a sender may be silent before it is served as itself, where a header is optional. Looked at
    /// likewise.
    pub header_wait: Duration,
    /// The longest header, in bytes.
    pub header_max: usize,
    /// Whether clients are refused that the server's socket can't show, because they have another family than
    /// it. Otherwise it is shown the sender.
    pub refuse_unshowable: bool,
    /// TCP: whether `getsockname` answers with the destination that the header names.
    pub shows_destination: bool,
    /// How long after the sender's last datagram a client's answers go to the sender, in whole seconds. Until
    /// then, a client that itself sends from the same address and port is answered through the sender, too.
    /// Where only a flow's first datagram has a header, the flow is forgotten then.
    pub udp_silence: Duration,
    /// How many TCP connections may be open at a time; others are refused. The tables of handshakes grow with
    /// it. Another number applies when something is attached while no connection is open.
    pub max_flows: NonZeroU32,
    /// How many UDP flows are remembered. Above that, the one that was silent longest is forgotten until its
    /// client's next datagram. The memory for all of them is allocated at once.
    pub max_udp_flows: NonZeroU32,
}

impl Rules {
    /// All TCP ports, each in one range; most are alone in theirs.
    pub(crate) fn all_tcp_ranges(&self) -> Vec<PortRange> {
        ranges_over(&self.tcp_ports, &self.tcp_ranges)
    }

    /// All UDP ports, likewise.
    pub(crate) fn all_udp_ranges(&self) -> Vec<PortRange> {
        ranges_over(&self.udp_ports.keys().copied().collect(), &self.udp_ranges)
    }
}

/// The rules of an attachment, read from the kernel's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesInForce {
    /// The longest prefix around a sender applies; `None`, as for an address in no prefix: its packets pass
    /// unchanged.
    pub senders: Vec<(IpNet, Option<HeaderRule>)>,
    /// The type of the TLV by which senders prove themselves; the longest prefix applies.
    pub required_tlvs: Vec<(IpNet, u8)>,
    /// Clients in special ranges (loopback, multicast…) that may be claimed all the same.
    pub claims_allowed: Vec<IpNet>,
    /// The host's own addresses, which may not be claimed.
    pub claims_refused: Vec<IpNet>,
    /// Clients that are refused.
    pub denied: Vec<IpNet>,
    /// See [`Rules::header_timeout`].
    pub header_timeout: Duration,
    /// See [`Rules::header_wait`].
    pub header_wait: Duration,
    /// See [`Rules::header_max`]; in bytes.
    pub header_max: u32,
    /// See [`Rules::refuse_unshowable`].
    pub refuse_unshowable: bool,
    /// See [`Rules::shows_destination`].
    pub shows_destination: bool,
    /// See [`Rules::udp_silence`].
    pub udp_silence: Duration,
}

/// What becomes of ports that are attached already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// None may be left out.
    AreNamed,
    /// Those that are left out leave.
    Leave,
    /// They stay, with their own rules.
    Stay {
        /// Ports of the new rules may be attached already; then they change to these rules.
        may_be_taken: bool,
    },
}

/// The treatment of new connections while a detachment waits for open ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewConnections {
    /// They reach the backend unchecked, with their header (fail-open).
    Pass,
    /// Those from senders that must send a header are refused.
    Refuse,
}
