//! Network devices, as far as the programs need to know them.

/// A device of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Whether its packets have an Ethernet header (loopback: yes; tunnels: no).
    pub has_ethernet: bool,
    /// Whether the kernel drops packets of senders whose route leads over another device (rp_filter 1). Read
    /// when attaching.
    pub has_strict_rp_filter: bool,
}

impl Device {
    /// The length of the link header.
    pub(crate) fn link_header_len(&self) -> u32 {
        if self.has_ethernet { 14 } else { 0 }
    }
}
