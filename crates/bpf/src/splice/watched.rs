//! A flow whose sockets are closed, as the process that relayed its session watches it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::{RESET, Stage};
use super::table::Splices;
use crate::layout::Address;

/// A flow without sockets. Dropped, it goes on: the flow belongs to the machine, and is swept when it has ended.
pub struct Watched {
    splices: Arc<Splices>,
    place: u32,
    is_forgotten: bool,
}

/// A connection of a flow, as a reset needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unattended {
    /// Our end.
    pub own: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
    /// The number that the peer expects, as far as it has said.
    pub expected: u32,
}

impl Watched {
    pub(super) fn new(splices: Arc<Splices>, place: u32) -> Self {
        Self { splices, place, is_forgotten: false }
    }

    /// Where the flow stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.splices.stage(self.place)
    }

    /// Translated bytes of each peer's stream.
    #[must_use]
    pub fn bytes(&self) -> [u64; 2] {
        self.splices.at(self.place).faces.each_ref().map(|face| face.bytes.load(Ordering::Relaxed))
    }

    /// Translated segments of both peers together.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.splices.at(self.place).faces.iter().map(|face| face.segments.load(Ordering::Relaxed)).sum()
    }

    /// The side whose peer has reset the connection, if one has.
    #[must_use]
    pub fn reset_by(&self) -> Option<usize> {
        let faces = &self.splices.at(self.place).faces;
        faces.iter().position(|face| face.known.load(Ordering::Acquire) & RESET != 0)
    }

    /// Ends the flow: its segments are the kernel's from now on, which answers them by resets. Returns its connections.
    #[must_use]
    pub fn forget(mut self) -> [Unattended; 2] {
        self.is_forgotten = true;
        let connections = self.splices.at(self.place).faces.each_ref().map(|face| {
            let key = face.key();
            Unattended {
                own: SocketAddr::new(ip(key.local), u16::from_be_bytes(key.local_port)),
                peer: SocketAddr::new(ip(key.sender), u16::from_be_bytes(key.sender_port)),
                expected: face.una.load(Ordering::Relaxed),
            }
        });
        self.splices.forget(self.place);
        connections
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_forgotten {
            self.splices.let_go(self.place);
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("place", &self.place).finish_non_exhaustive()
    }
}

fn ip(address: Address) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(address.0)).to_canonical()
}
