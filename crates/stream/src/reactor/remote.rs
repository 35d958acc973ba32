//! Controls a loop from other threads.

use std::fmt;
use std::sync::Arc;

use super::wake::WakeQueue;

/// A handle to a loop for other threads.
#[derive(Clone)]
pub struct Remote(Arc<WakeQueue>);

impl Remote {
    pub(super) fn new(mailbox: Arc<WakeQueue>) -> Self {
        Self(mailbox)
    }

    /// Tells the loop to start nothing new. It ends with its last task.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// Tells the loop to end and to drop its tasks.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("draining", &self.0.is_draining()).finish_non_exhaustive()
    }
}
