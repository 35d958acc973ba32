//! Whether an origin is up, by its checks.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use truepeer_policy::{BackendAddr, ClientAddr};

/// An origin is down after so many failed checks in a row. One success brings it up again.
const FAILURES: u32 = 2;

/// How long a check may take.
pub const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// How an origin is checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HealthRule {
    /// A path that must be answered with 2xx or 3xx; `None`: a connection (and its TLS handshake) is enough.
    pub path: Option<String>,
    /// The host that is asked for, with its port unless that is the usual one.
    pub host: String,
    /// The pause between two checks.
    pub every: Duration,
}

/// The check of one address. Listeners whose origins have equal checks share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Check {
    /// The address.
    pub address: BackendAddr,
    /// What is asked, and how often.
    pub rule: HealthRule,
    /// A digest of everything else that a connection depends on: TLS with its files, the version of HTTP, a
    /// PROXY header, the mark.
    pub connection: u64,
}

/// A change that a check has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthChange {
    /// It is up again.
    Up,
    /// It is down.
    Down,
}

/// The health of one address. All workers share it; the first one that asks does a check that is due.
pub struct Health {
    check: Check,
    failures: AtomicU32,
    /// When the next check is due.
    due: Mutex<Instant>,
}

impl Health {
    /// An origin is up until checks have failed.
    fn new(check: Check) -> Self {
        Self { check, failures: AtomicU32::new(0), due: Mutex::new(Instant::now()) }
    }

    /// What is checked.
    pub fn check(&self) -> &Check {
        &self.check
    }

    /// Whether requests are refused.
    pub fn is_down(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// `Ok`: a check is due, and the caller must do it. Err: the time until the next one.
    pub fn take_turn(&self, now: Instant) -> Result<(), Duration> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        match due.checked_duration_since(now) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                // If the worker ends before its check, another worker takes the next turn.
                *due = now + CHECK_LIMIT + self.check.rule.every;
                Ok(())
            }
        }
    }

    /// Notes a check that has ended `now`. `None`: it says nothing about the origin.
    pub fn note(&self, is_up: Option<bool>, now: Instant) -> Option<HealthChange> {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner) = now + self.check.rule.every;
        let before = self.failures.load(Ordering::Relaxed);
        let failures = if is_up? { 0 } else { before.saturating_add(1) };
        self.failures.store(failures, Ordering::Relaxed);
        match (before >= FAILURES, failures >= FAILURES) {
            (false, true) => Some(HealthChange::Down),
            (true, false) => Some(HealthChange::Up),
            _ => None,
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("check", &self.check).field("is_down", &self.is_down()).finish()
    }
}

/// The health of an origin's addresses, by the client's family. An origin with one address has the same one
/// twice.
#[derive(Debug, Clone, Default)]
pub struct OriginHealth {
    /// For the address that IPv4 clients use; `None`: it is not checked.
    pub ipv4: Option<Arc<Health>>,
    /// For the address that IPv6 clients use.
    pub ipv6: Option<Arc<Health>>,
}

impl OriginHealth {
    /// Whether this client's requests are refused.
    pub fn is_down(&self, client: ClientAddr) -> bool {
        let of_family = if client.ip().is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        of_family.as_ref().is_some_and(|health| health.is_down())
    }

    /// Each address once.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Health>> {
        let is_another = |six: &&Arc<Health>| !self.ipv4.as_ref().is_some_and(|four| Arc::ptr_eq(four, six));
        self.ipv4.iter().chain(self.ipv6.iter().filter(is_another))
    }
}

/// The health of all addresses of this process. An entry outlives a reload: it is forgotten with the last
/// connection whose rules ask for it.
#[derive(Debug, Default)]
pub struct HealthTable(Mutex<HashMap<Check, Weak<Health>>>);

impl HealthTable {
    /// The health of this address.
    #[must_use]
    pub fn of(&self, check: Check) -> Arc<Health> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, health| health.strong_count() > 0);
        if let Some(health) = table.get(&check).and_then(Weak::upgrade) {
            return health;
        }
        let health = Arc::new(Health::new(check.clone()));
        table.insert(check, Arc::downgrade(&health));
        health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str) -> Check {
        let rule = HealthRule { path: None, host: "a".to_owned(), every: Duration::from_secs(1) };
        Check { address: BackendAddr::new(address.parse().unwrap()), rule, connection: 0 }
    }

    #[test]
    fn an_origin_is_down_after_two_failures_and_up_after_one_success() {
        let (health, now) = (Health::new(check("127.0.0.1:1")), Instant::now());
        let results =
            [Some(false), Some(true), Some(false), None, Some(false), None, Some(false), Some(true)];
        let (down, up) = (Some(HealthChange::Down), Some(HealthChange::Up));
        let notes = results.map(|result| health.note(result, now));
        assert_eq!(notes, [None, None, None, None, down, None, None, up]);
        assert!(!health.is_down());
    }

    #[test]
    fn each_check_is_done_by_one() {
        let (health, start) = (Health::new(check("127.0.0.1:1")), Instant::now());
        assert_eq!(health.take_turn(start), Ok(()));
        assert_eq!(health.take_turn(start), Err(Duration::from_secs(6)));
        // Whoever had the turn has ended.
        assert_eq!(health.take_turn(start + Duration::from_secs(6)), Ok(()));
        health.note(Some(true), start + Duration::from_secs(7));
        assert!(health.take_turn(start + Duration::from_secs(7)).is_err());
        assert_eq!(health.take_turn(start + Duration::from_secs(8)), Ok(()));
    }

    #[test]
    fn those_who_ask_the_same_share_it_as_long_as_one_has_it() {
        let table = HealthTable::default();
        let one = table.of(check("127.0.0.1:1"));
        assert!(Arc::ptr_eq(&one, &table.of(check("127.0.0.1:1"))));
        assert!(!Arc::ptr_eq(&one, &table.of(check("127.0.0.1:2"))));
        let now = Instant::now();
        assert!(one.note(Some(false), now).is_none() && one.note(Some(false), now).is_some());
        drop(one);
        assert!(!table.of(check("127.0.0.1:1")).is_down());
        assert_eq!(table.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_client_is_refused_by_the_address_of_its_family() {
        let (table, now) = (HealthTable::default(), Instant::now());
        let [ipv4, ipv6] = ["127.0.0.1:1", "[::1]:1"].map(|address| Some(table.of(check(address))));
        let health = OriginHealth { ipv4: ipv4.clone(), ipv6 };
        let client = |text: &str| ClientAddr::new(text.parse().unwrap());
        for _ in 0..FAILURES {
            ipv4.as_ref().unwrap().note(Some(false), now);
        }
        assert!(health.is_down(client("192.0.2.1:1")) && !health.is_down(client("[2001:db8::1]:1")));
        assert_eq!(health.all().count(), 2);
        assert_eq!(OriginHealth { ipv6: ipv4.clone(), ipv4 }.all().count(), 1);
    }
}
