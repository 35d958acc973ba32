//! The end of a turn, when tasks send.
//!
//! Sending over loopback wakes the receiver at once. If each task sent as soon as it could, the receiver
//! would wake for one message, sleep, and be woken again by the next, and each wake costs the sender more
//! than the send. So all tasks first read and work, and then all send.

use std::cell::{Cell, RefCell};
use std::task::Poll;

use truepeer_session::table::Key;

/// The progress of a turn, and the tasks that wait for its end.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// Tasks of this turn that have not been polled.
    ahead: Cell<usize>,
    current: Cell<Option<Key>>,
    waiting: RefCell<Vec<Key>>,
}

impl Settling {
    /// Starts a turn with this many tasks.
    pub(super) fn begin(&self, tasks: usize) {
        self.ahead.set(tasks);
    }

    /// Notes that `key` is being polled.
    pub(super) fn at(&self, key: Key) {
        self.ahead.set(self.ahead.get().saturating_sub(1));
        self.current.set(Some(key));
    }

    /// Notes that every task has been polled. Replaces `keys` with the tasks that waited for that.
    pub(super) fn settle(&self, keys: &mut Vec<Key>) {
        self.ahead.set(0);
        keys.clear();
        std::mem::swap(keys, &mut self.waiting.borrow_mut());
    }

    /// Ready if the current task may send. Otherwise it will be polled again at the end of the turn.
    pub(super) fn poll(&self) -> Poll<()> {
        let Some(key) = self.current.get().filter(|_| self.ahead.get() > 0) else { return Poll::Ready(()) };
        let mut waiting = self.waiting.borrow_mut();
        if waiting.last() != Some(&key) {
            waiting.push(key);
        }
        Poll::Pending
    }
}
