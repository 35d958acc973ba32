//! The calls that wait for a datagram ([`super::receiving`]).

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use truepeer_sys::seccomp::Notification;

/// How often waiting calls are checked. A signal waits at most this long.
pub(super) const PERIOD: Duration = Duration::from_millis(100);

/// The calls that wait for a datagram, by the cookie of their socket, longest first.
#[derive(Debug, Default)]
pub(super) struct Receiving(pub(super) HashMap<u64, VecDeque<WaitingReceive>>);

/// A call that receives.
#[derive(Debug)]
pub(super) struct WaitingReceive {
    pub(super) call: Notification,
    pub(super) socket: OwnedFd,
    /// The number of recvmmsg() messages received so far.
    pub(super) done: usize,
    /// How long it may wait for each datagram (SO_RCVTIMEO), and the deadline of the next.
    pub(super) limit: Option<Duration>,
    pub(super) deadline: Option<Instant>,
    /// recvmmsg()'s own time-out. It is checked only after each datagram (recvmmsg(2), BUGS).
    pub(super) until: Option<Instant>,
}

impl Receiving {
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.0.contains_key(&cookie)
    }

    /// The time until the next check.
    pub(super) fn limit(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.0.values().flatten().map(|waiting| waiting.deadline);
        deadlines
            .map(|deadline| {
                deadline.map_or(PERIOD, |deadline| deadline.saturating_duration_since(now).min(PERIOD))
            })
            .min()
    }
}
