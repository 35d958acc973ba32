//! Watches the workers of an engine.
//!
//! A worker that ends unexpectedly takes its sessions with it, and new connections would wait in its
//! listeners forever. So the program must end, with the reason.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Whether an engine serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// All workers serve.
    Serving,
    /// All workers have ended after a drain or stop.
    Ended,
    /// A worker has ended unexpectedly, for this reason.
    Broken(String),
}

/// The workers of one engine.
pub struct Supervision {
    /// The workers that have not ended.
    left: AtomicUsize,
    broken: OnceLock<String>,
    is_stopping: AtomicBool,
    /// Called when a worker has ended unexpectedly, or by the last one after a drain.
    on_end: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervision").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Supervision {
    /// No workers yet. A worker's thread calls `on_end` when it has ended unexpectedly, or as the last one
    /// after a drain.
    #[must_use]
    pub fn new(on_end: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(0),
            broken: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            on_end: Box::new(on_end),
        })
    }

    /// Adds a worker. Its thread must hold the guard.
    #[must_use]
    pub fn watch(self: &Arc<Self>) -> Watched {
        self.left.fetch_add(1, Ordering::AcqRel);
        Watched { supervision: Arc::clone(self), result: Err("it has panicked".to_owned()) }
    }

    /// The owner stops the workers: `on_end` is no longer called.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Whether the workers serve.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.broken.get() {
            Some(reason) => Health::Broken(reason.clone()),
            None if self.left.load(Ordering::Acquire) == 0 => Health::Ended,
            None => Health::Serving,
        }
    }
}

/// Represents one worker until its thread ends. If a panic drops it, that is reported.
#[derive(Debug)]
pub struct Watched {
    supervision: Arc<Supervision>,
    result: Result<(), String>,
}

impl Watched {
    /// The worker has ended: on order, or for an own reason.
    pub fn end(mut self, result: Result<(), String>) {
        self.result = result;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let supervision = &*self.supervision;
        let is_broken = match std::mem::replace(&mut self.result, Ok(())) {
            Ok(()) => false,
            Err(reason) => {
                // The first reason counts.
                let _ = supervision.broken.set(reason);
                true
            }
        };
        let others = supervision.left.fetch_sub(1, Ordering::AcqRel) - 1;
        if (is_broken || others == 0) && !supervision.is_stopping.load(Ordering::Acquire) {
            (supervision.on_end)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervision() -> (Arc<Supervision>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let on_end = move || {
            counted.fetch_add(1, Ordering::AcqRel);
        };
        (Supervision::new(on_end), calls)
    }

    #[test]
    fn a_worker_that_panics_is_reported_at_once() {
        let (supervision, calls) = supervision();
        let [panicking, _other] = [supervision.watch(), supervision.watch()];
        let thread = std::thread::spawn(move || {
            let _watched = panicking;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(supervision.health(), Health::Broken("it has panicked".to_owned()));
        assert_eq!(calls.load(Ordering::Acquire), 1);
    }

    #[test]
    fn drained_workers_are_reported_together() {
        let (supervision, calls) = supervision();
        let workers = [supervision.watch(), supervision.watch()];
        assert_eq!(supervision.health(), Health::Serving);
        for (ended, worker) in workers.into_iter().enumerate() {
            assert_eq!(calls.load(Ordering::Acquire), ended / 2);
            worker.end(Ok(()));
        }
        assert_eq!(calls.load(Ordering::Acquire), 1);
        assert_eq!(supervision.health(), Health::Ended);
    }

    #[test]
    fn stopped_workers_are_not_reported() {
        let (supervision, calls) = supervision();
        let worker = supervision.watch();
        supervision.stop();
        worker.end(Ok(()));
        assert_eq!(calls.load(Ordering::Acquire), 0);
    }
}
