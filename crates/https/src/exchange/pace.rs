//! A client's average rate. Timeouts for each wait are not enough: one byte before each timeout would keep a
//! request open forever.

use std::time::Duration;

/// Time spent waiting for the client, and bytes moved. Time spent waiting for the origin does not count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Adds one wait, and the bytes that moved after it.
    pub(crate) fn note(&mut self, waited: Duration, bytes: usize) {
        self.waited += waited;
        self.bytes += bytes as u64;
    }

    /// Whether the rate is below `rate` bytes a second. Always `false` for the first `grace` of waiting.
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
