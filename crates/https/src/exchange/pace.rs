//! How fast a client is with a body, on average: a time-out for each wait alone lets one byte in each keep everything for ever.

use std::time::Duration;

/// What has been waited for, and what came of it. Time in which nobody waits for the client does not count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// So many bytes came, or were taken, after such a wait.
    pub(crate) fn note(&mut self, waited: Duration, bytes: usize) {
        self.waited += waited;
        self.bytes += bytes as u64;
    }

    /// Whether it is below `rate` bytes a second, once it has been waited for longer than `grace` in all.
    pub(crate) fn is_too_slow(&self, grace: Duration, rate: u64) -> bool {
        self.waited > grace && u128::from(self.bytes) * 1000 < u128::from(rate) * self.waited.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_counts_once_the_grace_is_over() {
        let (second, grace) = (Duration::from_secs(1), Duration::from_secs(30));
        let mut pace = Pace::default();
        (0..30).for_each(|_| pace.note(second, 1));
        assert!(!pace.is_too_slow(grace, 500));
        pace.note(second, 1);
        assert!(pace.is_too_slow(grace, 500));
        assert!(!pace.is_too_slow(grace, 1));
        assert!(!pace.is_too_slow(grace, 0));
        pace.note(Duration::ZERO, 31 * 500);
        assert!(!pace.is_too_slow(grace, 500));
    }
}
