//! Connections that wait for their next request, the longest idle first.
//!
//! When sessions or descriptors run short, the connection that has been idle longest is closed for a new one.
//! HTTP lets a server close an idle connection at any time (RFC 9112 section 9.5).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A connection idle for less than this is not closed: its client may be about to send.
const LEAST_IDLE: Duration = Duration::from_secs(1);

type Waiting = BTreeMap<u64, (Instant, Waker)>;

/// The idle connections of all workers.
#[derive(Debug)]
pub struct IdleConnections(Box<[Mutex<WorkerList>]>);

#[derive(Debug, Default)]
struct WorkerList {
    /// The key is a growing number: the first entry has been idle longest.
    waiting: Waiting,
    next: u64,
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

    /// When the connection that has been idle longest in `worker` became idle.
    fn longest(&self, worker: usize) -> Option<Instant> {
        self.lock(worker).waiting.first_key_value().map(|(_, (since, _))| *since)
    }
}

impl IdleList {
    /// Marks a connection as idle from `now` until the result is dropped. `waker` wakes its task.
    #[must_use]
    pub fn enter(&self, now: Instant, waker: &Waker) -> Idle<'_> {
        let mut worker = self.all.lock(self.worker);
        let number = worker.next;
        worker.next += 1;
        worker.waiting.insert(number, (now, waker.clone()));
        Idle { list: self, number }
    }

    /// Closes the connection that has been idle longest in any worker. Returns how long it was idle.
    #[must_use]
    pub fn end_longest(&self, now: Instant) -> Option<Duration> {
        let all = &self.all;
        let longest = (0..all.0.len()).filter_map(|worker| Some((all.longest(worker)?, worker))).min()?;
        let mut worker = all.lock(longest.1);
        let (_, (since, _)) = worker.waiting.first_key_value()?;
        let waited = now.saturating_duration_since(*since);
        if waited < LEAST_IDLE {
            return None;
        }
        let (_, (_, waker)) = worker.waiting.pop_first()?;
        drop(worker);
        waker.wake();
        Some(waited)
    }
}

/// An idle connection.
#[derive(Debug)]
pub struct Idle<'a> {
    list: &'a IdleList,
    number: u64,
}

impl Idle<'_> {
    /// Whether the connection must end because its resources are needed.
    #[must_use]
    pub fn shall_end(&self) -> bool {
        !self.list.all.lock(self.list.worker).waiting.contains_key(&self.number)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.list.all.lock(self.list.worker).waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
