//! The registry of counters since the start.
//!
//! Each worker counts on its own [`Shard`] for each listener, so that counting touches no shared cache line
//! and takes no lock. A reader sums the shards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::histogram::{Histogram, Times, Timing};
use crate::reason::Reason;
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
    /// Headers of version 1 that name the client.
    HeaderV1 = "headers_v1",
    /// Headers of version 2 (and of Simple Proxy Protocol) that name the client.
    HeaderV2 = "headers_v2",
    /// LOCAL headers: the sender speaks for itself, for example to check health.
    HeaderLocal = "headers_local",
    /// Headers that name no client: UNKNOWN, UNSPEC, or an address that is not of an IP network.
    HeaderUnknown = "headers_unknown",
    /// Connections and flows without a header, where none was required.
    HeaderNone = "headers_none",
    /// Sessions whose backend was reached.
    Relayed = "sessions_relayed",
    /// Sessions and flows that went on in the kernel alone (`proxy --splice auto`).
    Spliced = "sessions_spliced",
    /// Sessions and flows that were to go on in the kernel alone and stayed (`proxy --splice auto`).
    NotSpliced = "sessions_not_spliced",
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
    /// Sessions that the operator ended; both connections were reset.
    EndedByOperator = "sessions_ended_by_operator",
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
    /// UDP flows that the operator ended.
    FlowsEnded = "flows_ended_by_operator",
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

/// Reasons for staying in user space that one shard tells apart. The rest would be counted together.
const STAYS: usize = 24;
/// The reason of the rest.
const OTHER: &str = "other";

/// The counters of one listener in one worker.
///
/// Aligned, so that no other worker writes to its cache lines, whatever lies beside it. 128 bytes: processors
/// fetch lines of 64 in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct Shard {
    listener: ListenerId,
    counts: [AtomicU64; Counter::ALL.len()],
    open: AtomicUsize,
    times: [Histogram; Timing::ALL.len()],
    /// By [`Reason`].
    refusals: [AtomicU64; Reason::ALL.len()],
    stays: Stays,
}

/// Counts by reason.
#[derive(Debug)]
struct Stays {
    /// A reason takes the first free place, and keeps it.
    known: [(OnceLock<&'static str>, AtomicU64); STAYS],
    other: AtomicU64,
}

impl Default for Stays {
    fn default() -> Self {
        Self { known: [const { (OnceLock::new(), AtomicU64::new(0)) }; STAYS], other: AtomicU64::new(0) }
    }
}

impl Stays {
    fn count(&self, reason: &'static str) {
        let is_its_own = |(known, _): &&(OnceLock<_>, _)| *known.get_or_init(|| reason) == reason;
        let counter = self.known.iter().find(is_its_own).map_or(&self.other, |(_, count)| count);
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, counts: &mut BTreeMap<&'static str, u64>) {
        let known = self.known.iter().map_while(|(reason, count)| Some((*reason.get()?, count)));
        for (reason, count) in known.chain([(OTHER, &self.other)]) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                *counts.entry(reason).or_default() += count;
            }
        }
    }
}

impl Shard {
    fn of(listener: ListenerId) -> Self {
        Self {
            listener,
            counts: [const { AtomicU64::new(0) }; Counter::ALL.len()],
            open: AtomicUsize::new(0),
            times: Default::default(),
            refusals: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            stays: Stays::default(),
        }
    }

    /// Whose counters these are.
    #[must_use]
    pub fn listener(&self) -> ListenerId {
        self.listener
    }

    /// Increments `counter`.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount` to `counter`.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.counts[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts one refusal.
    pub fn refuse(&self, reason: Reason) {
        self.refusals[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a session that was to leave user space and stays. `reason` is a constant snake_case label,
    /// never text from the network.
    pub fn stay(&self, reason: &'static str) {
        self.count(Counter::NotSpliced);
        self.stays.count(reason);
    }

    /// Adds bytes that were delivered.
    pub fn add_bytes(&self, up: u64, down: u64) {
        for (counter, bytes) in [(Counter::BytesUp, up), (Counter::BytesDown, down)] {
            if bytes > 0 {
                self.add(counter, bytes);
            }
        }
    }

    /// Counts a measured time.
    pub fn observe(&self, timing: Timing, time: Duration) {
        self.times[timing as usize].observe(timing, time);
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

/// All workers' counters.
#[derive(Debug, Default)]
pub struct Counters {
    shards: Mutex<Vec<(ListenerId, Arc<Shard>)>>,
}

impl Counters {
    /// A shard for `listener` in another worker.
    #[must_use]
    pub fn shard(&self, listener: ListenerId) -> Arc<Shard> {
        let shard = Arc::new(Shard::of(listener));
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push((listener, Arc::clone(&shard)));
        shard
    }

    /// Holds the lock until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold_lock(&self) -> impl Sized + '_ {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The number of open connections and flows, also of those that have left user space.
    #[must_use]
    pub fn all_open(&self) -> usize {
        self.sum(|_| true, |shard| shard.open.load(Ordering::Relaxed))
    }

    fn sum<T: std::iter::Sum>(&self, which: impl Fn(ListenerId) -> bool, of: impl Fn(&Shard) -> T) -> T {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().filter(|(listener, _)| which(*listener)).map(|(_, shard)| of(shard)).sum()
    }

    /// The times of one kind for `listener`.
    #[must_use]
    pub fn times(&self, listener: ListenerId, timing: Timing) -> Times {
        let mut times = Times::default();
        self.each(|of, shard| {
            if of == listener {
                shard.times[timing as usize].add_to(&mut times);
            }
        });
        times
    }

    /// The count of each reason, for all listeners.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refusals_where(|_| true)
    }

    /// The count of each reason for `listener`.
    #[must_use]
    pub fn refusals_of(&self, listener: ListenerId) -> BTreeMap<&'static str, u64> {
        self.refusals_where(|of| of == listener)
    }

    /// The sessions of `listener` that have stayed in user space, by reason.
    #[must_use]
    pub fn stays_of(&self, listener: ListenerId) -> BTreeMap<&'static str, u64> {
        let mut stays = BTreeMap::new();
        self.each(|of, shard| {
            if of == listener {
                shard.stays.add_to(&mut stays);
            }
        });
        stays
    }

    fn refusals_where(&self, which: impl Fn(ListenerId) -> bool) -> BTreeMap<&'static str, u64> {
        let mut refusals = BTreeMap::new();
        self.each(|of, shard| {
            if which(of) {
                for reason in Reason::ALL {
                    let count = shard.refusals[reason as usize].load(Ordering::Relaxed);
                    if count > 0 {
                        *refusals.entry(reason.code()).or_default() += count;
                    }
                }
            }
        });
        refusals
    }

    fn each(&self, mut visit: impl FnMut(ListenerId, &Shard)) {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().for_each(|(listener, shard)| visit(*listener, shard));
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
    fn a_shard_shares_no_cache_line_with_its_neighbours() {
        assert_eq!((align_of::<Shard>(), size_of::<Shard>() % 128), (128, 0));
    }

    #[test]
    fn names_are_unique_and_explained() {
        let names: std::collections::HashSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().all(|counter| counter.help().ends_with('.')));
    }

    #[test]
    fn refusals_are_counted_by_reason_and_listener() {
        let counters = Counters::default();
        let [first, second] = [0, 1].map(ListenerId::new);
        let shards = [first, first, second].map(|listener| counters.shard(listener));
        for shard in &shards {
            shard.refuse(Reason::SenderNotAllowed);
            shard.refuse(Reason::HeaderTimeout);
            shard.refuse(Reason::SenderNotAllowed);
        }
        let counts = |times| BTreeMap::from([("sender_not_allowed", 2 * times), ("header_timeout", times)]);
        assert_eq!(counters.refusals_of(second), counts(1));
        assert_eq!(counters.refusals_of(first), counts(2));
        assert_eq!(counters.refusals(), counts(3));
    }

    #[test]
    fn sessions_that_stay_are_counted_by_reason_and_listener() {
        let counters = Counters::default();
        let [first, second] = [0, 1].map(ListenerId::new);
        let shards = [first, first, second].map(|listener| counters.shard(listener));
        shards[0].stay("offers");
        shards[1].stay("offers");
        shards[2].stay("unsent");
        assert_eq!(counters.stays_of(first), BTreeMap::from([("offers", 2)]));
        assert_eq!(counters.stays_of(second), BTreeMap::from([("unsent", 1)]));
        assert_eq!((counters.of(first, Counter::NotSpliced), counters.total(Counter::NotSpliced)), (2, 3));
        assert_eq!(counters.refusals(), BTreeMap::new());
    }

    #[test]
    fn more_reasons_than_expected_are_counted_together() {
        let counters = Counters::default();
        let listener = ListenerId::new(0);
        let shard = counters.shard(listener);
        // Each beginning of it is a reason of its own.
        const LONGEST: &str = "012345678901234567890123456789";
        for len in 1..=STAYS + 3 {
            shard.stay(&LONGEST[..len]);
        }
        let stays = counters.stays_of(listener);
        assert_eq!((stays.len(), stays[OTHER]), (STAYS + 1, 3));
    }

    #[test]
    fn times_add_up_by_listener() {
        let counters = Counters::default();
        let [first, second] = [0, 1].map(ListenerId::new);
        for shard in [counters.shard(first), counters.shard(first), counters.shard(second)] {
            shard.observe(Timing::BackendConnect, Duration::from_millis(3));
        }
        assert_eq!(counters.times(first, Timing::BackendConnect).count(), 2);
        assert_eq!(counters.times(second, Timing::BackendConnect).sum, Duration::from_millis(3));
        assert_eq!(counters.times(second, Timing::HeaderWait), Times::default());
    }
}
