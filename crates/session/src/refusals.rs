//! One worker's complaints about refused datagrams, without a lock for each.
//!
//! A flood of refused datagrams must not make all workers wait for each other. So each answer of
//! [`Complaints`] is reused for a moment.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use crate::complaints::{Complaints, Subject};

/// How long an answer of [`Complaints`] is reused.
const HOLDS: Duration = Duration::from_secs(1);
/// The most answers remembered. Above that, all other addresses share one.
const MOST_REMEMBERED: usize = 256;

/// The worker's refusals in the last moment.
#[derive(Debug, Default)]
pub struct Refusals {
    recent: HashMap<Subject, Recent>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Recent {
    asked: Instant,
    held_back: u64,
}

impl Refusals {
    /// Notes one refusal. Returns whether it may be logged at `now`, and if so, how many were suppressed.
    #[must_use]
    pub fn note(&mut self, complaints: &Complaints, subject: Subject, now: Instant) -> Option<u64> {
        let key = self.key(complaints, subject, now);
        match self.recent.entry(key) {
            Entry::Occupied(recent) if now.saturating_duration_since(recent.get().asked) < HOLDS => {
                recent.into_mut().held_back += 1;
                None
            }
            Entry::Occupied(recent) => {
                let recent = recent.into_mut();
                recent.asked = now;
                complaints.ask(key, std::mem::take(&mut recent.held_back), now)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Recent { asked: now, held_back: 0 });
                complaints.ask(key, 0, now)
            }
        }
    }

    /// The key itself while there is room for it, otherwise the shared one.
    fn key(&mut self, complaints: &Complaints, key: Subject, now: Instant) -> Subject {
        if self.recent.len() < MOST_REMEMBERED || self.recent.contains_key(&key) {
            return key;
        }
        // At most once a second, because it visits all entries.
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= HOLDS) {
            self.swept = Some(now);
            self.recent.retain(|subject, recent| {
                let holds = now.saturating_duration_since(recent.asked) < HOLDS;
                if !holds && recent.held_back > 0 {
                    complaints.hold_back(*subject, recent.held_back);
                }
                holds
            });
        }
        if self.recent.len() < MOST_REMEMBERED { key } else { key.of_others() }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::counters::Counters;
    use crate::reason::Reason;
    use crate::settings::ListenerId;

    const BAD: Reason = Reason::NotProxy;

    fn of(n: u32) -> Subject {
        Subject { reason: BAD, listener: ListenerId::new(0), about: Some(Ipv4Addr::from_bits(n).into()) }
    }

    #[test]
    fn a_flood_takes_no_lock_but_for_its_first_datagram() {
        let (complaints, counters) = (Complaints::default(), Counters::default());
        let shard = counters.shard(ListenerId::new(0));
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        shard.refuse(BAD);
        assert_eq!(refusals.note(&complaints, of(1), now), Some(0));
        // A thread that takes one of these locks now would wait forever.
        let held = (complaints.hold_lock(), counters.hold_lock());
        for _ in 0..100_000 {
            shard.refuse(BAD);
            assert_eq!(refusals.note(&complaints, of(1), now + HOLDS / 2), None);
        }
        drop(held);
        assert_eq!(counters.refusals().get(BAD.code()), Some(&100_001));
    }

    #[test]
    fn suppressed_refusals_of_all_workers_are_logged_once_a_minute() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let mut workers = [Refusals::default(), Refusals::default()];
        let mut said = Vec::new();
        for second in 0..=60 {
            for worker in &mut workers {
                for _ in 0..10 {
                    said.extend(worker.note(&complaints, of(1), start + HOLDS * second));
                }
            }
        }
        // The first one in the last second reports all that were suppressed before, except those that the
        // other worker still holds.
        assert_eq!(said.len(), 2);
        assert!(said[0] == 0 && (1190..=1199).contains(&said[1]), "{said:?}");
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_senders() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let mut refusals = Refusals::default();
        for n in 0..100_000 {
            let _ = refusals.note(&complaints, of(n), start);
        }
        assert!(refusals.recent.len() <= MOST_REMEMBERED + 1);
        // Later there is room again.
        assert_eq!(refusals.note(&complaints, of(200_000), start + HOLDS * 2), Some(0));
        assert!(refusals.recent.len() <= 2);
    }
}
