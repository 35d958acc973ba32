//! One deadline, as a task uses it.

use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use truepeer_session::table::Key;

use super::state::LoopState;

/// A deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// One deadline, which can be moved or cancelled at any time.
pub struct Timer {
    state: Rc<LoopState>,
    key: Key,
}

impl Timer {
    pub(super) fn new(state: &Rc<LoopState>) -> Self {
        let key = state.timers.borrow_mut().add();
        Self { state: Rc::clone(state), key }
    }

    /// Sets the deadline, `wait` from now on.
    pub fn arm(&self, wait: Duration) {
        // If the sum overflows, use a very distant deadline.
        let now = self.state.now.get();
        let at = now.checked_add(wait).unwrap_or(now + Duration::from_secs(1 << 31));
        self.state.timers.borrow_mut().arm(self.key, at);
    }

    /// Cancels the deadline.
    pub fn disarm(&self) {
        self.state.timers.borrow_mut().disarm(self.key);
    }

    /// Ready if the deadline has passed, until the timer is armed again.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.state.timers.borrow_mut().poll(self.key, cx)
    }

    /// Waits for the deadline; forever if it is not armed.
    pub async fn expired(&self) {
        std::future::poll_fn(|cx| self.poll_expired(cx)).await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.state.timers.borrow_mut().remove(self.key);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}
