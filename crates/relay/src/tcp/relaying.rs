//! The stage in which bytes move: two halves, and how their ends end the session.
//!
//! FIN in one half leaves the other one working. A reset is passed on as a reset. Bytes sent before it are
//! delivered first, as they would be without truepeer, but for at most [`RESET_GRACE`].

use std::time::Duration;

use truepeer_session::CloseReason;

use super::half::{Backlog, End, Half, PumpContext, Pumped};
use crate::io::{Io, Readiness};

/// How long a reset waits for the other end to acknowledge the bytes before it.
const RESET_GRACE: Duration = Duration::from_secs(1);
/// How often to check for the acknowledgement: there is no event for it.
pub(crate) const RESET_CHECK: Duration = Duration::from_millis(20);

/// The two ends of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Downstream,
    Upstream,
}

/// What the session waits for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// An event.
    Waiting,
    /// Another turn.
    TurnOver,
    /// For the acknowledgement of the bytes before a reset: check again after [`RESET_CHECK`], and give up after
    /// [`RESET_GRACE`].
    Resetting,
    /// The same. The next check is already scheduled, and no event postpones it.
    StillResetting,
}

/// A session that relays.
#[derive(Debug)]
pub(crate) struct Relaying<S, P> {
    downstream: End<S>,
    upstream: End<S>,
    up: Half<P>,
    down: Half<P>,
    /// The end whose connection broke first.
    broken: Option<Side>,
    /// Checks for the acknowledgement, each [`RESET_CHECK`] after the one before.
    reset_checks: u32,
    reset_check_due: bool,
}

impl<S, P> Relaying<S, P> {
    /// Starts; `first` holds the bytes after the header.
    pub(crate) fn new(downstream: End<S>, upstream: End<S>, first: Backlog) -> Self {
        let up = Half::starting_with(first);
        Self {
            downstream,
            upstream,
            up,
            down: Half::new(),
            broken: None,
            reset_checks: 0,
            reset_check_due: false,
        }
    }

    /// The number of bytes delivered up and down.
    pub(crate) fn delivered_bytes(&self) -> (u64, u64) {
        (self.up.delivered_bytes(), self.down.delivered_bytes())
    }

    /// Notes what an event says.
    pub(crate) fn note(&mut self, side: Side, event: Readiness) {
        self.end(side).ready.merge(event);
        if event.error {
            self.broken.get_or_insert(side);
        }
    }

    fn end(&mut self, side: Side) -> &mut End<S> {
        match side {
            Side::Downstream => &mut self.downstream,
            Side::Upstream => &mut self.upstream,
        }
    }

    /// Moves the bytes that can be moved.
    pub(crate) fn run<I: Io<Socket = S, Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
    ) -> Result<Progress, CloseReason> {
        let up = self.up.pump(cx, &mut self.downstream, &mut self.upstream, self.down.is_finished());
        let down = self.down.pump(cx, &mut self.upstream, &mut self.downstream, self.up.is_finished());
        if let Some(side) = self.broken_by(up, down) {
            return self.pass_the_reset_on(cx, side);
        }
        match (up, down) {
            (Pumped::Finished, Pumped::Finished) => Err(CloseReason::Finished),
            (Pumped::TurnOver, _) | (_, Pumped::TurnOver) => Ok(Progress::TurnOver),
            _ => Ok(Progress::Waiting),
        }
    }

    fn broken_by(&mut self, up: Pumped, down: Pumped) -> Option<Side> {
        if up == Pumped::SourceReset || down == Pumped::SinkBroken {
            self.broken.get_or_insert(Side::Downstream);
        }
        if down == Pumped::SourceReset || up == Pumped::SinkBroken {
            self.broken.get_or_insert(Side::Upstream);
        }
        self.broken
    }

    /// One end is gone. Deliver what it sent before, and discard what was meant for it.
    fn pass_the_reset_on<I: Io<Socket = S, Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        broken: Side,
    ) -> Result<Progress, CloseReason> {
        let (from_broken, to_broken, source, sink, reason) = match broken {
            Side::Downstream => {
                let ends = (&mut self.downstream, &mut self.upstream);
                (&mut self.up, &mut self.down, ends.0, ends.1, CloseReason::ResetByClient)
            }
            Side::Upstream => {
                let ends = (&mut self.upstream, &mut self.downstream);
                (&mut self.down, &mut self.up, ends.0, ends.1, CloseReason::ResetByBackend)
            }
        };
        to_broken.abandon();
        source.ready.merge(Readiness { writable: false, ..Readiness::BROKEN });
        let undelivered = match from_broken.pump(cx, source, sink, false) {
            Pumped::TurnOver => return Ok(Progress::TurnOver),
            Pumped::Blocked => true,
            Pumped::SourceReset | Pumped::Finished => cx.io.unacknowledged(&sink.socket) > 0,
            Pumped::SinkBroken => false,
        };
        if !undelivered {
            return Err(reason);
        }
        let due = std::mem::replace(&mut self.reset_check_due, true);
        Ok(if due { Progress::StillResetting } else { Progress::Resetting })
    }

    /// [`RESET_CHECK`] has passed: checks again, unless the grace is over.
    pub(crate) fn check_reset<I: Io<Socket = S, Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
    ) -> Result<Progress, CloseReason> {
        self.reset_checks += 1;
        self.reset_check_due = false;
        if RESET_CHECK * self.reset_checks < RESET_GRACE {
            return self.run(cx);
        }
        Err(match self.broken {
            Some(Side::Upstream) => CloseReason::ResetByBackend,
            _ => CloseReason::ResetByClient,
        })
    }

    /// Makes the close of a connection a reset if bytes for it are left: FIN would claim that the data is
    /// complete.
    pub(crate) fn cut<I: Io<Socket = S>>(&self, io: &mut I) {
        if self.up.owes(&self.downstream) {
            io.reset_when_closed(&self.upstream.socket);
        }
        if self.down.owes(&self.upstream) {
            io.reset_when_closed(&self.downstream.socket);
        }
    }

    /// Makes the close of both connections a reset.
    pub(crate) fn reset<I: Io<Socket = S>>(&self, io: &mut I) {
        io.reset_when_closed(&self.downstream.socket);
        io.reset_when_closed(&self.upstream.socket);
    }
}
