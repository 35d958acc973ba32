//! Devices that aggregate, and the same without it.

use anyhow::Result;
use truepeer_testbed::{Bed, Host, Program};

/// What a veth pair can do for its ends (ethtool(8), `-K`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// Segments of up to 64 KiB in both directions, sums left to the device.
    On,
    /// Each packet as it would be on a wire.
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
