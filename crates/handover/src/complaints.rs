//! Limits the same complaint to once a minute, without a lock or an allocation: it is called inside
//! `accept()`, in processes that fork.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::hash::DefaultHasher;

const SLOTS: usize = 512;
/// The number of neighbouring slots to search. After that, a complaint shares the last one.
const PROBES: usize = 8;
const SILENCE: Duration = Duration::from_secs(60);

/// Remembers each complaint and its time. Two complaints that share a slot suppress each other.
#[derive(Debug)]
pub struct LockFreeComplaints {
    slots: [Slot; SLOTS],
}

#[derive(Debug)]
struct Slot {
    /// The hash of the complaint; 0: unused.
    key: AtomicU64,
    /// When it was logged, in milliseconds of the caller's clock.
    said: AtomicU64,
    held_back: AtomicU64,
}

impl Slot {
    const fn empty() -> Self {
        Self { key: AtomicU64::new(0), said: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }
}

impl Default for LockFreeComplaints {
    fn default() -> Self {
        Self::new()
    }
}

impl LockFreeComplaints {
    /// Nothing was said.
    pub const fn new() -> Self {
        Self { slots: [const { Slot::empty() }; SLOTS] }
    }

    /// Whether a complaint about `about` for `reason` may be logged at `now` (a time since any fixed start).
    /// If so, returns how many were suppressed before.
    pub fn may_say(&self, reason: &str, about: Option<IpAddr>, now: Duration) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        (reason, about).hash(&mut hasher);
        let key = hasher.finish().max(1);
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let slot = self.slot(key, now);
        let said = slot.said.load(Ordering::Relaxed);
        let due = said == 0 || is_over(said, now);
        let ours = due && slot.said.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !ours {
            slot.held_back.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        slot.key.store(key, Ordering::Relaxed);
        Some(slot.held_back.swap(0, Ordering::Relaxed))
    }

    /// The complaint's own slot, a free or expired one, or the last one searched.
    fn slot(&self, key: u64, now: u64) -> &Slot {
        let start = usize::try_from(key % SLOTS as u64).unwrap_or(0);
        let near = |n: usize| &self.slots[(start + n) % SLOTS];
        let own = (0..PROBES).map(near).find(|slot| slot.key.load(Ordering::Relaxed) == key);
        let free = || {
            (0..PROBES).map(near).find(|slot| {
                slot.key.load(Ordering::Relaxed) == 0 || is_over(slot.said.load(Ordering::Relaxed), now)
            })
        };
        own.or_else(free).unwrap_or_else(|| near(PROBES - 1))
    }
}

fn is_over(said: u64, now: u64) -> bool {
    u128::from(now.saturating_sub(said)) >= SILENCE.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_repeated_after_a_minute_with_what_was_held_back() {
        let complaints = LockFreeComplaints::new();
        let at = |seconds| Duration::from_secs(seconds);
        let one: Option<IpAddr> = "192.0.2.1".parse().ok();
        let other: Option<IpAddr> = "192.0.2.2".parse().ok();
        assert_eq!(complaints.may_say("a", one, at(0)), Some(0));
        assert_eq!(complaints.may_say("a", one, at(1)), None);
        assert_eq!(complaints.may_say("a", one, at(59)), None);
        assert_eq!(complaints.may_say("a", other, at(59)), Some(0));
        assert_eq!(complaints.may_say("b", one, at(59)), Some(0));
        assert_eq!(complaints.may_say("a", one, at(61)), Some(2));
    }

    /// The number of lines in a minute is bounded, however many senders cause complaints.
    #[test]
    fn a_crowd_is_heard_in_part() {
        let complaints = LockFreeComplaints::new();
        let said = (0..100_000_u32)
            .filter(|n| {
                complaints.may_say("a", Some(IpAddr::from(n.to_be_bytes())), Duration::ZERO).is_some()
            })
            .count();
        assert!((100..=SLOTS).contains(&said), "{said}");
    }
}
