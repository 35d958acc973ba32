//! Network devices, as far as programs must know them.

/// A device of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Whether its packets have an Ethernet header (loopback's have, tunnels' have not).
    pub has_ethernet: bool,
    /// Whether the kernel drops what comes in here from senders that it does not reach through here: rp_filter is 1. Read when it is attached.
    pub has_strict_rp_filter: bool,
}

impl Device {
    /// Bytes in front of the IP header.
    pub(crate) fn link_header_len(&self) -> u32 {
        if self.has_ethernet { 14 } else { 0 }
    }
}
