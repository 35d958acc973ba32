//! Sessions that the kernel has made by itself (`--splice full`). A thread finds them a moment later and
//! gives each to a worker, which watches it like a session that has left user space.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tracing::error;
use truepeer_splice::{Begun, Full};
use truepeer_sys::repair::wait_for_grace_period;

use crate::worker::{Order, Team};

/// The time between two looks for new sessions.
const LOOK: Duration = Duration::from_millis(125);
/// If one look finds so many, the next one comes sooner: the kernel has places for some thousands.
const MANY: usize = 500;
const SOON: Duration = Duration::from_millis(50);

/// The running thread. Dropping this ends it; two seconds later the kernel makes no more sessions.
#[derive(Debug)]
pub(crate) struct Lookout {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    full: Arc<Full>,
    team: Arc<Team>,
}

impl Lookout {
    pub(crate) fn start(full: Arc<Full>, team: Arc<Team>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let (own_full, own_team) = (Arc::clone(&full), Arc::clone(&team));
        let thread = Builder::new().name("kernel-made".to_owned()).spawn(move || {
            let mut pause = LOOK;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                match full.begun() {
                    Ok(begun) => {
                        pause = if begun.len() < MANY { LOOK } else { SOON };
                        begun.into_iter().for_each(|begun| team.hand_out(begun));
                    }
                    Err(failure) => {
                        error!("the kernel makes no more sessions: {failure}");
                        return;
                    }
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), full: own_full, team: own_team })
    }

    /// Ends the making of sessions, and hands out those that the kernel has made.
    pub(crate) fn release(mut self) {
        self.end();
        self.full.release();
        // If the kernel has no such wait: running programs end long before the next process uses their
        // places.
        let _ = wait_for_grace_period();
        match self.full.begun() {
            Ok(begun) => begun.into_iter().for_each(|begun| self.team.hand_out(begun)),
            Err(failure) => error!("the kernel makes no more sessions: {failure}"),
        }
    }

    fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.end();
    }
}

impl Team {
    /// Gives the session to the worker that has least to do. If that has ended, the session goes on
    /// unwatched.
    fn hand_out(&self, begun: Begun) {
        let chosen = self.place(0);
        if self.postboxes[chosen].post(Order::Begun(begun)).is_err() {
            self.on_end(chosen);
        }
    }
}
