//! Repeatable random numbers: the bytes that a fuzzer gives, then SplitMix64.

use std::collections::VecDeque;

/// A random number generator.
#[derive(Debug, Clone)]
pub(super) struct Dice {
    given: VecDeque<u8>,
    state: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { given: VecDeque::new(), state: seed }
    }

    /// The numbers are `bytes`. Behind them the numbers of seed 0 follow, so that every simulation ends.
    pub(super) fn given(bytes: &[u8]) -> Self {
        Self { given: bytes.iter().copied().collect(), state: 0 }
    }

    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        if !self.given.is_empty() {
            let wanted = match bound {
                0..=0x100 => 1,
                0x101..=0x1_0000 => 2,
                _ => 4,
            };
            let bytes = self.given.drain(..wanted.min(self.given.len()));
            return bytes.fold(0, |number, byte| number << 8 | usize::from(byte)) % bound;
        }
        usize::try_from(self.roll() % bound as u64).expect("below a usize")
    }

    /// A number from 1 to `most`, which is not 0.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        1 + self.below(most)
    }

    /// True in `percent` of a hundred cases.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// The byte at `offset` of stream `stream`: each party sends a different stream, and neighbouring bytes
/// differ.
pub(super) fn stream_byte(stream: u64, offset: usize) -> u8 {
    let mixed = (offset as u64 ^ (stream << 56)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed.to_be_bytes()[1]
}
