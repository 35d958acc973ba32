//! The state that the connections of one listener share in one worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Shard;

use super::idle::IdleList;

/// The state that the connections of one listener share in one worker.
#[derive(Debug, Clone)]
pub struct WorkerState {
    /// Log and counters of all workers.
    pub journal: Arc<Journal>,
    /// Their counters.
    pub shard: Arc<Shard>,
    /// The limits that all workers share.
    pub budgets: Budgets,
    /// Connections that wait for their next request, and may be closed for new ones.
    pub idle: IdleList,
}

impl WorkerState {
    /// Closes the connection that has been idle longest because a resource ran short. Returns whether there
    /// was one.
    pub(crate) fn reclaim(&self, about: IpAddr, now: Instant) -> bool {
        let waited = self.idle.end_longest(now);
        if let Some(waited) = waited {
            self.journal.on_reclaimed(&self.shard, about, waited, now);
        }
        waited.is_some()
    }
}
