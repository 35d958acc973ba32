//! Flows without sockets, until they have ended.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Splices, lock};
use crate::splice::attention::{Attention, Care};
use crate::splice::layout::Stage;
use crate::splice::peers::{Question, Unattended};

/// While few places are free, ended flows go so much sooner.
const SOONER: u32 = 10;

/// What a sweep has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows that were let go and go on.
    pub open: usize,
    /// Flows that have ended since the last sweep.
    pub ended: usize,
}

/// A flow without sockets, as the last sweep saw it.
pub(super) struct Unwatched {
    place: u32,
    segments: [u64; 2],
    quiet_since: Instant,
    /// It has ended, and waits until it has been quiet for long enough.
    is_ending: bool,
    attention: Attention,
}

impl Unwatched {
    /// Whether it has ended, and its time has not come. Most flows have ended: those are in no cache, and are
    /// not read each time.
    fn rests(&self, now: Instant, linger: Duration) -> bool {
        self.is_ending && now.saturating_duration_since(self.quiet_since) < linger
    }
}

impl Splices {
    /// Whether so many places are in use that it pays to [sweep](Self::sweep) soon.
    pub fn is_filling(&self) -> bool {
        lock(&self.free).is_filling() && !self.is_guest()
    }

    /// Whether there is any flow that this process answers for.
    pub fn are_any(&self) -> bool {
        let is_owned = !self.is_guest() && lock(&self.free).are_in_use();
        is_owned || !lock(&self.unwatched).is_empty()
    }

    /// Looks at the flows that were let go. A flow that has ended and been quiet for `linger` makes room,
    /// sooner while places are short: then a reset may answer a peer that has lost the last acknowledgement.
    /// `can_ask`: whether peers can be asked. If not, no silent peer counts as gone.
    pub fn sweep(&self, now: Instant, linger: Duration, can_ask: bool) -> Swept {
        self.may_grow_again();
        let is_short = lock(&self.free).is_short() && !self.is_guest();
        let linger = if is_short { linger / SOONER } else { linger };
        let mut unwatched = lock(&self.unwatched);
        let before = unwatched.len();
        let is_unfinished = |entry: &Unwatched| {
            !entry.is_ending && matches!(self.stage(entry.place), Stage::Armed | Stage::Tail)
        };
        // Unfinished flows of a process that has handed over and then died.
        let are_orphans = unwatched.iter().any(is_unfinished) && !self.locks.have_elder();
        unwatched.retain_mut(|entry| {
            if !can_ask {
                entry.attention = Attention::new(now);
            }
            if entry.rests(now, linger) || !self.is_over(entry, now, linger, are_orphans) {
                return true;
            }
            self.end(entry.place);
            false
        });
        Swept { open: unwatched.len(), ended: before - unwatched.len() }
    }

    fn is_over(&self, entry: &mut Unwatched, now: Instant, linger: Duration, are_orphans: bool) -> bool {
        let segments = self.segments(entry.place);
        if segments != entry.segments {
            (entry.segments, entry.quiet_since) = (segments, now);
        }
        let is_quiet = now.saturating_duration_since(entry.quiet_since) >= linger;
        let stage = self.stage(entry.place);
        entry.is_ending = is_ending(stage);
        match stage {
            Stage::Closing | Stage::Dead => is_quiet,
            Stage::Spliced if self.at(entry.place).has_lost_its_way() => true,
            Stage::Spliced => match entry.attention.look(segments, now) {
                Care::Nothing => false,
                Care::Ask(side) => {
                    lock(&self.questions).push(self.at(entry.place).question(entry.place, side));
                    false
                }
                Care::Gone(_) => true,
            },
            // Another flow may have its keys by now, or a killed process has left them.
            Stage::Gone | Stage::Free => true,
            Stage::Armed | Stage::Tail => are_orphans,
        }
    }

    fn segments(&self, place: u32) -> [u64; 2] {
        self.at(place).faces.each_ref().map(|face| face.segments.load(Ordering::Relaxed))
    }

    /// Ends a flow that was let go.
    fn end(&self, place: u32) {
        match self.stage(place) {
            // The owner gives the place back.
            Stage::Closing | Stage::Dead if self.is_guest() => _ = self.make_room(place),
            _ if self.is_guest() => {}
            Stage::Free => self.put_back(place),
            Stage::Spliced | Stage::Tail => self.remove_unattended(place),
            Stage::Armed | Stage::Closing | Stage::Dead | Stage::Gone => _ = self.remove(place),
        }
    }

    /// Whether flows that nobody watches go on.
    pub fn has_unwatched(&self) -> bool {
        !lock(&self.unwatched).is_empty()
    }

    /// Questions to send to silent peers of flows that nobody watches.
    pub fn questions(&self) -> Vec<Question> {
        std::mem::take(&mut *lock(&self.questions))
    }

    /// Has splice_out learn the route to a peer from the socket that asks it: the flow's segments then leave
    /// by the same device (`face->device`).
    pub fn speaks(&self, question: &Question, socket: BorrowedFd<'_>) {
        // If it fails, they leave by the same device as before.
        let _ = lock(&self.sockets).insert(&socket.as_raw_fd(), question.place, 0);
    }

    /// The flows that were let go and go on, for tests.
    pub fn unended(&self) -> Vec<String> {
        lock(&self.unwatched).iter().map(|entry| format!("{:?}", self.at(entry.place))).collect()
    }

    /// Removes the keys, then the flow: its packets are the kernel's again. Returns the last known state of
    /// its connections; `None` if a new connection has taken the addresses. Even then the keys are removed: a
    /// process that made room may have been killed before it did that. The new connection's keys lead to
    /// another place, so they stay.
    pub(in crate::splice) fn remove(&self, place: u32) -> Option<[Unattended; 2]> {
        let was = self.at(place).stage.swap(Stage::Gone as u32, Ordering::AcqRel);
        let last = (was != Stage::Gone as u32).then(|| self.at(place).connections());
        self.remove_keys(place);
        self.put_back(place);
        last
    }

    pub(super) fn remove_unattended(&self, place: u32) {
        let last = self.remove(place);
        lock(&self.unattended).extend(last.map(|last| (place, last)));
    }

    /// The flow's sockets are closed; it is swept from now on.
    pub(in crate::splice) fn sweep_later(&self, place: u32) {
        let now = Instant::now();
        let (segments, is_ending) = (self.segments(place), is_ending(self.stage(place)));
        let attention = Attention::new(now);
        lock(&self.unwatched).push(Unwatched { place, segments, quiet_since: now, is_ending, attention });
    }
}

fn is_ending(stage: Stage) -> bool {
    matches!(stage, Stage::Closing | Stage::Dead)
}
