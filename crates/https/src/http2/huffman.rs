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
/// The longest code length.
const LONGEST: usize = 30;

/// Codes of one length are consecutive numbers. For each length: the first code, the count, and the position of
/// the first symbol.
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

/// Decodes `text`; `None`: invalid.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    // The shortest code has five bits.
    let mut decoded = Vec::with_capacity(text.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for bit in text.iter().flat_map(|&byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        code = code << 1 | bit;
        length += 1;
        let codes = CODE.lengths.get(length)?;
        let at = code.wrapping_sub(codes.first);
        if at < codes.count {
            // The end symbol is not a byte.
            decoded.push(u8::try_from(*CODE.symbols.get(codes.symbols + at as usize)?).ok()?);
            (code, length) = (0, 0);
        }
    }
    // RFC 7541 5.2: the padding is the start of the end symbol's code, shorter than a byte.
    let is_padding = length < 8 && code + 1 == 1 << length;
    is_padding.then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

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
