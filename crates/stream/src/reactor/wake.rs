//! The tasks to poll next.
//!
//! Almost every wake comes from the loop's own thread and costs one atomic swap. Another thread puts the
//! task's key into the mailbox and writes to its event descriptor.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use truepeer_session::table::Key;

thread_local! {
    /// The loop that runs on this thread; 0: none.
    static HERE: Cell<u64> = const { Cell::new(0) };
    /// Its tasks that must be polled.
    static READY: RefCell<Vec<Key>> = const { RefCell::new(Vec::new()) };
}

/// The token of the eventfd; no source uses it.
pub(super) const BELL: mio::Token = mio::Token(usize::MAX);

const DRAINING: u8 = 1;
const STOPPING: u8 = 2;

/// Messages from other threads to a loop.
///
/// Aligned: the loop writes to it in each turn, and must not share a cache line with another worker.
#[repr(align(128))]
pub(super) struct WakeQueue {
    number: u64,
    bell: mio::Waker,
    rung: AtomicBool,
    woken: Mutex<Vec<Key>>,
    end: AtomicU8,
    /// The value of `end` for which the tasks have been woken.
    told: AtomicU8,
}

const _: () = assert!(align_of::<WakeQueue>() == 128);

impl WakeQueue {
    pub(super) fn new(registry: &mio::Registry) -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            bell: mio::Waker::new(registry, BELL)?,
            rung: AtomicBool::new(false),
            woken: Mutex::default(),
            end: AtomicU8::new(0),
            told: AtomicU8::new(0),
        })
    }

    /// Until the result is dropped, wakes on this thread go to the loop directly.
    pub(super) fn enter(&self) -> Here {
        let before = HERE.replace(self.number);
        // Tasks that were woken before the loop started are in the mailbox.
        READY.with_borrow_mut(Vec::clear);
        self.collect();
        Here { before }
    }

    /// Takes the tasks that other threads have woken.
    pub(super) fn collect(&self) {
        if self.rung.swap(false, Ordering::AcqRel) {
            let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            READY.with_borrow_mut(|ready| ready.append(&mut woken));
        }
    }

    fn put(&self, key: Key) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        self.ring();
    }

    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The write can't fail: the counter is at most 1.
            let _ = self.bell.wake();
        }
    }

    pub(super) fn drain(&self) {
        self.announce(DRAINING);
    }

    pub(super) fn stop(&self) {
        self.announce(STOPPING);
    }

    fn announce(&self, end: u8) {
        self.end.fetch_max(end, Ordering::AcqRel);
        self.ring();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.end.load(Ordering::Acquire) >= DRAINING
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.end.load(Ordering::Acquire) >= STOPPING
    }

    /// Whether a drain or stop was ordered for which the tasks have not been woken.
    pub(super) fn has_news(&self) -> bool {
        let end = self.end.load(Ordering::Acquire);
        self.told.swap(end, Ordering::AcqRel) < end
    }
}

/// See [`WakeQueue::enter`].
pub(super) struct Here {
    before: u64,
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(self.before);
        READY.with_borrow_mut(Vec::clear);
    }
}

/// Replaces `keys` with the keys of the tasks to poll now.
pub(super) fn take_ready(keys: &mut Vec<Key>) {
    keys.clear();
    READY.with_borrow_mut(|ready| std::mem::swap(ready, keys));
}

/// Replaces `keys` with those of the waiting tasks that `may` work now. The others go on waiting.
pub(super) fn take_ready_if(keys: &mut Vec<Key>, may: impl Fn(Key) -> bool) {
    keys.clear();
    READY.with_borrow_mut(|ready| {
        ready.retain(|&key| {
            let now = may(key);
            if now {
                keys.push(key);
            }
            !now
        });
    });
}

pub(super) fn has_ready() -> bool {
    READY.with_borrow(|ready| !ready.is_empty())
}

/// The implementation of a task's [`std::task::Waker`].
pub(super) struct TaskWaker {
    key: Key,
    /// The task is queued and has not been polled since.
    queued: AtomicBool,
    mailbox: Arc<WakeQueue>,
}

impl TaskWaker {
    pub(super) fn new(key: Key, mailbox: &Arc<WakeQueue>) -> Arc<Self> {
        Arc::new(Self { key, queued: AtomicBool::new(false), mailbox: Arc::clone(mailbox) })
    }

    /// Clear it before polling the task, so that a wake during the poll queues it again.
    pub(super) fn on_poll(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        // While the thread ends, its thread-locals are gone: use the mailbox.
        let here = HERE.try_with(|here| here.get() == self.mailbox.number).unwrap_or(false);
        let taken = here && READY.try_with(|ready| ready.borrow_mut().push(self.key)).is_ok();
        if !taken {
            self.mailbox.put(self.key);
        }
    }
}
