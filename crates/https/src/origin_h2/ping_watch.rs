//! Notices an origin that has gone silent.

use std::task::Context;
use std::time::{Duration, Instant};

use crate::reactor::{Reactor, Timer};

/// Asks a silent origin for a sign of life (PING) once a request waits for it, until something comes. It goes on when the request's client
/// leaves: otherwise clients that wait for less than the time limit would try a dead connection one after the other.
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
        }
    }

    pub(super) fn silent_for(&self) -> Duration {
        self.silent_for
    }

    /// `begun`: the requests so far, of which `open` have not ended; `received`: the bytes so far. `ask` sends a PING. Returns `false` if the
    /// origin has not answered in time.
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
        }
        let was_waiting = std::mem::replace(&mut self.is_waiting, open > 0 || begun != self.heard_of);
        if !self.is_waiting {
            if was_waiting {
                self.timer.disarm();
            }
            return true;
        }
        if has_come || !was_waiting {
            self.timer.arm(self.silent_for);
            // A router on the way may have forgotten a connection that was idle for so long.
            if self.reactor.now().saturating_duration_since(self.heard_at) > self.silent_for {
                ask();
                self.has_asked = true;
            }
        }
        if self.timer.poll_expired(cx).is_pending() {
            return true;
        }
        if std::mem::replace(&mut self.has_asked, true) {
            return false;
        }
        ask();
        self.timer.arm(self.silent_for);
        // Store the waker for the new deadline.
        self.timer.poll_expired(cx).is_pending()
    }
}
