//! Entrances for fuzz/. Each takes any bytes, and panics where a promise is broken.

pub use crate::exchange::any_exchanges;

/// Without a fuzzer, most bytes are small: these choose kinds of frames, lengths and streams.
#[cfg(test)]
pub(crate) fn steps() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
    use proptest::prelude::*;
    let byte = prop_oneof![4 => 0..20_u8, 2 => 0x80..0xa0_u8, 1 => any::<u8>()];
    proptest::collection::vec(byte, 0..400)
}
