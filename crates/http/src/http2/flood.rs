//! How much a client may do that carries no request.

use std::time::Duration;

use super::frame::{DATA, END_STREAM, FrameHead, HEADERS};

/// How many control frames a client may send in a row.
const MOST_AT_ONCE: u32 = 1000;
/// How many control frames are allowed each second, such as keep-alive pings.
const EACH_SECOND: u32 = 100;
/// How many control frames are allowed for each request: priority, window, end.
const EACH_REQUEST: u32 = 8;
/// One control frame is allowed for this many bytes of a response. Some clients send two WINDOW_UPDATEs for
/// each DATA frame, and some origins send a few words at a time. A client that opens its window by single
/// bytes gains nothing.
const BYTES_EACH: usize = 16;
/// This many cancelled streams are always allowed. Above it, they must be fewer than half of all.
const RESETS_FOR_NOTHING: u64 = 100;

/// How many control frames a client may still send (CVE-2019-9511 to 9517).
#[derive(Debug)]
pub(super) struct ControlAllowance {
    left: u32,
    /// When time was last counted.
    since: Duration,
}

impl ControlAllowance {
    pub(super) fn new() -> Self {
        Self { left: MOST_AT_ONCE, since: Duration::ZERO }
    }

    /// Counts a received frame. `false`: the client has sent too many.
    pub(super) fn on_received(&mut self, head: FrameHead, now: Duration) -> bool {
        match head {
            FrameHead { kind: HEADERS, .. } => self.earn(EACH_REQUEST),
            // Each stream may end with one empty DATA frame; other empty ones count.
            FrameHead { kind: DATA, length, .. } if length > 0 || head.has(END_STREAM) => {}
            _ => return self.spend(now),
        }
        true
    }

    /// Counts bytes of a response.
    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.earn(u32::try_from(bytes / BYTES_EACH).unwrap_or(u32::MAX));
    }

    fn earn(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(MOST_AT_ONCE);
    }

    fn spend(&mut self, now: Duration) -> bool {
        if self.left == 0 {
            let passed = now.saturating_sub(self.since).min(Duration::from_secs(60));
            self.since = now;
            let millis = u32::try_from(passed.as_millis()).unwrap_or(u32::MAX);
            self.earn(millis.saturating_mul(EACH_SECOND) / 1000);
        }
        let spent = self.left.checked_sub(1);
        self.left = spent.unwrap_or_default();
        spent.is_some()
    }
}

/// Counts of a client's requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) begun: u64,
    /// Malformed, or cancelled or reset for a violation before the whole response.
    pub(super) taken_back: u64,
}

impl Tally {
    /// Whether the client cancels most of its requests ("rapid reset", CVE-2023-44487).
    pub(super) fn is_abusive(&self) -> bool {
        self.taken_back > RESETS_FOR_NOTHING && self.taken_back * 2 > self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: FrameHead = FrameHead { kind: 6, flags: 0, length: 8, stream: 0 };
    const GET: FrameHead = FrameHead { kind: HEADERS, flags: 5, length: 40, stream: 1 };

    /// Frames that may come in a row until one may not.
    fn run(allowance: &mut ControlAllowance, head: FrameHead, now: Duration) -> u32 {
        (0..).find(|_| !allowance.on_received(head, now)).unwrap()
    }

    #[test]
    fn control_frames_are_limited_and_the_allowance_refills() {
        let mut allowance = ControlAllowance::new();
        assert_eq!(run(&mut allowance, PING, Duration::ZERO), MOST_AT_ONCE);
        assert_eq!(run(&mut allowance, PING, Duration::from_secs(2)), 2 * EACH_SECOND);
        // A long silence gives no more than the initial allowance.
        assert_eq!(run(&mut allowance, PING, Duration::from_secs(1 << 30)), MOST_AT_ONCE);
    }

    #[test]
    fn requests_and_responses_raise_the_allowance_and_single_bytes_do_not() {
        let (mut allowance, now) = (ControlAllowance::new(), Duration::ZERO);
        run(&mut allowance, PING, now);
        assert!(allowance.on_received(GET, now));
        assert_eq!(run(&mut allowance, PING, now), EACH_REQUEST);
        allowance.on_sent(50);
        assert_eq!(run(&mut allowance, PING, now), 3);
        allowance.on_sent(1);
        assert_eq!(run(&mut allowance, PING, now), 0);
    }

    #[test]
    fn only_empty_data_frames_count() {
        let (mut allowance, now) = (ControlAllowance::new(), Duration::ZERO);
        let data = |flags, length| FrameHead { kind: DATA, flags, length, stream: 1 };
        for head in [data(0, 1), data(END_STREAM, 0), GET] {
            assert!((0..10 * MOST_AT_ONCE).all(|_| allowance.on_received(head, now)), "{head:?}");
        }
        assert_eq!(run(&mut allowance, data(0, 0), now), MOST_AT_ONCE);
    }

    #[test]
    fn a_client_may_cancel_some_of_its_requests() {
        for (begun, taken_back, is_abusive) in
            [(100, 100, false), (101, 101, true), (202, 101, false), (201, 101, true)]
        {
            assert_eq!(Tally { begun, taken_back }.is_abusive(), is_abusive, "{begun} {taken_back}");
        }
    }
}
