//! Repeatable random numbers: the same seed gives the same bytes.

use crate::client;

/// SplitMix64 (Steele, Lea, Flood 2014), good enough for test data.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    /// One of these, at random.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())]
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// Bytes that may resemble a header, made from one of `seeds` or at random.
    ///
    /// # Panics
    /// If there are no seeds, or one is empty.
    pub fn hostile_bytes(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let len = self.below(300);
        match self.below(4) {
            0 => self.bytes(len),
            1 => {
                let (command, family) = (self.next().to_le_bytes()[0], self.next().to_le_bytes()[0]);
                client::v2_raw(command, family, &self.bytes(len)).expect("shorter than 64 KiB")
            }
            2 => [b"PROXY ".as_slice(), &self.bytes(len)].concat(),
            _ => {
                let mut bytes = seeds[self.below(seeds.len())].clone();
                for _ in 0..=self.below(4) {
                    let place = self.below(bytes.len());
                    bytes[place] = self.next().to_le_bytes()[0];
                }
                bytes
            }
        }
    }
}
