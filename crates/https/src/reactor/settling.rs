//! The end of a turn, when what it brought about is sent.
//!
//! A byte sent over loopback, or to a machine whose interrupts come here, wakes its receiver at once. If each task sent as soon
//! as it could, the receiver would find one message, fall asleep over it, and be woken again by the next, which costs the
//! sender more than the sending. So all tasks first read and work, and then all send.

use std::cell::{Cell, RefCell};
use std::task::Poll;

use truepeer_session::table::Key;

/// How far a turn has come, and who waits for its end.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// Tasks that are still to be polled, apart from those that wait.
    ahead: Cell<usize>,
    current: Cell<Option<Key>>,
    waiting: RefCell<Vec<Key>>,
}

impl Settling {
    /// A turn with so many tasks begins.
    pub(super) fn begin(&self, tasks: usize) {
        self.ahead.set(tasks);
    }

    /// `key` is polled now.
    pub(super) fn at(&self, key: Key) {
        self.ahead.set(self.ahead.get().saturating_sub(1));
        self.current.set(Some(key));
    }

    /// Every task has been polled: `keys` becomes those that waited for it.
    pub(super) fn settle(&self, keys: &mut Vec<Key>) {
        self.ahead.set(0);
        keys.clear();
        std::mem::swap(keys, &mut self.waiting.borrow_mut());
    }

    /// Whether the task that is polled now may send; if not, it will be polled again.
    pub(super) fn poll(&self) -> Poll<()> {
        let Some(key) = self.current.get().filter(|_| self.ahead.get() > 0) else { return Poll::Ready(()) };
        let mut waiting = self.waiting.borrow_mut();
        if waiting.last() != Some(&key) {
            waiting.push(key);
        }
        Poll::Pending
    }
}
