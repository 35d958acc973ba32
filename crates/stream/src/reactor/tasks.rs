//! The tasks of a loop.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake as _, Waker};

use tracing::error;
use truepeer_session::table::{Key, Table};

use super::wake::{TaskWaker, WakeQueue};

type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// `None` while it is polled: the task may spawn others, which need the table.
    work: Option<(Work, Waker)>,
    alarm: Arc<TaskWaker>,
    /// The turn in which it was polled last.
    turn: u64,
}

/// The tasks, by generational keys: the key of an ended task never refers to a later one.
pub(super) struct Tasks {
    table: RefCell<Table<Option<Task>>>,
    panics: Cell<u64>,
    turn: Cell<u64>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { table: RefCell::new(Table::new()), panics: Cell::new(0), turn: Cell::new(0) }
    }
}

impl Tasks {
    pub(super) fn add(&self, work: Work, mailbox: &Arc<WakeQueue>) {
        let mut table = self.table.borrow_mut();
        let key = table.insert(None);
        let alarm = TaskWaker::new(key, mailbox);
        let waker = Waker::from(Arc::clone(&alarm));
        waker.wake_by_ref();
        if let Some(task) = table.get_mut(key) {
            *task = Some(Task { work: Some((work, waker)), alarm, turn: 0 });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.borrow().len()
    }

    pub(super) fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Queues every task.
    pub(super) fn wake_all(&self) {
        let mut table = self.table.borrow_mut();
        for key in table.keys() {
            if let Some(Some(task)) = table.get_mut(key) {
                task.alarm.wake_by_ref();
            }
        }
    }

    pub(super) fn begin_turn(&self) {
        self.turn.set(self.turn.get() + 1);
    }

    /// Whether the task has not been polled in this turn.
    pub(super) fn is_new_in_turn(&self, key: Key) -> bool {
        let mut table = self.table.borrow_mut();
        table.get_mut(key).and_then(Option::as_mut).is_none_or(|task| task.turn != self.turn.get())
    }

    /// Polls a task that was queued, if it has not ended.
    pub(super) fn poll(&self, key: Key) {
        self.poll_as(key, TaskWaker::on_poll);
    }

    /// Polls a task once more in the same turn. Don't clear `queued` here: a wake since the first poll has
    /// already queued the task, and a second entry would poll it twice in every later turn.
    pub(super) fn poll_again(&self, key: Key) {
        self.poll_as(key, |_| {});
    }

    fn poll_as(&self, key: Key, note: impl FnOnce(&TaskWaker)) {
        let Some((mut work, waker)) = self.take(key, note) else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Ok(poll) if poll.is_pending() => self.put_back(key, (work, waker)),
            Ok(_) => self.end(key, work),
            Err(_) => {
                // The panic hook has printed the message.
                error!("a connection's task has panicked; its connection is closed and the others continue");
                self.panics.set(self.panics.get() + 1);
                self.end(key, work);
            }
        }
    }

    fn take(&self, key: Key, note: impl FnOnce(&TaskWaker)) -> Option<(Work, Waker)> {
        let mut table = self.table.borrow_mut();
        let task = table.get_mut(key)?.as_mut()?;
        note(&task.alarm);
        task.turn = self.turn.get();
        task.work.take()
    }

    fn put_back(&self, key: Key, work: (Work, Waker)) {
        if let Some(Some(task)) = self.table.borrow_mut().get_mut(key) {
            task.work = Some(work);
        }
    }

    fn end(&self, key: Key, work: Work) {
        self.table.borrow_mut().remove(key);
        // The drop may spawn tasks and may panic again.
        if catch_unwind(AssertUnwindSafe(|| drop(work))).is_err() {
            error!("a connection's task has panicked again while being dropped");
        }
    }

    /// Drops all tasks, including those that are spawned meanwhile.
    pub(super) fn clear(&self) {
        loop {
            let keys = self.table.borrow().keys();
            if keys.is_empty() {
                return;
            }
            for key in keys {
                let task = self.table.borrow_mut().remove(key);
                if let Some(work) = task.flatten().and_then(|task| task.work) {
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
                }
            }
        }
    }
}
