//! Sessions that leave user space: their packets are translated in the kernel between their two connections, and both sockets are closed
//! silently. docs/internals/splice.md tells how.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use truepeer_splice::{Broken, Grace, Handover, Progress, Sockets, Splices, Streams, Turn, Watched, arm};
use truepeer_sys::repair;

/// An ended flow still translates for so long what is sent again.
const LINGER: Duration = Duration::from_secs(5);
/// How long a session may wait for the cut, once the programs have heard both peers.
const PATIENCE: Duration = Duration::from_secs(2);

/// After so many turns in which bytes moved the programs must have heard both peers, unless the session's packets pass other devices.
const TURNS: u32 = 200;

/// The kernel's programs, for all workers.
#[derive(Clone)]
pub struct Splicing {
    splices: Arc<Splices>,
    grace: Grace,
    swept_at: Arc<Mutex<Instant>>,
}

impl std::fmt::Debug for Splicing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Splicing")
    }
}

impl Splicing {
    /// With a thread that waits for grace periods.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(splices: Arc<Splices>) -> std::io::Result<Self> {
        Ok(Self { splices, grace: Grace::start()?, swept_at: Arc::new(Mutex::new(Instant::now())) })
    }

    /// Makes room where flows have ended, at most once a second.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut swept_at = self.swept_at.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(*swept_at) >= Duration::from_secs(1) {
            *swept_at = now;
            drop(swept_at);
            self.splices.sweep(now, LINGER);
        }
    }

    /// `None`: the session stays here.
    pub(crate) fn begin(&self, sockets: [BorrowedFd<'_>; 2]) -> Option<Leaving> {
        let armed = arm(&self.splices, &self.grace, sockets).ok()?;
        for socket in sockets {
            // Before Linux 5.14: the window may widen, and the cut waits longer.
            let _ = repair::set_receive_buffer_fixed(socket, true);
        }
        Some(Leaving {
            steps: Handover::default(),
            sockets: armed,
            held_since: None,
            began: Instant::now(),
            turns: 0,
        })
    }
}

/// A session on its way.
#[derive(Debug)]
pub struct Leaving {
    steps: Handover,
    sockets: Sockets,
    held_since: Option<Instant>,
    began: Instant,
    turns: u32,
}

impl Leaving {
    /// Whether the peers have to be heard first: nothing is to be done until one of them speaks.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.steps.progress() == Progress::Armed
    }

    /// Whether the cut was made: the session can't stay.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self.steps.progress(), Progress::Tail | Progress::Settling)
    }

    pub(crate) fn turn(
        &mut self,
        sockets: [BorrowedFd<'_>; 2],
        streams: &Streams,
        now: Instant,
    ) -> Result<Turn, Broken> {
        if self.steps.progress() == Progress::Held {
            let since = *self.held_since.get_or_insert(now);
            if now.saturating_duration_since(since) > PATIENCE {
                return Ok(Turn::StayHere("a peer was offered more than the other one takes, for too long"));
            }
        }
        self.turns += 1;
        let waited = now.saturating_duration_since(self.began);
        if self.is_listening() && self.turns > TURNS && waited > PATIENCE {
            return Ok(Turn::StayHere("its packets don't pass the programs"));
        }
        self.steps.turn(&mut self.sockets.with(sockets), streams)
    }

    /// The session stays: its sockets are as they were.
    pub(crate) fn give_up(self, sockets: [BorrowedFd<'_>; 2]) {
        for socket in sockets {
            // As before.
            let _ = repair::set_receive_buffer_fixed(socket, false);
        }
    }

    /// The caller closes the sockets now.
    pub(crate) fn finish(self, sockets: [impl AsFd; 2]) -> Watched {
        let [down, up] = &sockets;
        self.sockets.let_go([down.as_fd(), up.as_fd()])
    }
}

/// Ends a session that has left: both peers are reset.
pub(crate) fn reset(watched: Watched) {
    for connection in watched.forget() {
        // Failing, or not believed: the kernel resets a peer that sends something.
        let _ = repair::reset(connection.own, connection.peer, connection.expected);
    }
}
