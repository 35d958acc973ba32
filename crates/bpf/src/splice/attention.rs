//! Whether both peers of a flow are still there: pure. A peer may vanish, and a reset may be lost; so
//! truepeer asks a silent peer, as keepalives do.

use std::time::{Duration, Instant};

/// A peer is asked after so long a silence, and again after each further one. The relay's sockets have the
/// same keepalive time.
const SILENCE: Duration = Duration::from_secs(60);
/// If the other peer speaks meanwhile, the silent one is asked sooner, and again after twice the time: the
/// route to it may have changed.
const SOON: Duration = Duration::from_secs(5);
/// The number of these early questions.
const SOON_QUESTIONS: u32 = 4;
/// After so many unanswered questions a peer is gone. Linux's default (net.ipv4.tcp_keepalive_probes).
const QUESTIONS: u32 = 9;

/// When each peer was last heard, and how often it was asked since.
#[derive(Debug)]
pub struct Attention([Heard; 2]);

#[derive(Debug, Clone, Copy)]
struct Heard {
    segments: u64,
    at: Instant,
    asked: u32,
    asked_soon: u32,
}

/// The action that a look at a flow calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Nothing.
    Nothing,
    /// Ask the peer of this side.
    Ask(usize),
    /// The peer of this side is gone.
    Gone(usize),
}

impl Attention {
    /// Both peers count as heard now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self([Heard::at(0, now); 2])
    }

    /// `segments`: the number that has come from each peer so far.
    pub fn look(&mut self, segments: [u64; 2], now: Instant) -> Care {
        for (heard, segments) in self.0.iter_mut().zip(segments) {
            if segments != heard.segments {
                *heard = Heard::at(segments, now);
            }
        }
        let [down, up] = self.0.map(|heard| heard.at);
        for (side, heard) in self.0.iter_mut().enumerate() {
            let is_alone_silent = if side == 0 { up > down } else { down > up };
            let silence = now.saturating_duration_since(heard.at);
            if silence >= SILENCE * (heard.asked + 1) {
                if heard.asked == QUESTIONS {
                    return Care::Gone(side);
                }
                heard.asked += 1;
                return Care::Ask(side);
            }
            if is_alone_silent
                && heard.asked_soon < SOON_QUESTIONS
                && silence >= SOON * (1 << heard.asked_soon)
            {
                heard.asked_soon += 1;
                return Care::Ask(side);
            }
        }
        Care::Nothing
    }
}

impl Heard {
    fn at(segments: u64, now: Instant) -> Self {
        Self { segments, at: now, asked: 0, asked_soon: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_soon_then_each_minute_and_gone_after_nine_questions() {
        let start = Instant::now();
        let mut attention = Attention::new(start);
        let mut asked = Vec::new();
        for second in 0..10_000 {
            let now = start + Duration::from_secs(second);
            // The other peer speaks all the time.
            match attention.look([7, second], now) {
                Care::Nothing => {}
                Care::Ask(side) => {
                    assert_eq!(side, 0);
                    asked.push(second);
                }
                Care::Gone(side) => {
                    let each_minute = (1..10).map(|minute| minute * 60);
                    assert_eq!(asked, [5, 10, 20, 40].into_iter().chain(each_minute).collect::<Vec<_>>());
                    return assert_eq!((side, second), (0, 600));
                }
            }
        }
        panic!("never gone");
    }

    #[test]
    fn while_both_are_silent_nobody_is_asked_soon() {
        let start = Instant::now();
        let mut attention = Attention::new(start);
        for second in 0..60 {
            assert_eq!(
                attention.look([7, 7], start + Duration::from_secs(second)),
                Care::Nothing,
                "{second}"
            );
        }
    }

    #[test]
    fn an_answer_begins_the_silence_anew() {
        let start = Instant::now();
        let mut attention = Attention::new(start);
        for minute in 0..100_u64 {
            let now = start + Duration::from_secs(61 * minute);
            assert!(!matches!(attention.look([minute, minute], now), Care::Gone(_)), "{minute}");
        }
    }
}
