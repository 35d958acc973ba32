//! Places for new flows. A place is used again only when no program that still runs knows it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So long a place rests if nobody has waited for a [grace period](FreePlaces::have_rested).
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct FreePlaces {
    /// How many places this process has.
    all: usize,
    /// In the order in which they were given back, and when. `None`: no program has known it.
    queue: VecDeque<(u32, Option<Instant>)>,
    /// What was given back before then has rested.
    rested_before: Option<Instant>,
}

impl FreePlaces {
    /// So many more places are this process's. Those that are free are given to it next.
    pub(super) fn grow(&mut self, places: usize) {
        self.all += places;
    }

    /// No program has known this place: it is used first.
    pub(super) fn give_unused(&mut self, place: u32) {
        self.queue.push_front((place, None));
    }

    pub(super) fn give_back(&mut self, place: u32, since: Option<Instant>) {
        self.queue.push_back((place, since));
    }

    /// All are another process's from now on.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.all = 0;
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<u32> {
        let (_, since) = self.queue.front()?;
        if since.is_some_and(|since| !self.has_rested(since, now)) {
            return None;
        }
        self.queue.pop_front().map(|(place, _)| place)
    }

    fn has_rested(&self, since: Instant, now: Instant) -> bool {
        self.rested_before.is_some_and(|before| since < before)
            || now.saturating_duration_since(since) >= REST
    }

    /// A grace period has passed since `before`: no program runs any more that ran then.
    pub(super) fn have_rested(&mut self, before: Instant) {
        self.rested_before = Some(before);
    }

    /// Some places are in use.
    pub(super) fn are_in_use(&self) -> bool {
        self.queue.len() < self.all
    }

    /// A quarter of the places is in use.
    pub(super) fn is_filling(&self) -> bool {
        self.queue.len() < self.all / 4 * 3
    }

    /// Half of the places are in use.
    pub(super) fn is_short(&self) -> bool {
        self.queue.len() < self.all / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_rests_until_a_grace_period_has_passed_or_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut free = FreePlaces::default();
        free.grow(4);
        free.give_back(1, None);
        free.give_back(2, Some(at(0)));
        free.give_back(3, Some(at(10)));
        assert_eq!((free.take(at(20)), free.take(at(20))), (Some(1), None));
        // One that began before the place was given back says nothing.
        free.have_rested(at(10));
        assert_eq!((free.take(at(40)), free.take(at(40))), (Some(2), None));
        free.give_unused(4);
        assert_eq!(free.take(at(40)), Some(4));
        assert_eq!(free.take(at(1010)), Some(3));
        assert_eq!(free.take(at(1010)), None);
    }

    #[test]
    fn places_in_use_are_those_that_are_not_here() {
        let mut free = FreePlaces::default();
        free.grow(8);
        (0..8).for_each(|place| free.give_back(place, None));
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push((free.are_in_use(), free.is_filling(), free.is_short()));
            assert!(free.take(Instant::now()).is_some());
        }
        let (idle, few, filling) = ((false, false, false), (true, false, false), (true, true, false));
        assert_eq!(seen, [idle, few, few, filling, filling]);
        assert!(free.is_short());
    }
}
