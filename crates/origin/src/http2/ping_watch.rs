//! Notices an origin that has gone silent.

use std::task::Context;
use std::time::{Duration, Instant};

use truepeer_stream::reactor::{Reactor, Timer};

/// The pause after a PING whose acknowledgement was all that came, in silences that are the usual reason to
/// ask: 5 minutes. gRPC's servers end a connection with four PINGs that came sooner, unless they have sent
/// data between them.
const PATIENCE: u32 = 30;
/// How many PINGs follow each other sooner. Only a new request is a reason for the second one.
const MOST_EARLY: u32 = 2;
/// The length of a PING frame.
const PING_BYTES: u64 = 17;

/// Asks a silent origin for a sign of life (PING) once a request waits for it, until something comes. It goes
/// on when the request's client leaves: otherwise clients that wait for less than the time limit would try a
/// dead connection one after the other.
pub(super) struct PingWatch {
    reactor: Reactor,
    timer: Timer,
    silent_for: Duration,
    /// Bytes received, and when the last of them came.
    received: u64,
    heard_at: Instant,
    /// Requests that had begun by then.
    heard_of: u32,
    is_waiting: bool,
    has_asked: bool,
    /// PINGs since anything but their acknowledgements came.
    asked: u32,
    /// Bytes received, and requests begun, when the last PING was sent.
    asked_at: (u64, u32),
    /// The timer was set for the longer pause.
    is_patient: bool,
}

impl PingWatch {
    pub(super) fn new(reactor: &Reactor, silent_for: Duration) -> Self {
        Self {
            reactor: reactor.clone(),
            timer: reactor.timer(),
            silent_for,
            received: 0,
            heard_at: reactor.now(),
            heard_of: 0,
            is_waiting: false,
            has_asked: false,
            asked: 0,
            asked_at: (0, 0),
            is_patient: false,
        }
    }

    /// Waits for the next reason to ask.
    fn arm(&mut self, begun: u32) {
        let is_early = self.asked == 0 || (self.asked < MOST_EARLY && begun != self.asked_at.1);
        self.is_patient = !is_early;
        self.timer.arm(if is_early { self.silent_for } else { self.silent_for * PATIENCE });
    }

    fn note_ask(&mut self, begun: u32) {
        // After the longer pause, a new request may be a reason to ask sooner again.
        self.asked = if self.is_patient { 1 } else { self.asked + 1 };
        self.asked_at = (self.received, begun);
        self.has_asked = true;
        self.is_patient = false;
    }

    pub(super) fn silent_for(&self) -> Duration {
        self.silent_for
    }

    /// `begun`: the requests so far, of which `open` have not ended; `received`: the bytes so far. `ask`
    /// sends a PING. Returns `false` if the origin has not answered in time.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        begun: u32,
        open: u32,
        received: u64,
        ask: impl Fn(),
    ) -> bool {
        let has_come = self.received != received;
        if has_come {
            self.received = received;
            self.heard_at = self.reactor.now();
            self.heard_of = begun;
            self.has_asked = false;
            if received - self.asked_at.0 > PING_BYTES {
                self.asked = 0;
            }
        }
        let was_waiting = std::mem::replace(&mut self.is_waiting, open > 0 || begun != self.heard_of);
        if !self.is_waiting {
            if was_waiting {
                self.timer.disarm();
            }
            return true;
        }
        if self.is_patient && self.asked < MOST_EARLY && begun != self.asked_at.1 {
            self.arm(begun);
        }
        if has_come || !was_waiting {
            self.arm(begun);
            // A router on the way may have forgotten a connection that was idle for so long.
            if self.reactor.now().saturating_duration_since(self.heard_at) > self.silent_for {
                ask();
                self.note_ask(begun);
                self.timer.arm(self.silent_for);
            }
        }
        if self.timer.poll_expired(cx).is_pending() {
            return true;
        }
        if self.has_asked {
            return false;
        }
        ask();
        self.note_ask(begun);
        self.timer.arm(self.silent_for);
        // Store the waker for the new deadline.
        self.timer.poll_expired(cx).is_pending()
    }
}
