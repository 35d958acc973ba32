//! Where a flow is: in user space, or in the kernel's tables as well.

use std::net::SocketAddr;
use std::time::Instant;

use truepeer_udp_offload::{Ends, Moved, Offload};

/// Where a flow is.
#[derive(Debug, Default)]
pub(crate) enum Whereabouts {
    /// In user space.
    #[default]
    Here,
    /// It stays, and that is counted.
    Stays,
    /// The kernel may send it on.
    Left(Box<Left>),
}

/// A flow in the kernel's tables.
#[derive(Debug)]
pub(crate) struct Left {
    pub(super) offload: Offload,
    pub(super) ends: Ends,
    pub(super) has_header: bool,
    /// The part of [`Offload::moved`] that the flow's own counters include.
    pub(super) counted: [Moved; 2],
    /// Datagrams of both ends at the last look.
    pub(super) seen: [u64; 2],
    /// Datagrams that came to user space before the kernel has sent any on.
    pub(super) passed: u32,
    pub(super) learnt_at: Instant,
}

impl Left {
    /// Whether its datagrams still come as its keys say.
    pub(super) fn is_of(&self, ends: &Ends) -> bool {
        let port = if self.has_header { self.ends.sender.port() } else { ends.sender.port() };
        let sender = SocketAddr::new(ends.sender.ip(), port);
        self.ends == Ends { sender, ..*ends }
    }

    pub(super) fn uncounted(&self) -> [Moved; 2] {
        let mut moved = self.offload.moved();
        for (moved, counted) in moved.iter_mut().zip(&self.counted) {
            moved.datagrams -= counted.datagrams;
            moved.bytes -= counted.bytes;
        }
        moved
    }
}
