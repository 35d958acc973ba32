//! The counter registry: what happened, how often, since the start.
//!
//! Each worker counts on its own [`Shard`], so that counting costs no shared cache line; a reader adds the shards up.
//! Reasons for refusals are labels, counted in one map: they are rare, or else somebody attacks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal,)+) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter { $($(#[doc = $help])+ $variant,)+ }

        impl Counter {
            /// All of them, in the order they are shown.
            pub const ALL: [Counter; [$(Counter::$variant),+].len()] = [$(Counter::$variant),+];

            /// The stable name, as metrics show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }

            /// One line of explanation.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Counter::$variant => concat!($($help),+),)+ }
            }
        }
    };
}

counters! {
    /// Connections accepted from senders.
    Accepted = "connections_accepted",
    /// Connections whose sender, header or claim was refused (by reason: refusals).
    Refused = "connections_refused",
    /// Connections closed by the sender before a whole header came (port scans, plain health checks).
    ClosedBeforeHeader = "connections_closed_before_header",
    /// Sessions whose backend was reached.
    Relayed = "sessions_relayed",
    /// Sessions whose backend could not be reached.
    ConnectFailed = "connects_failed",
    /// Upstream connections that kept the client's address but not its port, because the tuple was in use.
    PortReplaced = "client_ports_replaced",
    /// Sessions that ended with both directions closed in order.
    Finished = "sessions_finished",
    /// Sessions that ended by a reset, passed on as one.
    Reset = "sessions_reset",
    /// Sessions ended after too long a silence.
    IdleTimeout = "sessions_idle_timeout",
    /// Sessions that were open when truepeer ended; both connections were reset.
    Stopped = "sessions_stopped",
    /// Bytes from senders to backends, without headers.
    BytesUp = "bytes_up",
    /// Bytes from backends to senders.
    BytesDown = "bytes_down",
    /// UDP flows opened.
    FlowsOpened = "flows_opened",
    /// UDP flows forgotten after their silence.
    FlowsExpired = "flows_expired",
    /// UDP flows forgotten early, because there were too many.
    FlowsEvicted = "flows_evicted",
    /// Datagrams delivered to backends.
    DatagramsUp = "datagrams_up",
    /// Datagrams delivered to senders.
    DatagramsDown = "datagrams_down",
    /// Datagrams from senders that were refused (by reason: refusals).
    DatagramsRefused = "datagrams_refused",
    /// Datagrams lost because a socket's buffer was full, or the path too narrow.
    DatagramsDropped = "datagrams_dropped",
    /// HTTP requests, answered or not.
    Requests = "requests",
    /// HTTP requests that were not answered with what the origin says (by reason: refusals).
    RequestsFailed = "requests_failed",
    /// HTTP requests that were sent to the origin once more, on another connection.
    Retried = "requests_retried",
    /// Idle connections that were closed for new ones, because sessions or descriptors had run short.
    Reclaimed = "idle_connections_reclaimed",
    /// Times that accepting paused because descriptors, memory or sessions had run out.
    AcceptPaused = "accept_pauses",
}

/// The counters of one worker.
#[derive(Debug, Default)]
pub struct Shard([AtomicU64; Counter::ALL.len()]);

impl Shard {
    /// Counts one `counter`.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `amount` of `counter`.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }
}

/// All workers' counters, and the refusals by reason.
#[derive(Debug, Default)]
pub struct Counters {
    shards: Mutex<Vec<Arc<Shard>>>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// A shard for one more worker.
    #[must_use]
    pub fn shard(&self) -> Arc<Shard> {
        let shard = Arc::new(Shard::default());
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&shard));
        shard
    }

    /// Counts one refusal; `reason` is a stable snake_case label, from code, never from the network.
    pub fn refuse(&self, reason: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// How often `counter` was counted by all workers together.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().map(|shard| shard.0[counter as usize].load(Ordering::Relaxed)).sum()
    }

    /// How often each reason was counted.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_adds_all_workers_up() {
        let counters = Counters::default();
        let (one, two) = (counters.shard(), counters.shard());
        one.count(Counter::Accepted);
        two.add(Counter::Accepted, 4);
        assert_eq!(counters.total(Counter::Accepted), 5);
        assert_eq!(counters.total(Counter::Refused), 0);
    }

    #[test]
    fn names_are_unique_and_explained() {
        let names: std::collections::HashSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().all(|counter| counter.help().ends_with('.')));
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let counters = Counters::default();
        counters.refuse("sender_not_allowed");
        counters.refuse("sender_not_allowed");
        assert_eq!(counters.refusals().get("sender_not_allowed"), Some(&2));
    }
}
