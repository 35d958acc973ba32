//! A byte stream that each end can generate or check without storing it. Each byte depends on its position,
//! so a lost, doubled or reordered byte is detected.

use std::io;

/// The byte stream from a position on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pattern {
    position: u64,
}

impl Pattern {
    /// Fills `buffer` with the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        let place = usize::from(self.position.to_le_bytes()[0] & 7);
        let (begun, rest) = buffer.split_at_mut(((8 - place) % 8).min(buffer.len()));
        begun.copy_from_slice(&word_at(self.position)[place..][..begun.len()]);
        self.position += begun.len() as u64;
        let (words, last) = rest.as_chunks_mut::<8>();
        for word in words {
            *word = word_at(self.position);
            self.position += 8;
        }
        last.copy_from_slice(&word_at(self.position)[..last.len()]);
        self.position += last.len() as u64;
    }

    /// The byte stream from this position on.
    pub fn from(position: u64) -> Pattern {
        Pattern { position }
    }

    /// The first `len` bytes of the stream.
    pub fn bytes(len: usize) -> Vec<u8> {
        let mut buffer = vec![0; len];
        Pattern::default().fill(&mut buffer);
        buffer
    }
}

/// The eight bytes of which this position is one. They are a mixed counter, without a period that could
/// hide a lost segment.
fn word_at(position: u64) -> [u8; 8] {
    let word = (position / 8).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ (word >> 29)).to_le_bytes()
}

/// A digest that depends on each byte and its position (FNV-1a over words, 64 bits). It detects loss, not
/// forgery.
#[derive(Debug, Clone, Copy)]
pub struct Digest {
    state: u64,
    pending: [u8; 8],
    count: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { state: 0xCBF2_9CE4_8422_2325, pending: [0; 8], count: 0 }
    }
}

/// Lets `io::copy` fill a digest.
impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Digest {
    /// Adds the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if !self.count.is_multiple_of(8) || bytes.len() < 8 {
                self.push(byte);
                bytes = rest;
                continue;
            }
            let (words, rest) = bytes.as_chunks::<8>();
            for word in words {
                self.mix(u64::from_le_bytes(*word));
            }
            self.count += (bytes.len() - rest.len()) as u64;
            bytes = rest;
        }
    }

    /// How many bytes it has covered.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `COUNT DIGEST`, the backends' answer.
    pub fn report(mut self) -> String {
        self.mix(u64::from_le_bytes(self.pending));
        format!("{} {:016x}", self.count, self.state)
    }

    /// The report of an undamaged [`Pattern`] of this length.
    pub fn of_pattern(len: u64) -> String {
        let (mut pattern, mut digest) = (Pattern::default(), Digest::default());
        let mut buffer = vec![0; 64 * 1024];
        while digest.count < len {
            let part = usize::try_from(len - digest.count).unwrap_or(usize::MAX).min(buffer.len());
            pattern.fill(&mut buffer[..part]);
            digest.update(&buffer[..part]);
        }
        digest.report()
    }

    fn push(&mut self, byte: u8) {
        let place = usize::from(self.count.to_le_bytes()[0] & 7);
        self.pending[place] = byte;
        self.count += 1;
        if place == 7 {
            self.mix(u64::from_le_bytes(self.pending));
            self.pending = [0; 8];
        }
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(parts: &[&[u8]]) -> String {
        let mut digest = Digest::default();
        parts.iter().for_each(|part| digest.update(part));
        digest.report()
    }

    #[test]
    fn how_the_stream_is_cut_does_not_matter() {
        let bytes = Pattern::bytes(1000);
        let whole = digest(&[&bytes]);
        for cut in [1, 7, 8, 9, 500, 993, 999] {
            assert_eq!(digest(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(Digest::of_pattern(1000), whole);
    }

    #[test]
    fn a_stream_is_the_same_in_any_pieces() {
        let whole = Pattern::bytes(100);
        for cut in 0..=24 {
            for piece in 0..=24 {
                let (mut pattern, mut bytes) = (Pattern::default(), vec![0; 100]);
                pattern.fill(&mut bytes[..cut]);
                pattern.fill(&mut bytes[cut..cut + piece]);
                pattern.fill(&mut bytes[cut + piece..]);
                assert_eq!(bytes, whole, "cut at {cut} and {piece} bytes later");
            }
            let mut later = vec![0; 100 - cut];
            Pattern::from(cut as u64).fill(&mut later);
            assert_eq!(later, whole[cut..]);
        }
    }

    #[test]
    fn loss_and_disorder_show() {
        let bytes = Pattern::bytes(4096);
        let whole = digest(&[&bytes]);
        assert_ne!(digest(&[&bytes[..2048], &bytes[2049..]]), whole);
        assert_ne!(digest(&[&bytes[8..16], &bytes[..8], &bytes[16..]]), whole);
        assert_ne!(digest(&[&bytes, &[0]]), whole);
    }
}
