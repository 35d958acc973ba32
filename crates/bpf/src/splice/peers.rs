//! The two connections of a flow, as a reset or a question to a peer needs them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use super::layout::{Spliced, WAY_LOST};
use crate::layout::Address;

/// A connection of a flow, as a reset needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unattended {
    /// Our end.
    pub own: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
    /// The bounds of the number that the peer expects: what it has acknowledged, and the end of all that was
    /// sent to it.
    pub expected: [u32; 2],
}

/// A connection of a flow, as a keepalive needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Our end.
    pub own: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
    /// The number that the peer expects, and the one that we expect of it.
    pub numbers: [u32; 2],
    /// The newest timestamp that it was told.
    pub timestamp: Option<u32>,
    /// The flow and its side, as the tables have it.
    pub place: u32,
}

impl Spliced {
    /// Its connections: downstream, upstream.
    pub(super) fn connections(&self) -> [Unattended; 2] {
        self.faces.each_ref().map(|face| {
            let key = face.key();
            Unattended {
                own: SocketAddr::new(ip(key.local), u16::from_be_bytes(key.local_port)),
                peer: SocketAddr::new(ip(key.remote), u16::from_be_bytes(key.remote_port)),
                expected: [&face.una, &face.nxt].map(|number| number.load(Ordering::Relaxed)),
            }
        })
    }

    /// The question for the peer of this side. The flow stands at `place`.
    pub(super) fn question(&self, place: u32, side: usize) -> Question {
        let face = &self.faces[side];
        let Unattended { own, peer, expected: [una, _] } = self.connections()[side];
        let has_timestamps = face.has_timestamps.load(Ordering::Relaxed) != 0;
        Question {
            own,
            peer,
            numbers: [una, face.ack.load(Ordering::Relaxed)],
            timestamp: has_timestamps.then(|| face.tsval.load(Ordering::Relaxed)),
            place: place << 1 | u32::from(side == 1),
        }
    }

    /// Whether a peer can't be reached any more ([`super::Splices::lose_way`]).
    pub(super) fn has_lost_its_way(&self) -> bool {
        self.faces.iter().any(|face| face.known.load(Ordering::Acquire) & WAY_LOST != 0)
    }
}

fn ip(address: Address) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(address.0)).to_canonical()
}
