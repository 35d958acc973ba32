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
    /// Datagrams that came to user space since the kernel had sent on this many.
    pub(super) passed: (u32, u64),
    pub(super) learnt_at: Instant,
}

impl Left {
    /// Whether its datagrams still come as its keys say.
    pub(super) fn is_of(&self, ends: &Ends) -> bool {
        let port = if self.has_header { self.ends.sender.port() } else { ends.sender.port() };
        let sender = SocketAddr::new(ends.sender.ip(), port);
        self.ends == Ends { sender, ..*ends }
    }

    /// A datagram of the sender has come to user space: how many have, while the kernel sent none on?
    pub(super) fn pass(&mut self) -> u32 {
        let moved = self.offload.moved().iter().map(|moved| moved.datagrams).sum();
        let (passed, before) = self.passed;
        self.passed = (if moved == before { passed + 1 } else { 1 }, moved);
        self.passed.0
    }

    /// Whether the kernel has sent on answers since the last look.
    pub(super) fn has_answered(&self) -> bool {
        self.offload.moved()[1].datagrams != self.seen[1]
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
