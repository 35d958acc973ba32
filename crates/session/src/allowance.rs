//! A [`Budget`] is a counted allowance that all workers share. A [`Permit`] is a part of it, released when
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of units shared by all workers.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Allowance>);

#[derive(Debug)]
struct Allowance {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl Budget {
    /// Creates a budget of `limit` units: sessions, pipes or bytes, as the owner counts.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Allowance { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }))
    }

    /// Takes `amount` units, or nothing if fewer are left.
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<Permit> {
        self.0.reserve(amount).then(|| Permit { allowance: Arc::clone(&self.0), amount })
    }

    /// Whether `amount` units are left. This only reads, so it doesn't take a cache line from other workers.
    #[must_use]
    pub fn has(&self, amount: usize) -> bool {
        self.used() + amount <= self.limit()
    }

    /// Takes `amount` units without a check; call it after [`Budget::has`]. Workers that check at the same
    /// moment may exceed the limit by one such amount each.
    #[must_use]
    pub fn take_anyway(&self, amount: usize) -> Permit {
        self.0.used.fetch_add(amount, Ordering::Relaxed);
        Permit { allowance: Arc::clone(&self.0), amount }
    }

    /// The units in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The total number of units.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the total. Units in use above it are not taken back.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }
}

impl Allowance {
    fn reserve(&self, amount: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let grown = |used: usize| used.checked_add(amount).filter(|&sum| sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }
}

/// A part of a [`Budget`]; dropping it releases it.
#[derive(Debug)]
pub struct Permit {
    allowance: Arc<Allowance>,
    amount: usize,
}

impl Permit {
    /// Takes `more` units of the same budget. `false`: fewer are left, and nothing changes.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let grown = self.allowance.reserve(more);
        if grown {
            self.amount += more;
        }
        grown
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.allowance.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_given_back_when_dropped() {
        let budget = Budget::new(10);
        let mut first = budget.take(6).expect("6 of 10");
        assert!(budget.take(5).is_none());
        assert!(first.grow(4));
        assert!(!first.grow(1));
        assert_eq!(budget.used(), 10);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
