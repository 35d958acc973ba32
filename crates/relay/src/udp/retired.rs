//! Keeps the source ports of forgotten flows from being reused for a while.
//!
//! Where we are the sender and only a flow's first datagram has a header, the receiver knows the rest by our port. It
//! forgets later than we do; a port that the kernel gave to another client's flow before that would still stand for the
//! old client.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use truepeer_session::budget::Permit;

/// Longer than a receiver remembers after we have forgotten: Spectrum's and frp's peers are told 30 s in all, ours 28 s.
const REST: Duration = Duration::from_secs(30);

/// A socket that only keeps its port.
#[derive(Debug)]
struct Resting {
    until: Instant,
    _socket: OwnedFd,
    _permit: Permit,
}

/// The ports at rest, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Retired(VecDeque<Resting>);

impl Retired {
    /// Keeps the port of `socket`, which nobody watches any more.
    pub(crate) fn add(&mut self, socket: OwnedFd, permit: Permit, now: Instant) {
        self.0.push_back(Resting { until: now + REST, _socket: socket, _permit: permit });
    }

    /// Gives back the ports that have rested long enough.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|until| until <= now) {
            self.0.pop_front();
        }
    }

    /// Gives the oldest back early; `false` if there is none.
    pub(crate) fn make_room(&mut self) -> bool {
        self.0.pop_front().is_some()
    }

    /// When the next one is given back.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|resting| resting.until)
    }
}
