//! The stage in which bytes move: two halves, and how their ends end the session.
//!
//! FIN in one half leaves the other one working. A reset is passed on as a reset. Bytes sent before it are
//! delivered first, as they would be without truepeer, but for at most [`RESET_GRACE`].

use std::time::{Duration, Instant};

use rustix::io::Errno;
use truepeer_policy::{HeaderError, HeaderRule, LATE_BYTES, Opening};
use truepeer_session::CloseReason;
use truepeer_session::settings::{ListenerSettings, SpliceAfter};
use truepeer_splice::{Reason, Streams, Turn};

use super::half::{Backlog, End, Half, PumpContext, Pumped};
use crate::io::{FlowOf, Io, Readiness};
use crate::leaving::Leaving;

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
    /// For the acknowledgement of the bytes before a reset: check again after [`RESET_CHECK`], and give up
    /// after [`RESET_GRACE`].
    Resetting,
    /// The same. The next check is already scheduled, and no event postpones it.
    StillResetting,
    /// It leaves user space: look again after this [check](crate::leaving::check)'s time.
    Leaving(u8),
    /// It can close its sockets.
    Left,
}

/// A session that relays.
pub(crate) struct Relaying<I: Io> {
    downstream: End<I::Socket>,
    upstream: End<I::Socket>,
    up: Half<I::Pipe>,
    down: Half<I::Pipe>,
    /// The end whose connection broke first.
    broken: Option<Side>,
    /// Checks for the acknowledgement, each [`RESET_CHECK`] after the one before.
    reset_checks: u32,
    reset_check_due: bool,
    leaving: Option<Box<Leaving<I::Offload>>>,
    /// Why it stays, if it has tried to leave, and its age then.
    stays: Option<(Reason, Duration)>,
    /// Nothing is written to this end: what it has must be sent first.
    hold: Option<Side>,
    /// The sender was silent, and its first bytes may be a header: they stay in the kernel until that is
    /// decided.
    awaits_late_bytes: bool,
}

impl<I: Io> Relaying<I> {
    /// Starts; `first` holds the bytes after the header.
    pub(crate) fn new(downstream: End<I::Socket>, upstream: End<I::Socket>, first: Backlog) -> Self {
        let up = Half::starting_with(first);
        Self {
            downstream,
            upstream,
            up,
            down: Half::new(),
            broken: None,
            reset_checks: 0,
            reset_check_due: false,
            leaving: None,
            stays: None,
            hold: None,
            awaits_late_bytes: false,
        }
    }

    /// The sender was silent, so its first bytes are [judged](Self::judge_late_bytes) before they move.
    pub(crate) fn await_late_bytes(&mut self) {
        self.awaits_late_bytes = true;
    }

    /// Judges the first bytes of a sender that was silent, once there are some.
    ///
    /// # Errors
    /// They are a header, which would reach the backend as data.
    pub(crate) fn judge_late_bytes(
        &mut self,
        io: &mut I,
        settings: &ListenerSettings,
    ) -> Result<(), HeaderError> {
        while self.awaits_late_bytes && self.downstream.ready.readable {
            let ready = &mut self.downstream.ready;
            let mut bytes = [0; LATE_BYTES];
            let length = match io.peek(&self.downstream.socket, &mut bytes) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                // After an error no more bytes come.
                Err(Errno::AGAIN) if !ready.error => {
                    ready.readable = false;
                    break;
                }
                Err(_) => {
                    // This call took the connection's error: the next read would find an orderly end.
                    ready.error = true;
                    0
                }
            };
            match settings.header_reader(HeaderRule::Optional).on_late_bytes(&bytes[..length]) {
                Opening::Refused(error) => return Err(error),
                // After an end no more bytes come, and a peek does not pass an urgent one.
                Opening::NeedMore if length > 0 && !ready.ending && !ready.urgent => ready.readable = false,
                _ => self.awaits_late_bytes = false,
            }
        }
        Ok(())
    }

    /// The number of bytes delivered up and down.
    pub(crate) fn delivered_bytes(&self) -> (u64, u64) {
        (self.up.delivered_bytes(), self.down.delivered_bytes())
    }

    /// The connection to the backend.
    pub(crate) fn upstream(&self) -> &I::Socket {
        &self.upstream.socket
    }

    /// Notes what an event says.
    pub(crate) fn note(&mut self, side: Side, event: Readiness) {
        self.end(side).ready.merge(event);
        if event.error {
            self.broken.get_or_insert(side);
        }
    }

    fn end(&mut self, side: Side) -> &mut End<I::Socket> {
        match side {
            Side::Downstream => &mut self.downstream,
            Side::Upstream => &mut self.upstream,
        }
    }

    /// Moves the bytes that can be moved.
    pub(crate) fn run(&mut self, cx: &mut PumpContext<'_, I>) -> Result<Progress, CloseReason> {
        // After the cut close() says nothing, so the last end must be passed on before.
        let is_cut = self.is_cut();
        let up = match self.hold {
            Some(Side::Upstream) => Pumped::Blocked,
            _ if self.awaits_late_bytes => Pumped::Blocked,
            _ => {
                let is_last = self.down.is_finished() && !is_cut;
                self.up.pump(cx, &mut self.downstream, &mut self.upstream, is_last)
            }
        };
        let down = match self.hold {
            Some(Side::Downstream) => Pumped::Blocked,
            _ => {
                let is_last = self.up.is_finished() && !is_cut;
                self.down.pump(cx, &mut self.upstream, &mut self.downstream, is_last)
            }
        };
        if let Some(side) = self.broken_by(up, down) {
            if self.awaits_late_bytes && side == Side::Downstream {
                // Its last bytes must be judged before they are passed on.
                self.downstream.ready.merge(Readiness { writable: false, ..Readiness::BROKEN });
                return Ok(Progress::TurnOver);
            }
            return self.pass_the_reset_on(cx, side);
        }
        match (up, down) {
            (Pumped::Finished, Pumped::Finished) if !is_cut => Err(CloseReason::Finished),
            (Pumped::TurnOver, _) | (_, Pumped::TurnOver) => Ok(Progress::TurnOver),
            _ => Ok(Progress::Waiting),
        }
    }

    /// Why it stays in user space, if it has tried to leave.
    pub(crate) fn stays(&self) -> Option<Reason> {
        self.stays.map(|(reason, _)| reason)
    }

    /// Whether bytes are translated already: then it can't stay.
    pub(crate) fn is_cut(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.is_cut())
    }

    /// The time since something last moved, while it leaves.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        self.leaving.as_ref().map_or(Duration::ZERO, |leaving| leaving.silence(now))
    }

    /// Begins to leave user space if that is worth it by now, or goes on with it. `Ok` of `None`: it stays.
    ///
    /// # Errors
    /// A connection broke after the cut: the bytes on their way are lost, so both are reset.
    pub(crate) fn leave(
        &mut self,
        io: &I,
        after: Option<SpliceAfter>,
        age: Duration,
        now: Instant,
    ) -> Result<Option<Progress>, CloseReason> {
        if self.leaving.is_none() {
            if !self.is_worth_leaving(after, age) {
                return Ok(None);
            }
            if after.is_some_and(|after| after.is_marked) {
                self.stays = Some((Reason::Mark, age));
                return Ok(None);
            }
            let ends = [self.downstream.ready, self.upstream.ready];
            if ends.iter().any(|ready| ready.urgent) {
                // A broken connection counts as urgent, too.
                self.stays = (!ends.iter().any(|ready| ready.error)).then_some((Reason::Urgent, age));
                return Ok(None);
            }
            let sockets = [&self.downstream.socket, &self.upstream.socket];
            match io.offload().and_then(|offload| Leaving::begin(offload, sockets, age, now)) {
                Ok(leaving) => self.leaving = Some(Box::new(leaving)),
                Err(reason) => self.stays = Some((reason, age)),
            }
        }
        let streams = self.streams();
        let sockets = [&self.downstream.socket, &self.upstream.socket];
        let Some(leaving) = &mut self.leaving else { return Ok(None) };
        let held = self.hold.take();
        let turn = match leaving.turn(sockets, &streams, now) {
            Ok(turn) => turn,
            Err(_) => return Err(CloseReason::ResetByBackend),
        };
        Ok(match turn {
            Turn::Offload => Some(Progress::Left),
            Turn::StayHere(reason) => {
                if let Some(leaving) = self.leaving.take() {
                    leaving.give_up(sockets);
                }
                self.stays = Some((reason, age));
                held.map(|_| Progress::TurnOver)
            }
            Turn::Hold(side) => {
                self.hold = Some(if side == 0 { Side::Downstream } else { Side::Upstream });
                Some(Progress::Leaving(leaving.next_check()))
            }
            // Write the bytes that were held back meanwhile: no event asks for it.
            Turn::Wait if held.is_some() => Some(Progress::TurnOver),
            Turn::Wait if leaving.is_listening() => None,
            Turn::Wait => Some(Progress::Leaving(leaving.next_check())),
        })
    }

    fn is_worth_leaving(&self, after: Option<SpliceAfter>, age: Duration) -> bool {
        let Some(after) = after else { return false };
        let (up, down) = self.delivered_bytes();
        // Each further try comes when the session is twice as old as at the last one.
        let may = self.stays.is_none_or(|(reason, then)| reason.may_pass() && age >= 2 * then);
        may && self.broken.is_none()
            && !self.awaits_late_bytes
            && !self.up.has_ended()
            && !self.down.has_ended()
            && (up + down >= after.bytes || age >= after.age)
    }

    fn streams(&self) -> Streams {
        Streams {
            written: [self.down.delivered_bytes(), self.up.delivered_bytes()],
            held: [self.down.held_bytes(), self.up.held_bytes()],
            ended: [self.up.has_ended(), self.down.has_ended()],
            end_written: [self.up.is_finished(), self.down.is_finished()],
        }
    }

    /// Closes the sockets silently. `None`: it does not leave.
    pub(crate) fn release(self) -> Option<FlowOf<I>> {
        let leaving = self.leaving?;
        Some(leaving.release([self.downstream.socket, self.upstream.socket]))
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
    fn pass_the_reset_on(
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
    pub(crate) fn check_reset(&mut self, cx: &mut PumpContext<'_, I>) -> Result<Progress, CloseReason> {
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
    pub(crate) fn cut(&self, io: &mut I) {
        if self.up.owes(&self.downstream) {
            io.reset_when_closed(&self.upstream.socket);
        }
        if self.down.owes(&self.upstream) {
            io.reset_when_closed(&self.downstream.socket);
        }
    }

    /// Makes the close of both connections a reset.
    pub(crate) fn reset(&self, io: &mut I) {
        io.reset_when_closed(&self.downstream.socket);
        io.reset_when_closed(&self.upstream.socket);
    }
}
