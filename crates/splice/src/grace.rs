//! Grace periods, waited for by a thread of their own: one takes 10 to 30 ms, and serves all who asked before
//! it began.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use truepeer_sys::repair::wait_for_grace_period;

/// Asks for grace periods. The thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct Grace {
    thread: Sender<u64>,
    asked: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
}

/// A grace period that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

impl Grace {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start() -> std::io::Result<Self> {
        let (thread, asks) = channel::<u64>();
        let over = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&over);
        thread::Builder::new().name("grace".into()).spawn(move || {
            while let Ok(first) = asks.recv() {
                let newest = asks.try_iter().fold(first, u64::max);
                // Without the call (a kernel with nohz_full) nothing is let go: the sockets stay open beside
                // the translation.
                if wait_for_grace_period().is_err() {
                    return;
                }
                told.fetch_max(newest, Ordering::AcqRel);
            }
        })?;
        Ok(Self { thread, asked: Arc::default(), over })
    }

    /// Asks for one that begins after now.
    #[must_use]
    pub fn ask(&self) -> Ticket {
        // A higher ticket is taken later, so a grace period that begins after it was asked for serves the
        // lower one, too.
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        // The thread has ended: no period is over any more.
        let _ = self.thread.send(number);
        Ticket(number)
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self, ticket: Ticket) -> bool {
        self.over.load(Ordering::Acquire) >= ticket.0
    }
}
