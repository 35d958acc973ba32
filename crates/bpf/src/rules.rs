//! What the programs are told: the policy, as far as they carry it out.

use std::collections::BTreeSet;
use std::time::Duration;

use truepeer_policy::{Claims, HeaderRule, PrefixSet};

/// The rules of one network namespace.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The TCP ports of the backends.
    pub tcp_ports: BTreeSet<u16>,
    /// Who may send. Others pass untouched, as if truepeer weren't there.
    pub senders: PrefixSet,
    /// Whether their connections begin with a header. With [`HeaderRule::Forbid`] nothing is touched.
    pub header: HeaderRule,
    /// Who may be claimed, and who is refused.
    pub claims: Claims,
    /// How long a sender may take for its header. Looked at when the kernel sends its SYN-ACK again: after 1, 3, 7, 15 s.
    pub header_timeout: Duration,
    /// The longest header, in bytes.
    pub header_max: usize,
}
