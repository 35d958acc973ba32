//! Repeatable random numbers: SplitMix64.

/// A random number generator.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
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

/// The byte at `offset` of stream `stream`: each party sends a different stream, and neighbouring bytes differ.
pub(super) fn stream_byte(stream: u64, offset: usize) -> u8 {
    let mixed = (offset as u64 ^ (stream << 56)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed.to_be_bytes()[1]
}
