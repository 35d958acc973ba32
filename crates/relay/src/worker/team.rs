//! The workers of a relay, as each worker sees them.

use std::sync::atomic::{AtomicUsize, Ordering};

use truepeer_session::mailbox::Postbox;

use super::order::Order;

/// A worker passes connections on when it has this many sessions more than the least busy one, plus an
/// eighth.
const UNEVEN: usize = 4;
/// The load of a worker that accepts no more sessions.
const GONE: usize = usize::MAX / 2;

/// All workers.
#[derive(Debug)]
pub(crate) struct Team {
    pub(crate) postboxes: Vec<Postbox<Order>>,
    loads: Loads,
}

/// The number of sessions of each worker, including those passed to it that it has not seen yet.
#[derive(Debug)]
struct Loads(Vec<AtomicUsize>);

impl Team {
    pub(crate) fn new(postboxes: Vec<Postbox<Order>>) -> Self {
        let loads = postboxes.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { postboxes, loads: Loads(loads) }
    }

    /// Chooses the worker for one more session, which `here` has accepted, and counts the session there.
    pub(crate) fn place(&self, here: usize) -> usize {
        self.loads.place(here)
    }

    /// Moves the session to another worker, because the chosen one has ended.
    pub(super) fn move_back(&self, chosen: usize, here: usize) {
        self.loads.0[here].fetch_add(1, Ordering::Relaxed);
        self.leave(chosen);
    }

    /// Counts a session that begins at the worker without [`Self::place`].
    pub(super) fn on_begin(&self, worker: usize) {
        self.loads.0[worker].fetch_add(1, Ordering::Relaxed);
    }

    /// A session of the worker has ended, or was never started.
    pub(crate) fn on_end(&self, worker: usize) {
        self.loads.0[worker].fetch_sub(1, Ordering::Relaxed);
    }

    /// The worker accepts no more sessions.
    pub(super) fn leave(&self, worker: usize) {
        self.loads.0[worker].store(GONE, Ordering::Relaxed);
    }
}

impl Loads {
    fn place(&self, here: usize) -> usize {
        let load = |worker: usize| self.0[worker].load(Ordering::Relaxed);
        let idlest = (0..self.0.len()).min_by_key(|&worker| load(worker)).unwrap_or(here);
        let chosen = if load(here) > load(idlest) + load(idlest) / 8 + UNEVEN { idlest } else { here };
        self.0[chosen].fetch_add(1, Ordering::Relaxed);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One worker accepts all of them before any other has read its mailbox.
    #[test]
    fn a_burst_is_spread_over_all_workers() {
        let loads = Loads([0; 4].map(AtomicUsize::new).into());
        let mut placed = [0_usize; 4];
        for _ in 0..1000 {
            placed[loads.place(0)] += 1;
        }
        for worker in 1..4 {
            assert!(placed[worker].abs_diff(placed[0]) <= placed[0] / 8 + UNEVEN + 1, "{placed:?}");
            assert!(placed[worker].abs_diff(placed[1]) <= 1, "{placed:?}");
        }
    }

    #[test]
    fn a_worker_that_has_left_gets_none() {
        let loads = Loads(vec![AtomicUsize::new(100), AtomicUsize::new(GONE), AtomicUsize::new(90)]);
        for _ in 0..500 {
            assert_ne!(loads.place(0), 1);
        }
    }
}
