//! How many events a pod gets: its owner may change annotations in a loop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const AT_ONCE: u32 = 10;
const REFILL: Duration = Duration::from_secs(60);
/// The same event is not repeated for so long. Kubernetes keeps events for an hour.
const REPEAT: Duration = Duration::from_secs(30 * 60);

/// The events of one pod.
#[derive(Debug)]
pub(super) struct Limit {
    left: u32,
    refilled: Instant,
    said: BTreeMap<String, Instant>,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: AT_ONCE, refilled: now, said: BTreeMap::new() }
    }

    /// Whether this may be said now.
    pub(super) fn admits(&mut self, text: &str, now: Instant) -> bool {
        while self.left < AT_ONCE && now.duration_since(self.refilled) >= REFILL {
            self.left += 1;
            self.refilled += REFILL;
        }
        self.said.retain(|_, last| now.duration_since(*last) < REPEAT);
        if self.left == 0 || self.said.contains_key(text) {
            return false;
        }
        if self.left == AT_ONCE {
            self.refilled = now;
        }
        self.left -= 1;
        self.said.insert(text.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_few_and_not_repeated() {
        let begin = Instant::now();
        let mut limit = Limit::new(begin);
        assert!(limit.admits("a", begin));
        assert!(!limit.admits("a", begin + Duration::from_secs(60)));
        assert!(limit.admits("a", begin + REPEAT));

        let mut limit = Limit::new(begin);
        let count =
            (0..3600u64).filter(|n| limit.admits(&n.to_string(), begin + Duration::from_secs(*n))).count();
        assert!((60..=70).contains(&count), "{count} events in an hour");
        assert!(limit.said.len() <= 40, "{}", limit.said.len());
    }
}
