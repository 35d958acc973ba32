//! One flow, until its sockets are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::layout::{CUT, FIN_SAID, FIN_TAKEN, Face, HELD, SAID, Stage, TOLD, TS_SHIFT, WAY, key_of};
use super::table::{ArmError, Side, Splices, boot_ns};
use super::watched::Watched;

/// A session's flow while its sockets stand. Dropped before it is [offloaded](Flow::offload), it is removed:
/// its packets are the kernel's again.
pub struct Flow {
    splices: Arc<Splices>,
    place: u32,
    is_offloaded: bool,
}

/// Which peers' ends (FIN) have passed through the sockets, and were acknowledged.
pub type Ended = [bool; 2];

impl Flow {
    pub(super) fn new(splices: Arc<Splices>, place: u32) -> Self {
        Self { splices, place, is_offloaded: false }
    }

    fn face(&self, side: usize) -> &Face {
        &self.splices.at(self.place).faces[side]
    }

    /// Whether the programs have heard both our socket and its peer: then they know what a segment may say,
    /// and the clocks.
    pub fn is_heard(&self, side: usize) -> bool {
        let face = self.face(side);
        let needs_clock = face.has_timestamps.load(Ordering::Relaxed) != 0;
        let wanted = TOLD | SAID | WAY | if needs_clock { TS_SHIFT } else { 0 };
        face.known.load(Ordering::Acquire) & wanted == wanted && face.device.load(Ordering::Relaxed) != 0
    }

    /// The devices by which our segments leave to each peer.
    pub fn devices(&self) -> [u32; 2] {
        [0, 1].map(|side| self.face(side).device.load(Ordering::Relaxed))
    }

    /// Notes the session's age, for a later process that finds the flow.
    pub fn set_age(&self, age: Duration) {
        self.splices.at(self.place).since_ns.store(boot_ns(age), Ordering::Relaxed);
    }

    /// Where the flow stands.
    pub fn stage(&self) -> Stage {
        self.splices.stage(self.place)
    }

    /// Bytes of both peers' streams since the session began; 0 before the cut.
    pub fn stream_bytes(&self) -> u64 {
        let faces = self.splices.at(self.place).faces.iter();
        faces.filter(|face| face.known.load(Ordering::Acquire) & CUT != 0).map(Face::stream_bytes).sum()
    }

    /// From now on no peer is offered more than the other one takes: numbers of the one are by `shifts`
    /// higher on the other's connection.
    pub fn hold(&self, shifts: [u32; 2]) {
        for (side, shift) in shifts.into_iter().enumerate() {
            let face = self.face(side);
            face.shift.store(shift, Ordering::Relaxed);
            face.known.fetch_or(HELD, Ordering::Release);
        }
    }

    /// Whether neither peer has been offered more than the other one takes. Rounding up may make it false
    /// again, by less than a step of our scale at a time (`held_window()`).
    pub fn offers_fit(&self) -> bool {
        [0, 1].into_iter().all(|side: usize| {
            let (face, other) = (self.face(side), self.face(1 - side));
            let taken =
                other.said_edge.load(Ordering::Relaxed).wrapping_sub(face.shift.load(Ordering::Relaxed));
            taken.wrapping_sub(face.edge.load(Ordering::Relaxed)).cast_signed() >= 0
        })
    }

    /// Whether each peer's windows survive the rounding to the scale that the other peer was told.
    pub fn scales_fit(&self) -> bool {
        /// The fewest steps of that scale in a peer's widest window: a narrower one would lose too much, or
        /// all.
        const STEPS: u64 = 4;
        [0, 1].into_iter().all(|side: usize| {
            let step = 1 << self.face(side).own_scale.load(Ordering::Relaxed);
            u64::from(self.face(1 - side).max_window.load(Ordering::Relaxed)) >= STEPS * step
        })
    }

    /// From now on each peer's bytes from `cuts` on are translated, by the shifts of [`Flow::hold`]. `bytes`:
    /// the length of each stream before that.
    pub fn cut(&self, cuts: [u32; 2], bytes: [u64; 2]) {
        for (side, (cut, bytes)) in cuts.into_iter().zip(bytes).enumerate() {
            let face = self.face(side);
            face.count_from(cut, bytes);
            face.cut.store(cut, Ordering::Relaxed);
            face.kept.store(cut, Ordering::Relaxed);
            face.known.fetch_or(CUT, Ordering::Relaxed);
        }
        self.splices.at(self.place).stage.store(Stage::Tail as u32, Ordering::Release);
        for side in 0..2 {
            let face = self.face(side);
            raise(&face.cut, face.end_number());
        }
    }

    /// The socket of this side has its peer's bytes up to `next`.
    pub fn keep(&self, side: usize, next: u32) {
        let face = self.face(side);
        raise(&face.kept, next);
        face.raise_end(next);
    }

    /// Whether the peer has acknowledged everything up to this number.
    pub fn has_acknowledged(&self, side: usize, number: u32) -> bool {
        let face = self.face(side);
        let said = face.known.load(Ordering::Acquire) & SAID != 0;
        said && face.una.load(Ordering::Relaxed).wrapping_sub(number).cast_signed() >= 0
    }

    /// Up to where the peer's bytes are the socket's.
    pub fn kept(&self, side: usize) -> u32 {
        self.face(side).kept.load(Ordering::Relaxed)
    }

    /// The sockets have delivered everything: all is translated. False: the flow has moved on by itself.
    pub fn all_is_delivered(&self, ended: Ended) -> bool {
        for (side, _) in ended.iter().enumerate().filter(|(_, has_ended)| **has_ended) {
            let face = self.face(side);
            face.fin.store(face.kept.load(Ordering::Relaxed), Ordering::Relaxed);
            face.known.fetch_or(FIN_SAID | FIN_TAKEN, Ordering::Release);
        }
        let moved = self.advance(Stage::Tail, Stage::Spliced);
        // Each end came through a socket, or was translated while the sockets still delivered.
        let is_taken = |side: usize| self.face(side).known.load(Ordering::Acquire) & FIN_TAKEN != 0;
        if is_taken(0) && is_taken(1) {
            self.advance(Stage::Spliced, Stage::Closing);
        }
        moved
    }

    /// Something has come to a socket after all. False: the flow has ended meanwhile.
    pub fn back_to_tail(&self) -> bool {
        self.advance(Stage::Spliced, Stage::Tail)
    }

    /// Its sockets are closed.
    pub fn offload(mut self) -> Watched {
        self.is_offloaded = true;
        Watched::new(Arc::clone(&self.splices), self.place)
    }

    fn advance(&self, from: Stage, to: Stage) -> bool {
        let stage = &self.splices.at(self.place).stage;
        stage.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Splices {
    /// Begins a flow of the session whose downstream and upstream connections these are.
    ///
    /// # Errors
    /// See [`ArmError`]. Then nothing was begun.
    pub fn arm(self: &Arc<Self>, sides: [Side<'_>; 2]) -> Result<Flow, ArmError> {
        // A guest has no free place.
        let place = self.take_place().ok_or(ArmError::Full)?;
        let keys = sides.map(|side| key_of(side.peer, side.own));
        let flow = self.at(place);
        for ((face, side), key) in flow.faces.iter().zip(&sides).zip(&keys) {
            face.begin(key, side.peer_scale, side.own_scale, side.has_timestamps);
        }
        flow.since_ns.store(boot_ns(Duration::ZERO), Ordering::Relaxed);
        flow.stage.store(Stage::Armed as u32, Ordering::Release);
        match self.insert(place, &sides, &keys) {
            Ok(()) => Ok(Flow::new(Arc::clone(self), place)),
            Err(error) => {
                flow.stage.store(Stage::Free as u32, Ordering::Release);
                self.give_back(place);
                Err(error)
            }
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.is_offloaded {
            // Its sockets are open, so no peer needs a reset.
            let _ = self.splices.remove(self.place);
        }
    }
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").field("place", &self.place).field("flow", self.splices.at(self.place)).finish()
    }
}

/// In the order of sequence numbers.
fn raise(number: &AtomicU32, to: u32) {
    // Err: it is as high already.
    let _ = number.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
        (to.wrapping_sub(now).cast_signed() > 0).then_some(to)
    });
}
