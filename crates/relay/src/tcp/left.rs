//! A session that has left user space: no socket, no buffer. Its flow in the kernel is looked at now and then.

use std::time::{Duration, Instant};

use truepeer_session::CloseReason;
use truepeer_splice::{Stage, Watched};

/// How often the flow is looked at. Its end is logged at most so much later.
pub(crate) const LEFT_CHECK: Duration = Duration::from_secs(1);

/// The session.
#[derive(Debug)]
pub(crate) struct Left {
    watched: Watched,
    /// Bytes that were relayed before: up, down.
    before: (u64, u64),
    /// Bytes that the counters have: up, down.
    pub(crate) counted: (u64, u64),
    /// Segments at the last look that found more than the one before.
    segments: u64,
    moved_at: Instant,
}

impl Left {
    pub(crate) fn new(watched: Watched, before: (u64, u64), now: Instant) -> Self {
        Self { watched, before, counted: before, segments: 0, moved_at: now }
    }

    /// The number of bytes delivered up and down.
    pub(crate) fn delivered_bytes(&self) -> (u64, u64) {
        let [up, down] = self.watched.bytes();
        (self.before.0 + up, self.before.1 + down)
    }

    /// Why it has ended, if it has.
    pub(crate) fn look(&mut self, idle_timeout: Option<Duration>, now: Instant) -> Option<CloseReason> {
        match self.watched.stage() {
            Stage::Dead if self.watched.reset_by() == Some(1) => return Some(CloseReason::ResetByBackend),
            Stage::Dead => return Some(CloseReason::ResetByClient),
            Stage::Closing | Stage::Gone | Stage::Free => return Some(CloseReason::Finished),
            Stage::Armed | Stage::Tail | Stage::Spliced => {}
        }
        let segments = self.watched.segments();
        if segments != self.segments {
            (self.segments, self.moved_at) = (segments, now);
        }
        let silent = now.saturating_duration_since(self.moved_at);
        idle_timeout.is_some_and(|most| silent >= most).then_some(CloseReason::Idle)
    }

    pub(crate) fn into_watched(self) -> Watched {
        self.watched
    }
}
