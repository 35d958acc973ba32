//! A session that has left user space: no socket, no buffer. Its flow in the kernel is looked at now and
//! then.

use std::time::{Duration, Instant};

use truepeer_session::CloseReason;
use truepeer_splice::{Attention, Care, Stage};

use crate::offload::Flow;

/// The time between two looks at the flow. An end is logged at the next look, a reset at the second one
/// ([`Left::look_at_reset`]).
pub(crate) const LEFT_CHECK: Duration = Duration::from_secs(1);
/// While bytes move. The counters have them from a look on, and who watches them sees a steady rate.
pub(crate) const MOVING_CHECK: Duration = Duration::from_millis(250);

/// The session.
pub(crate) struct Left<F> {
    flow: F,
    /// Bytes that the counters include already: up, down.
    counted: (u64, u64),
    /// Bytes at the last look.
    bytes: [u64; 2],
    /// When a look last found more bytes.
    moved_at: Instant,
    /// Segments at the last look, if it found a reset.
    reset_at: Option<[u64; 2]>,
    attention: Attention,
    /// One peer is gone, and the other one does not know it.
    pub(crate) is_abandoned: bool,
}

impl<F: Flow> Left<F> {
    /// `counted`: bytes up and down that the counters include already.
    pub(crate) fn new(flow: F, counted: (u64, u64), now: Instant) -> Self {
        Self {
            flow,
            counted,
            bytes: [0, 0],
            moved_at: now,
            reset_at: None,
            attention: Attention::new(now),
            is_abandoned: false,
        }
    }

    /// The number of bytes delivered up and down.
    pub(crate) fn delivered_bytes(&self) -> (u64, u64) {
        let [up, down] = self.flow.bytes();
        (up, down)
    }

    /// The bytes since the last call.
    pub(crate) fn uncounted_bytes(&mut self) -> (u64, u64) {
        let (up, down) = self.delivered_bytes();
        let (up_before, down_before) = std::mem::replace(&mut self.counted, (up, down));
        (up.saturating_sub(up_before), down.saturating_sub(down_before))
    }

    /// Why it has ended, if it has.
    pub(crate) fn look(&mut self, idle_timeout: Option<Duration>, now: Instant) -> Option<CloseReason> {
        match self.flow.stage() {
            Stage::Dead => return self.look_at_reset(),
            // A new connection has the addresses already.
            Stage::Gone if self.flow.reset_by().is_some() => return Some(self.reset_by()),
            Stage::Closing | Stage::Gone | Stage::Free => return Some(CloseReason::Finished),
            Stage::Armed | Stage::Tail | Stage::Spliced => self.reset_at = None,
        }
        if self.flow.has_lost_its_way() {
            return Some(CloseReason::WayLost);
        }
        let bytes = self.flow.bytes();
        if bytes != self.bytes {
            (self.bytes, self.moved_at) = (bytes, now);
        }
        idle_timeout.is_some_and(|most| self.silence(now) >= most).then_some(CloseReason::Idle)
    }

    /// Whether to look again soon, after a look that has found `bytes`.
    pub(crate) fn moves(&self, bytes: (u64, u64)) -> bool {
        bytes != (0, 0) && self.reset_at.is_none()
    }

    /// How long no bytes have moved, as the looks have found.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved_at)
    }

    /// The side whose peer is to be asked, because it is silent. `can_ask`: whether it can be; if not, a
    /// silent peer may still be there.
    ///
    /// # Errors
    /// A peer is gone.
    pub(crate) fn attend(&mut self, can_ask: bool, now: Instant) -> Result<Option<usize>, CloseReason> {
        if !can_ask {
            self.attention = Attention::new(now);
        }
        match self.attention.look(self.flow.segments(), now) {
            Care::Nothing => Ok(None),
            Care::Ask(side) => Ok(Some(side)),
            Care::Gone(side) => {
                self.is_abandoned = true;
                Err(if side == 1 { CloseReason::ResetByBackend } else { CloseReason::ResetByClient })
            }
        }
    }

    /// The other peer may not believe the reset and go on. So the session has ended only if nothing more has
    /// come at the next look.
    fn look_at_reset(&mut self) -> Option<CloseReason> {
        let segments = self.flow.segments();
        let is_over = self.reset_at.replace(segments) == Some(segments);
        is_over.then(|| self.reset_by())
    }

    fn reset_by(&self) -> CloseReason {
        if self.flow.reset_by() == Some(1) { CloseReason::ResetByBackend } else { CloseReason::ResetByClient }
    }

    pub(crate) fn flow(&self) -> &F {
        &self.flow
    }

    pub(crate) fn into_flow(self) -> F {
        self.flow
    }
}
