//! The state that the connections of one listener share in one worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Shard;

use super::clients::ClientConnections;
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
    /// Each client's connections, in all workers.
    pub clients: Arc<ClientConnections>,
    /// Connections that wait for their next request, and may be closed for new ones.
    pub idle: IdleList,
}

impl WorkerState {
    /// The default of --max-per-client: an eighth of all sessions, so that a few clients can't use them up,
    /// and at least as many as some browsers behind one address open.
    #[must_use]
    pub fn usual_most_per_client(&self) -> usize {
        (self.budgets.sessions.limit() / 8).clamp(64, 4096)
    }

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
