//! Limits the same complaint to once a minute.
//!
//! Anyone who can open connections can cause complaints, so neither the log nor this memory may grow with
//! their number. A complaint is identified by its reason, listener and address. Suppressed complaints are
//! counted, and the next one reports the count.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::reason::Reason;
use crate::settings::ListenerId;

const SILENCE: Duration = Duration::from_secs(60);
/// The most complaints remembered. Above that, all other addresses share one entry for each reason and
/// listener.
const MOST_REMEMBERED: usize = 4096;
/// The interval between removals of expired entries.
const SWEEP: Duration = Duration::from_secs(1);

/// Remembers each complaint and its time.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<Memory>);

/// What a complaint is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// What is wrong.
    pub reason: Reason,
    /// The listener that it happened at.
    pub listener: ListenerId,
    /// Who or what is concerned. `None`: all addresses that found no room of their own.
    pub about: Option<IpAddr>,
}

impl Subject {
    /// The same for all other addresses.
    pub(crate) fn of_others(self) -> Self {
        Self { about: None, ..self }
    }
}

#[derive(Debug, Default)]
struct Memory {
    said: HashMap<Subject, Remembered>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Remembered {
    at: Instant,
    held_back: u64,
}

/// A complaint that was logged, and those that followed it in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentComplaint {
    /// What it is about.
    pub subject: Subject,
    /// It, and those that followed.
    pub count: u64,
    /// How long ago it was logged.
    pub ago: Duration,
}

impl Complaints {
    /// The remembered complaints that were logged within this time, the latest first.
    #[must_use]
    pub fn recent(&self, within: Duration, now: Instant) -> Vec<RecentComplaint> {
        let memory = self.memory();
        let all = memory.said.iter().map(|(&subject, said)| RecentComplaint {
            subject,
            count: said.held_back + 1,
            ago: now.saturating_duration_since(said.at),
        });
        let mut recent: Vec<_> = all.filter(|complaint| complaint.ago <= within).collect();
        recent.sort_by_key(|complaint| (complaint.ago, complaint.subject));
        recent
    }

    /// Whether a complaint may be logged at `now`. If so, returns how many were suppressed.
    #[must_use]
    pub fn may_log(&self, subject: Subject, now: Instant) -> Option<u64> {
        self.ask(subject, 0, now)
    }

    /// The same, with `held_back` suppressed elsewhere.
    pub(crate) fn ask(&self, subject: Subject, held_back: u64, now: Instant) -> Option<u64> {
        let mut memory = self.memory();
        let is_kept = subject.about.is_none() || memory.said.contains_key(&subject) || memory.has_room(now);
        let key = if is_kept { subject } else { subject.of_others() };
        memory.say(key, now).map(|before| before + held_back).or_else(|| {
            memory.hold_back(key, held_back);
            None
        })
    }

    /// Counts complaints suppressed elsewhere.
    pub(crate) fn hold_back(&self, subject: Subject, held_back: u64) {
        self.memory().hold_back(subject, held_back);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the lock until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold_lock(&self) -> impl Sized + '_ {
        self.memory()
    }
}

impl Memory {
    fn has_room(&mut self, now: Instant) -> bool {
        let due = self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP);
        if self.said.len() >= MOST_REMEMBERED && due {
            self.swept = Some(now);
            self.said.retain(|_, said| now.saturating_duration_since(said.at) < SILENCE);
        }
        self.said.len() < MOST_REMEMBERED
    }

    fn hold_back(&mut self, key: Subject, held_back: u64) {
        if let Some(said) = self.said.get_mut(&key) {
            said.held_back += held_back;
        }
    }

    fn say(&mut self, key: Subject, now: Instant) -> Option<u64> {
        match self.said.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Remembered { at: now, held_back: 0 });
                Some(0)
            }
            Entry::Occupied(said) => said.into_mut().say_again(now),
        }
    }
}

impl Remembered {
    fn say_again(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.at) < SILENCE {
            self.held_back += 1;
            return None;
        }
        self.at = now;
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const BAD: Reason = Reason::NotProxy;
    const WORSE: Reason = Reason::Panicked;

    fn of(reason: Reason, about: IpAddr) -> Subject {
        Subject { reason, listener: ListenerId::new(0), about: Some(about) }
    }

    #[test]
    fn the_same_complaint_is_logged_once_a_minute_with_a_count() {
        let complaints = Complaints::default();
        let start = Instant::now();
        assert_eq!(complaints.may_log(of(BAD, ONE), start), Some(0));
        assert_eq!(complaints.may_log(of(BAD, ONE), start + Duration::from_secs(1)), None);
        assert_eq!(complaints.may_log(of(BAD, ONE), start + Duration::from_secs(59)), None);
        assert_eq!(complaints.may_log(of(WORSE, ONE), start), Some(0));
        assert_eq!(complaints.may_log(of(BAD, ONE), start + SILENCE), Some(2));
    }

    #[test]
    fn the_same_complaint_at_another_listener_is_another_one() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let at = |number| Subject { listener: ListenerId::new(number), ..of(BAD, ONE) };
        assert_eq!([at(0), at(1), at(0)].map(|one| complaints.may_log(one, start)), [Some(0), Some(0), None]);
        let recent = complaints.recent(SILENCE, start);
        assert_eq!(
            recent.iter().map(|one| (one.subject, one.count)).collect::<Vec<_>>(),
            [(at(0), 2), (at(1), 1)]
        );
    }

    #[test]
    fn complaints_of_the_last_minutes_are_told_with_their_counts() {
        let complaints = Complaints::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let _ = complaints.may_log(of(WORSE, ONE), start);
        let _ = complaints.may_log(of(BAD, ONE), at(300));
        let _ = complaints.may_log(of(BAD, ONE), at(301));
        let recent = complaints.recent(Duration::from_secs(60), at(310));
        let bad = RecentComplaint { subject: of(BAD, ONE), count: 2, ago: Duration::from_secs(10) };
        assert_eq!(recent, [bad]);
    }

    #[test]
    fn memory_and_log_are_bounded_however_many_addresses_there_are() {
        let complaints = Complaints::default();
        let start = Instant::now();
        let about = |i: u32| IpAddr::V4(i.into());
        let logged = (0..100_000).filter(|&i| complaints.may_log(of(BAD, about(i)), start).is_some()).count();
        assert_eq!(logged, MOST_REMEMBERED + 1);
        assert!(complaints.0.lock().expect("not poisoned").said.len() <= MOST_REMEMBERED + 1);
        let later = start + SILENCE - SWEEP / 2;
        assert_eq!(complaints.may_log(of(BAD, about(200_000)), later), None);
        let held_back = 100_000 - MOST_REMEMBERED as u64;
        assert_eq!(complaints.may_log(of(BAD, about(200_000)), start + SILENCE), Some(held_back));
    }

    #[test]
    fn other_addresses_are_counted_together() {
        let complaints = Complaints::default();
        let start = Instant::now();
        for i in 0..u32::try_from(MOST_REMEMBERED).expect("a few") {
            let _ = complaints.may_log(of(BAD, IpAddr::V4(i.into())), start + SILENCE / 2);
        }
        assert_eq!(complaints.may_log(of(BAD, ONE), start + SILENCE / 2), Some(0));
        assert_eq!(complaints.may_log(of(BAD, std::net::Ipv6Addr::LOCALHOST.into()), start + SILENCE), None);
        assert_eq!(complaints.may_log(of(WORSE, ONE), start + SILENCE), Some(0));
    }
}
