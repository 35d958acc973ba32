//! When a certificate is due. Pure: the time is a parameter.

use std::time::{Duration, SystemTime};

use crate::validity::Validity;

const MINUTE: Duration = Duration::from_secs(60);

/// The pauses after one failure, two, and so on. An authority counts failures: Let's Encrypt refuses a name
/// after five within an hour.
const PAUSES: [Duration; 6] = [
    MINUTE,
    Duration::from_secs(5 * 60),
    Duration::from_secs(20 * 60),
    Duration::from_secs(60 * 60),
    Duration::from_secs(3 * 60 * 60),
    Duration::from_secs(6 * 60 * 60),
];
/// After an authority has said that there are too many requests, and not for how long.
pub(crate) const RATE_LIMITED: Duration = Duration::from_secs(60 * 60);
/// The shortest pause, also for a certificate that is valid for seconds.
const LEAST: Duration = Duration::from_secs(1);
/// The shortest pause after a new certificate that is due at once, whatever its life: the next order would
/// bring the same.
pub(crate) const DUE_AGAIN: Duration = MINUTE;
/// The longest pause that an authority may ask for. Let's Encrypt's limits last for a week at most, and a
/// certificate of 90 days that is due has 30 left.
const MOST: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time servers correct a clock by less.
const SET_BACK: Duration = MINUTE;

/// Failures since the last success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Failures {
    pub(crate) count: usize,
    /// The last one.
    last: Option<Failed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failed {
    at: SystemTime,
    /// When to try again at the earliest.
    until: SystemTime,
}

impl Failures {
    /// One more, at `now`. `at_least`: the pause that the authority asks for. A certificate that is about to
    /// expire, in `left`, is tried for again before: in a quarter of that time.
    pub(crate) fn add(
        &mut self,
        now: SystemTime,
        at_least: Option<Duration>,
        left: Option<Duration>,
    ) -> Duration {
        let usual = PAUSES[self.count.min(PAUSES.len() - 1)];
        let soon = left.filter(|left| !left.is_zero()).map_or(usual, |left| usual.min(left / 4));
        let pause = soon.max(at_least.unwrap_or_default()).clamp(LEAST, MOST);
        self.count += 1;
        self.last = Some(Failed { at: now, until: now + pause });
        pause
    }
}

/// The time in which the authority suggests to renew a certificate (RFC 9773, 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

impl Window {
    /// The moment of the window to renew at, `part` (0 to 1) of it after its start. `None`: the window can't
    /// be meant for a certificate of this life.
    pub(crate) fn moment(self, life: Validity, part: f64) -> Option<SystemTime> {
        let length = self.until.duration_since(self.from).ok()?;
        // In the last tenth a failure could cost the certificate.
        let latest = life.from + life.length() * 9 / 10;
        (self.until <= life.until).then(|| latest.min(self.from + length.mul_f64(part)))
    }
}

/// When to order a certificate: when the authority suggests it, otherwise at two thirds of the life of the
/// one that is there; at once if there is none for these names; but not before failures allow it.
pub(crate) fn due(
    validity: Option<Validity>,
    suggested: Option<SystemTime>,
    failures: Failures,
    now: SystemTime,
) -> SystemTime {
    let renewal = validity.map_or(now, |life| suggested.unwrap_or(life.from + life.length() * 2 / 3));
    match failures.last {
        // The clock was set back since then, so `until` may be years away.
        Some(last) if last.at.duration_since(now).is_ok_and(|ahead| ahead > SET_BACK) => renewal,
        Some(last) => renewal.max(last.until),
        None => renewal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * (20_000 + days)
    }

    fn of(from: u32, until: u32) -> Option<Validity> {
        Some(Validity { from: at(from), until: at(until) })
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let none = Failures::default();
        assert_eq!(due(None, None, none, at(5)), at(5));
        assert_eq!(due(of(0, 90), None, none, at(5)), at(60));
        assert_eq!(due(of(0, 6), None, none, at(5)), at(4), "short-lived");
        assert_eq!(due(of(0, 90), None, none, at(200)), at(60), "long over");
        // A clock that is wrong: the certificate comes from the future, or is over by its own dates.
        assert_eq!(due(of(10, 100), None, none, at(0)), at(70));
        assert_eq!(due(of(10, 0), None, none, at(0)), at(10));
    }

    #[test]
    fn the_authority_may_suggest_another_time() {
        let (life, none) = (of(0, 90).unwrap(), Failures::default());
        let window = |from, until| Window { from: at(from), until: at(until) };
        let moment = |from, until, part| window(from, until).moment(life, part);
        assert_eq!(moment(30, 32, 0.0), Some(at(30)));
        assert_eq!(moment(30, 32, 0.5), Some(at(31)));
        assert_eq!(due(Some(life), moment(30, 32, 0.5), none, at(1)), at(31));
        // All renew at once what is to be revoked: the window is over.
        assert!(due(Some(life), moment(3, 4, 1.0), none, at(10)) <= at(10));
        // It is not as late as it says.
        assert_eq!(moment(80, 90, 1.0), Some(at(81)));
        // Nonsense: it ends before it begins, or after the certificate.
        assert_eq!(moment(32, 30, 0.5), None);
        assert_eq!(moment(30, 91, 0.5), None);
        // Failures count as for every renewal.
        let mut failures = none;
        failures.add(at(31), Some(DAY), None);
        assert_eq!(due(Some(life), Some(at(31)), failures, at(31)), at(32));
    }

    #[test]
    fn failures_make_the_pauses_longer() {
        let mut failures = Failures::default();
        let pauses: Vec<_> = (0..8).map(|_| failures.add(at(0), None, None).as_secs() / 60).collect();
        assert_eq!(pauses, [1, 5, 20, 60, 180, 360, 360, 360]);
        assert_eq!(due(None, None, failures, at(0)), at(0) + Duration::from_secs(6 * 3600));
        // Five within an hour would be too many.
        assert!(pauses[..4].iter().sum::<u64>() >= 60);
    }

    #[test]
    fn an_authority_that_is_down_for_a_day_costs_no_certificate() {
        let (mut failures, mut now) = (Failures::default(), at(60));
        let validity = of(0, 90);
        while now < at(61) {
            assert!(due(validity, None, failures, now) <= now);
            let left = validity.unwrap().until.duration_since(now).ok();
            now += failures.add(now, None, left);
        }
        assert!(failures.count < 12, "{}", failures.count);
        assert!(now < at(62));
    }

    #[test]
    fn the_authority_may_ask_for_more_and_a_short_life_for_less() {
        let mut failures = Failures::default();
        assert_eq!(failures.add(at(0), Some(DAY), None), DAY);
        assert_eq!(due(None, None, failures, at(0)), at(1), "a day is no sign of a clock that was set back");
        assert_eq!(failures.add(at(0), Some(Duration::MAX), None), MOST);
        assert_eq!(due(None, None, failures, at(0)), at(7));
        let mut failures = Failures { count: 5, last: None };
        assert_eq!(failures.add(at(0), None, Some(Duration::from_secs(40))), Duration::from_secs(10));
        assert_eq!(failures.add(at(0), None, Some(Duration::from_secs(1))), LEAST);
        assert_eq!(failures.add(at(0), None, Some(Duration::ZERO)), PAUSES[5], "it is over");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_hold_up_a_renewal() {
        let failures = Failures { count: 1, last: Some(Failed { at: at(299), until: at(300) }) };
        assert_eq!(due(None, None, failures, at(0)), at(0));
        assert_eq!(due(None, None, failures, at(299)), at(300));
    }
}
