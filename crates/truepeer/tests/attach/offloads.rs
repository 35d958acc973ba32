//! Devices with and without aggregation.

use anyhow::Result;
use truepeer_testbed::{Bed, Host, Program};

/// The offloads of a veth pair (ethtool(8), `-K`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// Segments of up to 64 KiB in both directions; the device finishes checksums.
    On,
    /// Each packet as on a wire.
    Off,
}

impl Offloads {
    /// Sets them for the devices between two neighbours.
    pub(crate) fn set(self, bed: &Bed, left: &Host, right: &Host) -> Result<()> {
        let state = if self == Offloads::On { "on" } else { "off" };
        for (host, device) in [(left, &right.name), (right, &left.name)] {
            let set = ["-K", device, "gro", state, "tso", state, "gso", state, "tx", state];
            Program::new("ethtool").args(set).in_netns(&host.netns).run(bed)?;
        }
        Ok(())
    }
}
