//! Which sessions have left user space or stay, by the sender's port, which both of a session's connections
//! have: its peers speak until that is decided, however slow the machine is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, Default)]
pub(crate) struct Fates(Arc<Mutex<BTreeMap<u16, Fate>>>);

#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    is_decided: bool,
    /// What each end has written.
    totals: [usize; 2],
}

impl Fates {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u16, Fate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, port: u16) {
        self.all().insert(port, Fate::default());
    }

    pub(crate) fn decide(&self, port: u16) {
        self.all().entry(port).or_default().is_decided = true;
    }

    pub(crate) fn is_decided(&self, port: u16) -> bool {
        self.all().get(&port).is_some_and(|fate| fate.is_decided)
    }

    /// This end writes no more.
    pub(crate) fn wrote(&self, port: u16, end: usize, total: usize) {
        self.all().entry(port).or_default().totals[end] = total;
    }

    pub(crate) fn total(&self, port: u16, end: usize) -> usize {
        self.all().get(&port).map_or(0, |fate| fate.totals[end])
    }
}
