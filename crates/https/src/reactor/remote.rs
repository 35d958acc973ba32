//! What other threads may ask of a loop.

use std::fmt;
use std::sync::Arc;

use super::wake::Mailbox;

/// A handle to a loop for other threads.
#[derive(Clone)]
pub struct Remote(Arc<Mailbox>);

impl Remote {
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self(mailbox)
    }

    /// Nothing new is to be begun; the loop ends with its last task.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// The loop ends, its tasks are dropped.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("draining", &self.0.is_draining()).finish_non_exhaustive()
    }
}
