//! How long things take, in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of upper bounds. One more bucket takes longer times.
const BOUNDS: usize = 12;

/// A time that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// From accepting a connection to its whole header.
    HeaderWait,
    /// From the first attempt to connect to the backend's answer.
    BackendConnect,
    /// From accepting a connection to its end, if it became a session.
    SessionLength,
}

impl Timing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::HeaderWait, Self::BackendConnect, Self::SessionLength];

    /// The upper bounds of the buckets, in seconds.
    #[must_use]
    pub const fn bounds(self) -> [f64; BOUNDS] {
        match self {
            Self::HeaderWait | Self::BackendConnect => {
                [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]
            }
            Self::SessionLength => {
                [0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0]
            }
        }
    }
}

/// The times of one kind, counted by one worker for one listener.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Not cumulative.
    buckets: [AtomicU64; BOUNDS + 1],
    sum_microseconds: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, timing: Timing, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = timing.bounds().iter().take_while(|bound| seconds > **bound).count();
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, times: &mut Times) {
        for (sum, bucket) in times.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        times.sum += Duration::from_micros(self.sum_microseconds.load(Ordering::Relaxed));
    }
}

/// The times of one kind, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// How many times were at most each bound and more than the one before, then those above all bounds.
    pub buckets: [u64; BOUNDS + 1],
    /// Their sum.
    pub sum: Duration,
}

impl Times {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_reaches_it() {
        let histogram = Histogram::default();
        for milliseconds in [0, 1, 2, 5000, 5001, 1 << 40] {
            histogram.observe(Timing::HeaderWait, Duration::from_millis(milliseconds));
        }
        let mut times = Times::default();
        histogram.add_to(&mut times);
        assert_eq!(times.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((times.count(), times.sum), (6, Duration::from_millis(10_004 + (1 << 40))));
    }

    #[test]
    fn bounds_grow() {
        for timing in Timing::ALL {
            assert!(timing.bounds().is_sorted());
        }
    }
}
