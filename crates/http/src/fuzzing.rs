//! For fuzz targets, and for tests of other crates.

/// A fuzzer's bytes, taken from the front. Behind their end there are zeros.
#[derive(Debug)]
pub struct Given<'a>(pub &'a [u8]);

impl<'a> Given<'a> {
    /// Whether none are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next one.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// At most so many bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// A byte, then as many bytes as it says.
    pub fn text(&mut self) -> &'a [u8] {
        let length = self.byte();
        self.bytes(length.into())
    }
}

/// Without a fuzzer, most bytes are small: these choose kinds of frames, lengths and streams.
#[cfg(test)]
pub(crate) fn steps() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
    use proptest::prelude::*;
    let byte = prop_oneof![4 => 0..20_u8, 2 => 0x80..0xa0_u8, 1 => any::<u8>()];
    proptest::collection::vec(byte, 0..400)
}
