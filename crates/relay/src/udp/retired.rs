//! Keeps the source ports of forgotten flows from being reused too early.
//!
//! Where truepeer is the sender and only a flow's first datagram has a header, the receiver identifies the
//! flow by truepeer's port. The receiver forgets it later than truepeer does. If the kernel reused the port
//! for another client's flow before that, the receiver would take it for the old client.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use truepeer_session::budget::Permit;

/// Longer than a receiver remembers a flow after truepeer has forgotten it: Spectrum and frp use 30 s in
/// total, truepeer 28 s.
const REST: Duration = Duration::from_secs(30);

/// A socket that only keeps its port.
#[derive(Debug)]
struct Resting {
    until: Instant,
    _socket: OwnedFd,
    _permit: Permit,
}

/// The retired ports, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Retired(VecDeque<Resting>);

impl Retired {
    /// Keeps the port of `socket`, which is no longer watched.
    pub(crate) fn add(&mut self, socket: OwnedFd, permit: Permit, now: Instant) {
        self.0.push_back(Resting { until: now + REST, _socket: socket, _permit: permit });
    }

    /// Releases the ports whose time has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|until| until <= now) {
            self.0.pop_front();
        }
    }

    /// Releases the oldest port early. `false` if there is none.
    pub(crate) fn make_room(&mut self) -> bool {
        self.0.pop_front().is_some()
    }

    /// When the next port is released.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|resting| resting.until)
    }
}
