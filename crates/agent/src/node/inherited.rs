//! The attachments that the kernel had when it was asked.

use std::collections::BTreeMap;

use crate::processes::Place;
use crate::truepeer::Status;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Inherited {
    /// In the clock of [`Place::started`], before it was read.
    ticks: u64,
    by_netns: BTreeMap<u64, Status>,
}

impl Inherited {
    /// `None`: something was attached by a truepeer that did not note the network namespace. Then the absence
    /// of one proves nothing.
    pub(super) fn of(ticks: u64, all: Vec<Status>) -> Option<Self> {
        let by_netns = all.into_iter().map(|status| Some((status.netns?, status))).collect::<Option<_>>()?;
        Some(Self { ticks, by_netns })
    }

    /// The attachment that the kernel reported for a place. The kernel reuses the numbers of network
    /// namespaces: a process that started after the question is in another one.
    pub(super) fn at(&self, place: &Place) -> Option<&Status> {
        self.by_netns.get(&place.netns).filter(|_| place.started < self.ticks)
    }

    pub(super) fn has_nothing(&self, place: &Place) -> bool {
        !self.by_netns.contains_key(&place.netns)
    }
}
