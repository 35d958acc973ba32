//! The registry of counters since the start.
//!
//! Each worker counts on its own [`Shard`] for each listener, so that counting touches no shared cache line. A
//! reader sums the shards. Refusals are counted by reason in a map with a lock, because they are rare except
//! under an attack.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::settings::ListenerId;

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal,)+) => {
        /// A counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter { $($(#[doc = $help])+ $variant,)+ }

        impl Counter {
            /// All counters, in the order in which they are shown.
            pub const ALL: [Counter; [$(Counter::$variant),+].len()] = [$(Counter::$variant),+];

            /// The stable name, as metrics show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }

            /// A one-line description.
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
    /// Connections refused because of their sender, header or claim (by reason: refusals).
    Refused = "connections_refused",
    /// Connections closed by the sender before a whole header (port scans, health checks).
    ClosedBeforeHeader = "connections_closed_before_header",
    /// Sessions whose backend was reached.
    Relayed = "sessions_relayed",
    /// Sessions whose backend could not be reached.
    ConnectFailed = "connects_failed",
    /// Upstream connections that kept the client's address but not its port, because the tuple was in use.
    PortReplaced = "client_ports_replaced",
    /// Of these, those whose port a program on this host holds (it listens on it on every address).
    PortHeld = "client_ports_held",
    /// Sessions that ended with FIN in both directions.
    Finished = "sessions_finished",
    /// Sessions that ended by a reset, which was passed on.
    Reset = "sessions_reset",
    /// Sessions ended by the idle time-out.
    IdleTimeout = "sessions_idle_timeout",
    /// Sessions ended by a defect in truepeer; both connections were reset.
    Panicked = "sessions_panicked",
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
    /// UDP flows that ended because their listener was closed.
    FlowsClosed = "flows_closed",
    /// UDP flows forgotten early, to make room for others.
    FlowsEvicted = "flows_evicted",
    /// Datagrams delivered to backends.
    DatagramsUp = "datagrams_up",
    /// Datagrams delivered to senders.
    DatagramsDown = "datagrams_down",
    /// Datagrams that were not delivered because the kernel truncated their control data.
    DatagramsCutOff = "datagrams_cut_off",
    /// Datagrams from senders that were refused (by reason: refusals).
    DatagramsRefused = "datagrams_refused",
    /// Datagrams lost because a socket's buffer was full, or because they exceeded the path's MTU.
    DatagramsDropped = "datagrams_dropped",
    /// HTTP requests, answered or not.
    Requests = "requests",
    /// HTTP requests that got no response from the origin (by reason: refusals).
    RequestsFailed = "requests_failed",
    /// HTTP requests repeated on another connection to the origin.
    Retried = "requests_retried",
    /// Idle connections closed for new ones because sessions or descriptors ran short.
    Reclaimed = "idle_connections_reclaimed",
    /// Pauses in accepting because descriptors, memory or sessions ran out.
    AcceptPaused = "accept_pauses",
}

/// The counters of one listener in one worker.
#[derive(Debug, Default)]
pub struct Shard {
    counts: [AtomicU64; Counter::ALL.len()],
    open: AtomicUsize,
}

impl Shard {
    /// Increments `counter`.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount` to `counter`.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.counts[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts a connection or flow as open until [`Self::on_end`].
    pub fn on_open(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts it as ended.
    pub fn on_end(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All workers' counters, and the refusals by reason.
#[derive(Debug, Default)]
pub struct Counters {
    shards: Mutex<Vec<(ListenerId, Arc<Shard>)>>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// A shard for `listener` in another worker.
    #[must_use]
    pub fn shard(&self, listener: ListenerId) -> Arc<Shard> {
        let shard = Arc::new(Shard::default());
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push((listener, Arc::clone(&shard)));
        shard
    }

    /// Counts one refusal. `reason` is a constant snake_case label, never text from the network.
    pub fn refuse(&self, reason: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// Counts all of `counts`, as [`Self::refuse`] does, and empties them.
    pub fn refuse_all(&self, counts: &mut Vec<(&'static str, u64)>) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, count) in counts.drain(..) {
            *refusals.entry(reason).or_default() += count;
        }
    }

    /// Holds all locks until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold_locks(&self) -> impl Sized + '_ {
        (
            self.shards.lock().unwrap_or_else(PoisonError::into_inner),
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// The value of `counter` over all workers and listeners.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.sum(|_| true, |shard| shard.counts[counter as usize].load(Ordering::Relaxed))
    }

    /// The value of `counter` for `listener`.
    #[must_use]
    pub fn of(&self, listener: ListenerId, counter: Counter) -> u64 {
        self.sum(|of| of == listener, |shard| shard.counts[counter as usize].load(Ordering::Relaxed))
    }

    /// The number of open connections and flows of `listener`.
    #[must_use]
    pub fn open(&self, listener: ListenerId) -> usize {
        self.sum(|of| of == listener, |shard| shard.open.load(Ordering::Relaxed))
    }

    fn sum<T: std::iter::Sum>(&self, which: impl Fn(ListenerId) -> bool, of: impl Fn(&Shard) -> T) -> T {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().filter(|(listener, _)| which(*listener)).map(|(_, shard)| of(shard)).sum()
    }

    /// The count of each reason.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_by_listener_and_in_all() {
        let counters = Counters::default();
        let [first, second] = [0, 1].map(ListenerId::new);
        let (one, two) = (counters.shard(first), counters.shard(first));
        let of_second = counters.shard(second);
        one.count(Counter::Accepted);
        two.add(Counter::Accepted, 4);
        of_second.count(Counter::Accepted);
        of_second.on_open();
        assert_eq!(counters.total(Counter::Accepted), 6);
        assert_eq!(counters.of(first, Counter::Accepted), 5);
        assert_eq!(counters.of(second, Counter::Accepted), 1);
        assert_eq!(counters.total(Counter::Refused), 0);
        assert_eq!((counters.open(first), counters.open(second)), (0, 1));
        of_second.on_end();
        assert_eq!(counters.open(second), 0);
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
