//! The transferred bytes. Their period is coprime to every buffer size, so a lost, doubled or moved byte
//! shows as a wrong one. Checking is a memory comparison.

/// The largest read or write in bytes.
pub(crate) const CHUNK: usize = 128 * 1024;

/// The period of [`Pattern::bulk`]: a prime near 64 Ki.
const BULK_PERIOD: usize = 65_521;

/// An endless, repeating stream of bytes.
#[derive(Debug)]
pub(crate) struct Pattern {
    bytes: Vec<u8>,
    period: usize,
}

impl Pattern {
    /// `PING`, CR LF, repeated: the bytes of the seeds' benchmarks.
    pub(crate) fn ping() -> Self {
        Self::repeat(b"PING\r\n")
    }

    /// Noise.
    pub(crate) fn bulk() -> Self {
        let mut state = 0x9E37_79B9_u32;
        let noise = std::iter::repeat_with(|| {
            // xorshift32 (Marsaglia): cheap, and nothing depends on its quality.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[3]
        });
        Self::repeat(&noise.take(BULK_PERIOD).collect::<Vec<u8>>())
    }

    fn repeat(unit: &[u8]) -> Self {
        let bytes = unit.iter().copied().cycle().take(unit.len() + CHUNK).collect();
        Self { bytes, period: unit.len() }
    }

    /// The `len` bytes (at most [`CHUNK`]) that follow the first `offset` ones.
    pub(crate) fn at(&self, offset: u64, len: usize) -> &[u8] {
        let start = usize::try_from(offset % self.period as u64).unwrap_or(0);
        &self.bytes[start..start + len.min(CHUNK)]
    }

    /// Whether `bytes` are what follows the first `offset` ones.
    pub(crate) fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        self.at(offset, bytes.len()) == bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_lost_in_the_middle_is_noticed() {
        for pattern in [Pattern::ping(), Pattern::bulk()] {
            let mut bytes = pattern.at(5, 1000).to_vec();
            assert!(pattern.matches(5, &bytes));
            bytes.remove(500);
            assert!(!pattern.matches(5, &bytes));
        }
    }

    #[test]
    fn it_goes_on_where_it_stopped() {
        let pattern = Pattern::bulk();
        let whole = pattern.at(65_000, 2000).to_vec();
        let parts = [pattern.at(65_000, 700), pattern.at(65_700, 1300)].concat();
        assert_eq!(whole, parts);
    }
}
