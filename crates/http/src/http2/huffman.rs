//! HPACK's Huffman code (RFC 7541, appendix B). It is canonical: the lengths determine the codes.

/// The code length of each byte in bits. The last entry is the end symbol (EOS), which no string may contain.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
/// The shortest code length, and the longest one.
const SHORTEST_BITS: usize = 5;
const LONGEST: usize = 30;
const LONGEST_BITS: u32 = 30;

/// Codes of one length are consecutive numbers. For each length: the first code, the count, and the position
/// of the first symbol.
#[derive(Clone, Copy)]
struct Length {
    first: u32,
    count: u32,
    symbols: usize,
}

struct Code {
    lengths: [Length; LONGEST + 1],
    /// The symbols, ordered by code length, then by code.
    symbols: [u16; 257],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code =
            Self { lengths: [Length { first: 0, count: 0, symbols: 0 }; LONGEST + 1], symbols: [0; 257] };
        let (mut length, mut next, mut placed) = (1, 0_u32, 0);
        while length <= LONGEST {
            next <<= 1;
            code.lengths[length] = Length { first: next, count: 0, symbols: placed };
            let mut symbol: u16 = 0;
            while (symbol as usize) < LENGTHS.len() {
                if LENGTHS[symbol as usize] as usize == length {
                    code.symbols[placed] = symbol;
                    placed += 1;
                    next += 1;
                    code.lengths[length].count += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        code
    }
}

/// Codes of up to this many bits are looked up at once. They include all that are usual in fields.
const SHORT_BITS: u32 = 10;

/// For each value of the next [`SHORT_BITS`] bits: the symbol whose code they begin with, and its length; 0:
/// it is longer.
static SHORT: [(u8, u8); 1 << SHORT_BITS] = {
    let mut short = [(0, 0); 1 << SHORT_BITS];
    let mut length = 1;
    while length <= SHORT_BITS as usize {
        let codes = CODE.lengths[length];
        let mut at = 0;
        while at < codes.count as usize {
            let rest = SHORT_BITS as usize - length;
            let first = (codes.first as usize + at) << rest;
            let mut below = 0;
            while below < 1 << rest {
                // The codes of bytes come before the end symbol's, which has 30 bits.
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "symbols of short codes are bytes; lengths are at most 10"
                )]
                let entry = (CODE.symbols[codes.symbols + at] as u8, length as u8);
                short[first + below] = entry;
                below += 1;
            }
            at += 1;
        }
        length += 1;
    }
    short
};

/// Appends what `text` means to `decoded`; `None`: it is invalid.
pub(super) fn decode_into(text: &[u8], decoded: &mut Vec<u8>) -> Option<()> {
    let mut text = text;
    decoded.reserve(text.len() * 8 / SHORTEST_BITS);
    // The low `bits` bits of `waiting` are not decoded yet.
    let (mut waiting, mut bits) = (0_u64, 0_u32);
    loop {
        if bits < 32
            && let Some((four, rest)) = text.split_first_chunk()
        {
            waiting = waiting << 32 | u64::from(u32::from_be_bytes(*four));
            bits += 32;
            text = rest;
        }
        while bits < 32
            && let Some((&byte, rest)) = text.split_first()
        {
            waiting = waiting << 8 | u64::from(byte);
            bits += 8;
            text = rest;
        }
        let before = bits;
        while let Some(surplus) = bits.checked_sub(SHORT_BITS) {
            let (symbol, length) = SHORT[(waiting >> surplus & ((1 << SHORT_BITS) - 1)) as usize];
            if length == 0 {
                break;
            }
            decoded.push(symbol);
            bits -= u32::from(length);
        }
        if bits < before && !text.is_empty() {
            continue;
        }
        // A longer code, or the last ones.
        // The next bits of the longest code, with ones behind the last byte.
        let longest = LONGEST_BITS;
        let (missing, surplus) = (longest.saturating_sub(bits), bits.saturating_sub(longest));
        let next = ((waiting >> surplus) << missing | ((1 << missing) - 1)) & ((1 << longest) - 1);
        let (symbol, length) = next_symbol(u32::try_from(next).ok()?)?;
        if length > bits {
            // RFC 7541 5.2: the padding is the start of the end symbol's code, shorter than a byte.
            let is_padding = bits < 8 && waiting & ((1 << bits) - 1) == (1 << bits) - 1;
            return is_padding.then_some(());
        }
        // The end symbol is not a byte.
        decoded.push(u8::try_from(symbol).ok()?);
        bits -= length;
    }
}

/// The symbol with whose code the 30 bits of `next` begin, and the code's length.
fn next_symbol(next: u32) -> Option<(u16, u32)> {
    let longest = LONGEST_BITS;
    let (symbol, length) = SHORT[(next >> (longest - SHORT_BITS)) as usize];
    if length > 0 {
        return Some((symbol.into(), length.into()));
    }
    (SHORT_BITS + 1..=longest).find_map(|length| {
        let codes = CODE.lengths[length as usize];
        let at = (next >> (longest - length)).wrapping_sub(codes.first);
        (at < codes.count).then(|| (CODE.symbols[codes.symbols + at as usize], length))
    })
}

/// The code of a symbol, and its length in bits.
#[cfg(any(test, feature = "fuzzing"))]
fn code_of(symbol: u8) -> (u64, u32) {
    let length = LENGTHS[usize::from(symbol)];
    let codes = CODE.lengths[usize::from(length)];
    let place = CODE.symbols.iter().position(|&other| other == u16::from(symbol)).unwrap_or(codes.symbols);
    (u64::from(codes.first) + (place - codes.symbols) as u64, length.into())
}

/// Encodes `text`.
#[cfg(any(test, feature = "fuzzing"))]
#[must_use]
pub fn encode(text: &[u8]) -> Vec<u8> {
    let mut writer = BitWriter::default();
    text.iter().for_each(|&symbol| writer.write(code_of(symbol)));
    writer.finish()
}

#[cfg(any(test, feature = "fuzzing"))]
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    waiting: u64,
    bits: u32,
}

#[cfg(any(test, feature = "fuzzing"))]
impl BitWriter {
    fn write(&mut self, (code, length): (u64, u32)) {
        self.waiting = self.waiting << length | code;
        self.bits += length;
        while let Some(rest) = self.bits.checked_sub(8) {
            self.bytes.extend((self.waiting >> rest).to_le_bytes().first());
            self.bits = rest;
        }
    }

    /// Fills the last byte with ones (RFC 7541 section 5.2).
    fn finish(mut self) -> Vec<u8> {
        if self.bits > 0 {
            let missing = 8 - self.bits;
            self.write(((1 << missing) - 1, missing));
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &[u8]) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        decode_into(text, &mut decoded)?;
        Some(decoded)
    }

    #[test]
    fn every_byte_can_be_decoded() {
        for (symbol, &length) in LENGTHS.iter().enumerate().take(256) {
            let place = CODE.symbols.iter().position(|&other| usize::from(other) == symbol).unwrap();
            let codes = CODE.lengths[usize::from(length)];
            let code = u64::from(codes.first) + (place - codes.symbols) as u64;
            // Twice, padded with ones.
            let bits = 2 * u32::from(length);
            let padding = bits.next_multiple_of(8) - bits;
            let both = ((code << length | code) << padding) | ((1 << padding) - 1);
            let bytes = both.to_be_bytes();
            let bytes = &bytes[8 - (bits + padding) as usize / 8..];
            assert_eq!(decode(bytes), Some(vec![u8::try_from(symbol).unwrap(); 2]), "{symbol}");
        }
    }

    /// Decodes bit by bit, as the specification describes it.
    fn slowly(text: &[u8]) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        let (mut code, mut length) = (0_u32, 0_usize);
        for bit in text.iter().flat_map(|&byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
            code = code << 1 | bit;
            length += 1;
            let codes = CODE.lengths.get(length)?;
            let at = code.wrapping_sub(codes.first);
            if at < codes.count {
                decoded.push(u8::try_from(*CODE.symbols.get(codes.symbols + at as usize)?).ok()?);
                (code, length) = (0, 0);
            }
        }
        (length < 8 && code + 1 == 1 << length).then_some(decoded)
    }

    proptest::proptest! {
        #[test]
        fn many_bits_at_once_give_the_same_as_bit_by_bit(
            text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
            ones in 0..12_usize,
        ) {
            let text = [&text[..], &vec![0xff; ones]].concat();
            proptest::prop_assert_eq!(decode(&text), slowly(&text));
        }
    }

    #[test]
    fn the_codes_are_those_of_the_specification() {
        for (symbol, code) in
            [(b'0', 0x0), (b'/', 0x18), (b'#', 0xffa), (b'\\', 0x7fff0), (0, 0x1ff8), (255, 0x3ff_ffee)]
        {
            let codes = CODE.lengths[usize::from(LENGTHS[usize::from(symbol)])];
            let place = CODE.symbols.iter().position(|&other| other == u16::from(symbol)).unwrap();
            assert_eq!(codes.first as usize + place - codes.symbols, code, "{symbol}");
        }
    }
}
