//! Timers for which postponing is cheap.
//!
//! A connection re-arms its idle timeout with every byte, and few timeouts ever pass. So a later deadline is
//! only stored. When the earlier one comes, the timer is queued again. Only an earlier deadline changes the
//! queue.

use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use truepeer_session::table::{Key, Table};

#[derive(Debug, Default)]
struct Entry {
    /// The deadline. `None`: not armed, or it has passed.
    deadline: Option<Instant>,
    /// The time at which it is queued: the deadline or earlier.
    queued: Option<Instant>,
    passed: bool,
    waker: Option<Waker>,
}

/// All timers of a loop.
pub(super) struct Timers {
    entries: Table<Entry>,
    queue: BTreeSet<(Instant, u64)>,
}

impl Default for Timers {
    fn default() -> Self {
        Self { entries: Table::new(), queue: BTreeSet::new() }
    }
}

impl Timers {
    /// Adds a timer, not armed.
    pub(super) fn add(&mut self) -> Key {
        self.entries.insert(Entry::default())
    }

    /// The earliest queued time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Wakes the tasks whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, bits)) = self.queue.first().filter(|(at, _)| *at <= now) {
            self.queue.remove(&(at, bits));
            let key = Key::from_bits(bits);
            let Some(entry) = self.entries.get_mut(key) else { continue };
            entry.queued = None;
            match entry.deadline {
                Some(deadline) if deadline > now => self.enqueue(key, deadline),
                Some(_) => entry.pass(),
                None => {}
            }
        }
    }

    pub(super) fn arm(&mut self, key: Key, deadline: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.deadline = Some(deadline);
        entry.passed = false;
        match entry.queued {
            Some(queued) if queued <= deadline => {}
            queued => {
                if let Some(queued) = queued {
                    self.queue.remove(&(queued, key.to_bits()));
                }
                self.enqueue(key, deadline);
            }
        }
    }

    fn enqueue(&mut self, key: Key, at: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.queued = Some(at);
            self.queue.insert((at, key.to_bits()));
        }
    }

    pub(super) fn disarm(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.deadline = None;
            entry.passed = false;
        }
    }

    /// Ready if the deadline has passed, until the timer is armed again.
    pub(super) fn poll(&mut self, key: Key, cx: &Context<'_>) -> Poll<()> {
        let Some(entry) = self.entries.get_mut(key) else { return Poll::Pending };
        if entry.passed {
            return Poll::Ready(());
        }
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    pub(super) fn remove(&mut self, key: Key) {
        if let Some(Entry { queued: Some(queued), .. }) = self.entries.remove(key) {
            self.queue.remove(&(queued, key.to_bits()));
        }
    }
}

impl Entry {
    fn pass(&mut self) {
        self.deadline = None;
        self.passed = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
