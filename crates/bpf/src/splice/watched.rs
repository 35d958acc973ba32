//! A flow whose sockets are closed, as the process that relayed its session watches it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::{Face, RESET, Stage, WAY_LOST};
use super::table::{Splices, age_of};
use crate::layout::Address;

/// A flow without sockets. Dropped, it goes on: the flow belongs to the machine, and is swept when it has ended.
pub struct Watched {
    splices: Arc<Splices>,
    place: u32,
    is_forgotten: bool,
}

/// A flow that has been forgotten.
pub struct Forgotten {
    splices: Arc<Splices>,
    place: u32,
    /// The state of its connections at that moment.
    last: Option<[Unattended; 2]>,
    has_lost_its_way: bool,
}

/// A connection of a flow, as a reset needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unattended {
    /// Our end.
    pub own: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
    /// The bounds of the number that the peer expects: what it has acknowledged, and the end of all that was sent to it.
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

impl Forgotten {
    pub(super) fn new(splices: Arc<Splices>, place: u32, last: Option<[Unattended; 2]>) -> Self {
        let has_lost_its_way = has_lost_its_way(&splices, place);
        Self { splices, place, last, has_lost_its_way }
    }

    /// Whether a peer could not be reached when it was forgotten: it may be later.
    #[must_use]
    pub fn has_lost_its_way(&self) -> bool {
        self.has_lost_its_way
    }

    /// Its connections, unless a new one has their addresses. The numbers are read again while no other flow has the place: a program that was
    /// under way may have raised them since.
    #[must_use]
    pub fn connections(&self) -> Option<[Unattended; 2]> {
        let last = self.last?;
        let is_free = || self.splices.stage(self.place) == Stage::Free;
        let now = is_free().then(|| connections(&self.splices, self.place));
        let has_addresses = |now: &[Unattended; 2]| {
            now.iter().zip(&last).all(|(now, last)| (now.own, now.peer) == (last.own, last.peer))
        };
        Some(now.filter(has_addresses).filter(|_| is_free()).unwrap_or(last))
    }
}

pub(super) fn question(splices: &Splices, place: u32, side: usize) -> Question {
    let face = &splices.at(place).faces[side];
    let Unattended { own, peer, expected: [una, _] } = connections(splices, place)[side];
    let has_timestamps = face.has_timestamps.load(Ordering::Relaxed) != 0;
    Question {
        own,
        peer,
        numbers: [una, face.ack.load(Ordering::Relaxed)],
        timestamp: has_timestamps.then(|| face.tsval.load(Ordering::Relaxed)),
        place: place << 1 | u32::from(side == 1),
    }
}

pub(super) fn connections(splices: &Splices, place: u32) -> [Unattended; 2] {
    splices.at(place).faces.each_ref().map(|face| {
        let key = face.key();
        Unattended {
            own: SocketAddr::new(ip(key.local), u16::from_be_bytes(key.local_port)),
            peer: SocketAddr::new(ip(key.sender), u16::from_be_bytes(key.sender_port)),
            expected: [&face.una, &face.nxt].map(|number| number.load(Ordering::Relaxed)),
        }
    })
}

pub(super) fn has_lost_its_way(splices: &Splices, place: u32) -> bool {
    splices.at(place).faces.iter().any(|face| face.known.load(Ordering::Acquire) & WAY_LOST != 0)
}

impl std::fmt::Debug for Forgotten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forgotten").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Watched {
    pub(crate) fn new(splices: Arc<Splices>, place: u32) -> Self {
        Self { splices, place, is_forgotten: false }
    }

    /// Where the flow stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.splices.stage(self.place)
    }

    /// Bytes of each peer's stream, whoever has carried them.
    #[must_use]
    pub fn bytes(&self) -> [u64; 2] {
        self.splices.at(self.place).faces.each_ref().map(Face::stream_bytes)
    }

    /// Its connections: downstream, upstream.
    #[must_use]
    pub fn connections(&self) -> [Unattended; 2] {
        connections(&self.splices, self.place)
    }

    /// How long ago the session began.
    #[must_use]
    pub fn age(&self) -> Duration {
        age_of(self.splices.at(self.place).since_ns.load(Ordering::Relaxed))
    }

    /// Translated segments of each peer.
    #[must_use]
    pub fn segments(&self) -> [u64; 2] {
        self.splices.at(self.place).faces.each_ref().map(|face| face.segments.load(Ordering::Relaxed))
    }

    /// The question for the peer of this side.
    #[must_use]
    pub fn question(&self, side: usize) -> Question {
        question(&self.splices, self.place, side)
    }

    /// The side whose peer has reset the connection, if one has.
    #[must_use]
    pub fn reset_by(&self) -> Option<usize> {
        let faces = &self.splices.at(self.place).faces;
        faces.iter().position(|face| face.known.load(Ordering::Acquire) & RESET != 0)
    }

    /// Whether a peer can't be reached any more ([`Splices::lose_way`]).
    #[must_use]
    pub fn has_lost_its_way(&self) -> bool {
        has_lost_its_way(&self.splices, self.place)
    }

    /// Marks the flow as gone and leaves its keys, as a process that is killed while it makes room. For tests.
    pub fn begin_to_make_room(&self) {
        self.splices.at(self.place).stage.store(Stage::Gone as u32, Ordering::Release);
    }

    /// Ends the flow: its segments are the kernel's from now on. The kernel answers segments to its own addresses by resets, and no others.
    #[must_use]
    pub fn forget(mut self) -> Forgotten {
        self.is_forgotten = true;
        let last = self.splices.forget(self.place);
        Forgotten::new(Arc::clone(&self.splices), self.place, last)
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
        let flow = self.splices.at(self.place);
        f.debug_struct("Watched").field("place", &self.place).field("flow", flow).finish_non_exhaustive()
    }
}

fn ip(address: Address) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(address.0)).to_canonical()
}
