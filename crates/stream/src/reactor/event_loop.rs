//! A thread's loop: its turns, and the tasks that it polls.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use truepeer_session::table::Key;

use super::remote::Remote;
use super::state::{ALLOWANCE, LoopState};
use super::tasks::Tasks;
use super::timer::{Elapsed, Timer};
use super::wake;

/// How many events one epoll_wait takes.
pub(super) const EVENTS: usize = 256;
/// How often a turn looks for tasks that were woken in it and have not worked yet. Each task works once: a
/// chain of tasks that wake each other, or spawn others, goes on in the next turn.
const PASSES: usize = 3;

/// A handle to a thread's event loop. Clones refer to the same loop.
#[derive(Clone)]
pub struct Reactor(Rc<LoopState>);

impl Reactor {
    /// Creates a loop for the calling thread.
    ///
    /// # Errors
    /// The process or the system is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Rc::new(LoopState::new()?)))
    }

    /// Starts a task. It is polled for the first time in the next turn.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.tasks.add(Box::pin(task), &self.0.mailbox);
    }

    /// Starts a task that waits for orders as long as the others work: a drained loop doesn't wait for its
    /// end.
    pub fn spawn_attendant(&self, task: impl Future<Output = ()> + 'static) {
        let one = Attendant::new(&self.0.attendants);
        self.spawn(async move {
            let _one = one;
            task.await;
        });
    }

    /// The number of tasks that have not ended.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.0.tasks.len()
    }

    /// The number of tasks that have panicked since the start.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.0.tasks.panics()
    }

    /// The time at which this turn started. It is precise enough for deadlines and needs no system call.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Whether everything that had happened `age` ago has been reported.
    #[must_use]
    pub fn has_all_events_of(&self, age: Duration) -> bool {
        self.0.took_all_events.get() && self.now().elapsed() < age
    }

    /// A handle for other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote::new(Arc::clone(&self.0.mailbox))
    }

    /// Ready once [`Remote::drain`] or [`Remote::stop`] was called.
    pub async fn drained(&self) {
        // No waker is stored: a drain wakes all tasks.
        std::future::poll_fn(|_| if self.is_draining() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Whether no new work must be started.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.mailbox.is_draining()
    }

    /// Creates a timer, not armed.
    #[must_use]
    pub fn timer(&self) -> Timer {
        Timer::new(&self.0)
    }

    /// Waits for this long.
    pub async fn sleep(&self, wait: Duration) {
        let timer = self.timer();
        timer.arm(wait);
        timer.expired().await;
    }

    /// Awaits `future` for at most `limit`.
    ///
    /// # Errors
    /// [`Elapsed`]: the time passed first. The future was dropped.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
        let mut future = pin!(future);
        // Most futures are ready at once: make the timer only when one has to wait.
        let mut timer: Option<Timer> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let timer = timer.get_or_insert_with(|| {
                let timer = self.timer();
                timer.arm(limit);
                timer
            });
            timer.poll_expired(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Lets the other tasks have a turn.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Uses one of the reads or writes that the task may do in this poll. If none is left, the task is woken
    /// for the next turn. Streams call this themselves. Code that works on bytes in memory for long
    /// should call it, too.
    pub fn poll_allowance(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.allowance.get().checked_sub(1) {
            Some(left) => {
                self.0.allowance.set(left);
                Poll::Ready(())
            }
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// Runs until [`Remote::stop`], or until the last task has ended after [`Remote::drain`], except
    /// attendants. Remaining tasks are dropped.
    ///
    /// # Errors
    /// epoll_wait(2) failed.
    pub fn run(&self) -> io::Result<()> {
        self.work_while(|| {
            let drained = self.is_draining() && self.tasks() <= self.0.attendants.get();
            !self.0.mailbox.is_stopping() && !drained
        })
    }

    /// Runs until `future` has ended, or [`Remote::stop`] was called. Remaining tasks are dropped.
    ///
    /// # Errors
    /// epoll_wait(2) failed, the loop was stopped, or `future` has panicked.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> io::Result<T> {
        let (output, ended) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(false)));
        let guard = SetWhenDropped(Rc::clone(&ended));
        let sink = Rc::clone(&output);
        self.spawn(async move {
            let _guard = guard;
            let output = future.await;
            *sink.borrow_mut() = Some(output);
        });
        self.work_while(|| !ended.get() && !self.0.mailbox.is_stopping())?;
        output.take().ok_or_else(|| io::Error::other("the task did not end"))
    }

    fn work_while(&self, go_on: impl Fn() -> bool) -> io::Result<()> {
        let _here = self.0.mailbox.enter();
        let mut events = mio::Events::with_capacity(EVENTS);
        let mut done = Ok(());
        while done.is_ok() && go_on() {
            done = self.turn(&mut events);
        }
        // Break the cycle: tasks hold handles to the loop, which holds the tasks.
        self.0.tasks.clear();
        done
    }

    fn turn(&self, events: &mut mio::Events) -> io::Result<()> {
        let state = &*self.0;
        match state.poll.borrow_mut().poll(events, self.poll_timeout()) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        state.now.set(Instant::now());
        let taken = state.sources.note(events, state.poll.borrow().registry());
        state.took_all_events.set(taken < EVENTS);
        self.work_turn();
        Ok(())
    }

    /// The part of a turn that asks the kernel for nothing.
    fn work_turn(&self) {
        let state = &*self.0;
        state.mailbox.collect();
        if state.mailbox.has_news() {
            state.tasks.wake_all();
        }
        state.timers.borrow_mut().expire(state.now.get());
        let mut keys = state.keys.take();
        wake::take_ready(&mut keys);
        state.tasks.begin_turn();
        self.work(&keys);
        for _ in 1..PASSES {
            // Tasks that these have woken work before anybody sends: a request and the connection that
            // carries it.
            wake::take_ready_if(&mut keys, |key| state.tasks.is_new_in_turn(key));
            if keys.is_empty() {
                break;
            }
            self.work(&keys);
        }
        state.turn.settle(&mut keys);
        self.poll_all(&keys, Tasks::poll_again);
        state.keys.replace(keys);
    }

    /// Does turns at the time `now`, as if the kernel had reported nothing, until no task is left to poll.
    /// `took_all_events`: see [`Self::has_all_events_of`]. Returns false if tasks still want to be polled
    /// after `most` turns.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn simulate(&self, now: Instant, took_all_events: bool, most: usize) -> bool {
        let _here = self.0.mailbox.enter();
        self.0.now.set(now);
        self.0.took_all_events.set(took_all_events);
        for _ in 0..most {
            self.work_turn();
            if !wake::has_ready() {
                return true;
            }
        }
        false
    }

    fn work(&self, keys: &[Key]) {
        self.0.turn.begin(keys.len());
        self.poll_all(keys, Tasks::poll);
    }

    fn poll_all(&self, keys: &[Key], poll: impl Fn(&Tasks, Key)) {
        for &key in keys {
            self.0.allowance.set(ALLOWANCE);
            self.0.turn.at(key);
            poll(&self.0.tasks, key);
        }
    }

    /// Pending until every task of this turn has been polled. Tasks that wait for this are then polled once
    /// more. Streams wait for it before they send.
    pub(super) fn poll_settling(&self) -> Poll<()> {
        self.0.turn.poll()
    }

    /// How long epoll_wait may block.
    fn poll_timeout(&self) -> Option<Duration> {
        if wake::has_ready() {
            return Some(Duration::ZERO);
        }
        let next = self.0.timers.borrow().next()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    pub(super) fn state(&self) -> &LoopState {
        &self.0
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("tasks", &self.tasks()).finish_non_exhaustive()
    }
}

/// Counts an attendant, until it is dropped.
struct Attendant(Rc<Cell<usize>>);

impl Attendant {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.update(|count| count + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

struct SetWhenDropped(Rc<Cell<bool>>);

impl Drop for SetWhenDropped {
    fn drop(&mut self) {
        self.0.set(true);
    }
}
