//! Places for new flows. A place is used again only when no program that still runs knows it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So long a place rests. A program runs for microseconds, and the kernel does not interrupt it for others.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct FreePlaces {
    unused: std::ops::Range<u32>,
    /// In the order in which they were given back, and when.
    rested: VecDeque<(u32, Instant)>,
}

impl FreePlaces {
    pub(crate) fn new(places: u32) -> Self {
        Self { unused: 0..places, rested: VecDeque::new() }
    }

    pub(crate) fn take(&mut self, now: Instant) -> Option<u32> {
        let has_rested = |(_, since): &mut (u32, Instant)| now.saturating_duration_since(*since) >= REST;
        self.rested.pop_front_if(has_rested).map(|(place, _)| place).or_else(|| self.unused.next())
    }

    pub(crate) fn give_back(&mut self, place: u32, now: Instant) {
        self.rested.push_back((place, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_rests_for_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut free = FreePlaces::new(2);
        assert_eq!(free.take(at(0)), Some(0));
        free.give_back(0, at(0));
        assert_eq!([free.take(at(10)), free.take(at(20))], [Some(1), None]);
        assert_eq!([free.take(at(1000)), free.take(at(5000))], [Some(0), None]);
    }
}
