//! Connections that wait for their next request, the longest idle first.
//!
//! When sessions or descriptors run short, the connection that has been idle longest is closed for a new one.
//! HTTP lets a server close an idle connection at any time (RFC 9112 section 9.5).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use truepeer_session::deadlines::{Deadlines, Link, Linked, QueueId};
use truepeer_session::table::{Key, Table};

/// A connection idle for less than this is not closed: its client may be about to send.
pub(crate) const LEAST_IDLE: Duration = Duration::from_secs(1);

/// The idle connections of all workers.
#[derive(Debug)]
pub struct IdleConnections(Box<[Mutex<WorkerList>]>);

/// A slab, and a list through its entries: the first has been idle longest. Each entry's deadline is when it
/// may be closed.
///
/// Aligned: an HTTP/2 connection enters and leaves for each request, and must not take the cache line of the
/// next worker's list.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerList {
    waiting: Table<Waiting>,
    /// By [`Entering`]. A list is sorted only if all its entries enter equally late.
    lists: [Deadlines<()>; 2],
    /// The queue of either list.
    queue: QueueId,
}

/// When a connection enters the list.
#[derive(Debug, Clone, Copy)]
enum Entering {
    /// As soon as it is idle.
    AtOnce,
    /// Once it may be closed: [`LEAST_IDLE`] later.
    Late,
}

#[derive(Debug)]
struct Waiting {
    link: Link,
    waker: Waker,
}

impl Linked for Waiting {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Default for WorkerList {
    fn default() -> Self {
        let mut lists = [Deadlines::default(), Deadlines::default()];
        let [queue, _] = lists.each_mut().map(|list| list.queue((), LEAST_IDLE));
        Self { waiting: Table::new(), lists, queue }
    }
}

impl WorkerList {
    /// When a connection may be closed first, and its list.
    fn next(&mut self) -> Option<(Instant, usize)> {
        let Self { waiting, lists, .. } = self;
        let firsts = lists.iter().enumerate().filter_map(|(which, list)| Some((list.next(waiting)?, which)));
        firsts.min()
    }
}

/// One worker's list. It can reach the lists of the others.
#[derive(Debug, Clone)]
pub struct IdleList {
    all: Arc<IdleConnections>,
    worker: usize,
}

impl IdleConnections {
    /// Creates the lists of this many workers.
    #[must_use]
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self((0..workers.max(1)).map(|_| Mutex::default()).collect()))
    }

    /// The list of the worker with this number.
    #[must_use]
    pub fn of(self: &Arc<Self>, worker: usize) -> IdleList {
        IdleList { all: Arc::clone(self), worker: worker % self.0.len() }
    }

    fn lock(&self, worker: usize) -> MutexGuard<'_, WorkerList> {
        self.0[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdleList {
    /// Marks a connection as idle from `now` until the result is dropped. `waker` wakes its task.
    #[must_use]
    pub fn enter(&self, now: Instant, waker: &Waker) -> Idle<'_> {
        self.enter_as(Entering::AtOnce, now, waker)
    }

    /// Marks a connection that has been idle since `since`, for [`LEAST_IDLE`], as one that may be closed.
    #[must_use]
    pub(crate) fn enter_late(&self, since: Instant, waker: &Waker) -> Idle<'_> {
        self.enter_as(Entering::Late, since, waker)
    }

    fn enter_as(&self, entering: Entering, since: Instant, waker: &Waker) -> Idle<'_> {
        let mut worker = self.all.lock(self.worker);
        let WorkerList { waiting, lists, queue } = &mut *worker;
        let key = waiting.insert(Waiting { link: Link::default(), waker: waker.clone() });
        lists[entering as usize].start(waiting, key, *queue, since);
        Idle { list: self, key, entering }
    }

    /// Closes the connection that has been idle longest in any worker. Returns how long it was idle.
    #[must_use]
    pub fn end_longest(&self, now: Instant) -> Option<Duration> {
        let all = &self.all;
        let longest =
            (0..all.0.len()).filter_map(|worker| Some((all.lock(worker).next()?.0, worker))).min()?;
        let mut worker = all.lock(longest.1);
        let (at, which) = worker.next()?;
        let since = at.checked_sub(LEAST_IDLE)?;
        let WorkerList { waiting, lists, .. } = &mut *worker;
        let (key, ()) = lists[which].expire(waiting, now)?;
        let Waiting { waker, .. } = waiting.remove(key)?;
        drop(worker);
        waker.wake();
        Some(now.saturating_duration_since(since))
    }
}

/// An idle connection.
#[derive(Debug)]
pub struct Idle<'a> {
    list: &'a IdleList,
    key: Key,
    entering: Entering,
}

impl Idle<'_> {
    /// Whether the connection must end because its resources are needed.
    #[must_use]
    pub fn shall_end(&self) -> bool {
        self.list.all.lock(self.list.worker).waiting.get_mut(self.key).is_none()
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        let mut worker = self.list.all.lock(self.list.worker);
        let WorkerList { waiting, lists, .. } = &mut *worker;
        lists[self.entering as usize].cancel(waiting, self.key);
        waiting.remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_lists_share_no_cache_line() {
        let place = |all: &IdleConnections, worker: usize| (&raw const all.0[worker]).addr();
        let all = IdleConnections::new(3);
        assert_eq!(place(&all, 0) % 128, 0);
        assert_eq!((place(&all, 1) - place(&all, 0)) % 128, 0);
    }

    #[test]
    fn the_longest_idle_of_all_workers_ends_first_and_a_recent_one_never() {
        let all = IdleConnections::new(2);
        let [one, other] = [all.of(0), all.of(1)];
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let waker = Waker::noop();
        let (young, old) = (one.enter(start + second, waker), other.enter(start, waker));
        let busy = one.enter(start, waker);
        drop(busy);
        assert_eq!(one.end_longest(start + LEAST_IDLE / 2), None);
        assert_eq!(one.end_longest(start + LEAST_IDLE), Some(LEAST_IDLE));
        assert!(old.shall_end() && !young.shall_end());
        assert_eq!(other.end_longest(start + second + LEAST_IDLE / 2), None);
        assert_eq!(other.end_longest(start + second * 10), Some(second * 9));
        assert!(young.shall_end());
        assert_eq!(other.end_longest(start + second * 10), None);
    }

    /// As a connection with HTTP/1 does behind a younger one with HTTP/2.
    #[test]
    fn one_that_enters_late_goes_before_a_younger_one() {
        let list = IdleConnections::new(1).of(0);
        let (start, waker) = (Instant::now(), Waker::noop());
        let young = list.enter(start + LEAST_IDLE * 9 / 10, waker);
        let old = list.enter_late(start, waker);
        assert_eq!(list.end_longest(start + LEAST_IDLE), Some(LEAST_IDLE));
        assert!(old.shall_end() && !young.shall_end());
        drop((young, old));
        let (young_late, old_at_once) =
            (list.enter_late(start + LEAST_IDLE, waker), list.enter(start, waker));
        assert_eq!(list.end_longest(start + LEAST_IDLE * 3), Some(LEAST_IDLE * 3));
        assert!(old_at_once.shall_end() && !young_late.shall_end());
    }
}
