//! How soon a pod's next step may begin. Each costs half a second of CPU time, so a pod whose owner changes
//! it in a loop, or whose attachment fails, waits longer and longer; others don't.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The pace of one pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    gap: Duration,
    last: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { gap: FIRST, last: None }
    }

    /// The first step may begin at once.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= self.gap)
    }

    /// When the next step may begin.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.last.map(|last| last + self.gap)
    }

    /// A step begins: the next one waits twice as long, unless nothing has happened for a while.
    pub(crate) fn begin(&mut self, now: Instant) {
        let is_quiet = self.last.is_none_or(|last| now.duration_since(last) >= 2 * LONGEST);
        self.gap = if is_quiet { FIRST } else { LONGEST.min(self.gap * 2) };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_rare_and_quiet_is_forgiven() {
        let begin = Instant::now();
        let mut backoff = Backoff::new();
        let (mut now, mut count) = (begin, 0);
        while now < begin + Duration::from_secs(600) {
            if backoff.is_due(now) {
                backoff.begin(now);
                count += 1;
            }
            now += Duration::from_millis(100);
        }
        assert!((10..20).contains(&count), "{count} steps in ten minutes");
        assert!(backoff.due().unwrap() > now - LONGEST);
        now += 2 * LONGEST;
        backoff.begin(now);
        assert!(!backoff.is_due(now + Duration::from_millis(900)) && backoff.is_due(now + FIRST));
    }
}
