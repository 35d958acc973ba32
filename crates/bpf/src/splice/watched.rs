//! A flow whose sockets are closed, as the process that relayed its session watches it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::{Face, RESET, Stage};
use super::peers::{Question, Unattended};
use super::table::{Splices, age_of};

/// A flow without sockets. Dropped, it goes on: the flow belongs to the machine, and is swept when it has
/// ended.
pub struct Watched {
    splices: Arc<Splices>,
    place: u32,
    is_removed: bool,
}

/// A flow that has been forgotten.
pub struct Removed {
    splices: Arc<Splices>,
    place: u32,
    /// The state of its connections at that moment.
    last: Option<[Unattended; 2]>,
    has_lost_its_way: bool,
}

impl Removed {
    pub(super) fn new(splices: Arc<Splices>, place: u32, last: Option<[Unattended; 2]>) -> Self {
        let has_lost_its_way = splices.at(place).has_lost_its_way();
        Self { splices, place, last, has_lost_its_way }
    }

    /// Whether a peer could not be reached when it was forgotten: it may be later.
    #[must_use]
    pub fn has_lost_its_way(&self) -> bool {
        self.has_lost_its_way
    }

    /// Its connections, unless a new one has their addresses. The numbers are read again while no other flow
    /// has the place: a program that was under way may have raised them since.
    #[must_use]
    pub fn connections(&self) -> Option<[Unattended; 2]> {
        let last = self.last?;
        let is_free = || self.splices.stage(self.place) == Stage::Free;
        let now = is_free().then(|| self.splices.at(self.place).connections());
        let has_addresses = |now: &[Unattended; 2]| {
            now.iter().zip(&last).all(|(now, last)| (now.own, now.peer) == (last.own, last.peer))
        };
        Some(now.filter(has_addresses).filter(|_| is_free()).unwrap_or(last))
    }
}

impl std::fmt::Debug for Removed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removed").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Watched {
    pub(crate) fn new(splices: Arc<Splices>, place: u32) -> Self {
        Self { splices, place, is_removed: false }
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
        self.splices.at(self.place).connections()
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
        self.splices.at(self.place).question(self.place, side)
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
        self.splices.at(self.place).has_lost_its_way()
    }

    /// Marks the flow as gone and leaves its keys, as a process that is killed while it makes room. For
    /// tests.
    pub fn begin_to_make_room(&self) {
        self.splices.at(self.place).stage.store(Stage::Gone as u32, Ordering::Release);
    }

    /// Ends the flow: its segments are the kernel's from now on. The kernel answers segments to its own
    /// addresses by resets, and no others.
    #[must_use]
    pub fn remove(mut self) -> Removed {
        self.is_removed = true;
        let last = self.splices.remove(self.place);
        Removed::new(Arc::clone(&self.splices), self.place, last)
    }
}

impl Splices {
    /// Flows of another process that were adopted since the last call and go on.
    pub fn adopted(self: &Arc<Self>) -> Vec<Watched> {
        let places = self.take_adopted();
        places.into_iter().map(|place| Watched::new(Arc::clone(self), place)).collect()
    }

    /// Flows that were forgotten since the last call although their peers may still wait: the caller resets
    /// these.
    pub fn unattended(self: &Arc<Self>) -> Vec<Removed> {
        let places = self.take_unattended();
        places.into_iter().map(|(place, last)| Removed::new(Arc::clone(self), place, Some(last))).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_removed {
            self.splices.sweep_later(self.place);
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flow = self.splices.at(self.place);
        f.debug_struct("Watched").field("place", &self.place).field("flow", flow).finish_non_exhaustive()
    }
}
