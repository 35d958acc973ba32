//! Parses header blocks (HPACK, RFC 7541) far enough to see their pseudo-fields as sent.
//!
//! `h2` decodes the blocks but hides some of their contents (see [`super::malformed`]), so each block is
//! parsed here as well. The dynamic table holds no text, only the kind and size of each entry.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;

use super::huffman;
use super::odd_path::OddPath;

/// The table's size that `h2` announces, in bytes (RFC 7541 section 4.2).
const TABLE_BYTES: usize = 4096;
/// The overhead of an entry, besides its text (RFC 7541 section 4.1).
const ENTRY_BYTES: usize = 32;

/// A field name, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PseudoName {
    Path,
    Scheme,
    OtherPseudo,
    Regular,
}

impl PseudoName {
    fn of(text: &[u8]) -> Self {
        match text {
            b":path" => Self::Path,
            b":scheme" => Self::Scheme,
            [b':', ..] => Self::OtherPseudo,
            _ => Self::Regular,
        }
    }

    /// Whether a field of this name may have this value.
    fn takes(self, value: &[u8]) -> bool {
        match self {
            // RFC 9113 8.3.1: path and query. A fragment is not allowed.
            Self::Path => !value.contains(&b'#'),
            // An HTTP origin can't serve any other scheme.
            Self::Scheme => value.eq_ignore_ascii_case(b"https") || value.eq_ignore_ascii_case(b"http"),
            Self::OtherPseudo | Self::Regular => true,
        }
    }
}

/// A path as it was sent.
type SentPath = Rc<[u8]>;
/// A name and its length.
type SizedName = (PseudoName, usize);

#[derive(Debug)]
struct Entry {
    name: PseudoName,
    is_valid: bool,
    /// The path as it was sent, if `h2` got another one.
    odd_path: Option<SentPath>,
    name_bytes: u16,
    bytes: u16,
}

/// What a block contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Found {
    /// A `:path` with a fragment, or a `:scheme` other than `http` and `https`.
    pub(super) is_invalid: bool,
    /// Any pseudo-field.
    pub(super) has_pseudo: bool,
}

impl Found {
    fn note(&mut self, name: PseudoName, is_valid: bool) {
        self.has_pseudo |= name != PseudoName::Regular;
        self.is_invalid |= !is_valid;
    }
}

/// A connection's decoder. It must read all blocks in order.
#[derive(Debug)]
pub(super) struct HpackDecoder {
    /// The newest first.
    table: VecDeque<Entry>,
    used: usize,
    limit: usize,
}

impl HpackDecoder {
    pub(super) fn new() -> Self {
        Self { table: VecDeque::new(), used: 0, limit: TABLE_BYTES }
    }

    /// [`Self::read_all`] without the path.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn read(&mut self, block: &[u8]) -> Option<Found> {
        self.read_all(block).map(|(found, _)| found)
    }

    /// Parses a whole block. `None`: it is invalid, and later blocks of the connection can't be parsed.
    pub(super) fn read_all(&mut self, block: &[u8]) -> Option<(Found, Option<OddPath>)> {
        let (mut input, mut found, mut has_fields) = (Input(block), Found::default(), false);
        let mut odd_path = None;
        while let Some(&first) = input.0.first() {
            // RFC 7541 4.2 and 6.3: another size of the table, at the start of a block only.
            if matches!(first, 0x20..0x40) {
                self.limit = input.integer(5).filter(|&limit| limit <= TABLE_BYTES && !has_fields)?;
                self.shrink(self.limit);
                continue;
            }
            has_fields = true;
            match first {
                // RFC 7541 6.1: an indexed field.
                0x80.. => {
                    let (name, is_valid, path) = self.indexed(input.integer(7)?)?;
                    found.note(name, is_valid);
                    odd_path = path.map(|path| OddPath { other: None, path }).or(odd_path);
                }
                // 6.2.1: a literal that is added to the table.
                0x40.. => {
                    let (name, name_bytes) = self.name(&mut input, 6)?;
                    let (is_valid, value_bytes, odd) = input.value(name, block.len())?;
                    found.note(name, is_valid);
                    let path = odd.as_ref().map(|odd| Rc::clone(&odd.path));
                    self.add(name, is_valid, path, name_bytes, value_bytes);
                    odd_path = odd.or(odd_path);
                }
                // 6.2.2 and 6.2.3: a literal that is not added.
                _ => {
                    let (name, _) = self.name(&mut input, 4)?;
                    if name == PseudoName::Regular {
                        input.raw_text()?;
                        found.note(name, true);
                    } else {
                        let (is_valid, _, odd) = input.value(name, block.len())?;
                        found.note(name, is_valid);
                        odd_path = odd.or(odd_path);
                    }
                }
            }
        }
        Some((found, odd_path))
    }

    fn indexed(&self, index: usize) -> Option<(PseudoName, bool, Option<SentPath>)> {
        match index.checked_sub(STATIC.len() + 1) {
            // Static values are valid: `/`, `/index.html`, `http`, `https`.
            None => static_name(index).map(|(name, _)| (name, true, None)),
            Some(at) => self.table.get(at).map(|entry| (entry.name, entry.is_valid, entry.odd_path.clone())),
        }
    }

    /// Parses a literal's name: an index, or text after index 0.
    fn name(&self, input: &mut Input<'_>, prefix: u32) -> Option<SizedName> {
        let index = input.integer(prefix)?;
        match index.checked_sub(STATIC.len() + 1) {
            None if index == 0 => input.text(|text| (PseudoName::of(text), text.len())),
            None => static_name(index),
            Some(at) => self.table.get(at).map(|entry| (entry.name, entry.name_bytes.into())),
        }
    }

    fn add(
        &mut self,
        name: PseudoName,
        is_valid: bool,
        odd_path: Option<SentPath>,
        name_bytes: usize,
        value_bytes: usize,
    ) {
        let bytes = name_bytes + value_bytes + ENTRY_BYTES;
        // RFC 7541 4.4: an entry larger than the table empties it.
        self.shrink(self.limit.saturating_sub(bytes));
        if let (true, Ok(name_bytes), Ok(bytes)) =
            (bytes <= self.limit, u16::try_from(name_bytes), u16::try_from(bytes))
        {
            self.used += usize::from(bytes);
            self.table.push_front(Entry { name, is_valid, odd_path, name_bytes, bytes });
        }
    }

    fn shrink(&mut self, most: usize) {
        while self.used > most
            && let Some(oldest) = self.table.pop_back()
        {
            self.used -= usize::from(oldest.bytes);
        }
    }
}

/// The rest of a block.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// RFC 7541 section 5.1: the number starts in the low `prefix` bits of the first byte.
    fn integer(&mut self, prefix: u32) -> Option<usize> {
        let most = (1_usize << prefix) - 1;
        let (&first, mut rest) = self.0.split_first()?;
        let mut number = usize::from(first) & most;
        if number == most {
            // At most four more bytes, as in `h2`.
            let mut shift = 0;
            loop {
                let (&byte, after) = rest.split_first()?;
                rest = after;
                number += (usize::from(byte) & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
                if shift > 21 {
                    return None;
                }
            }
        }
        self.0 = rest;
        Some(number)
    }

    /// A string's bytes, and whether they are Huffman-coded (RFC 7541 section 5.2).
    fn raw_text(&mut self) -> Option<(&'a [u8], bool)> {
        let is_huffman = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((text, is_huffman))
    }

    fn text<T>(&mut self, use_it: impl FnOnce(&[u8]) -> T) -> Option<T> {
        match self.raw_text()? {
            (text, false) => Some(use_it(text)),
            (text, true) => Some(use_it(&huffman::decode(text)?)),
        }
    }

    /// Whether the field may have this value, its length, and what `h2` must see instead of a path.
    /// `block_bytes`: the length of the whole block.
    fn value(&mut self, name: PseudoName, block_bytes: usize) -> Option<(bool, usize, Option<OddPath>)> {
        let (raw, is_huffman) = self.raw_text()?;
        let text = if is_huffman { Cow::Owned(huffman::decode(raw)?) } else { Cow::Borrowed(raw) };
        let odd = || OddPath::of(&text, is_huffman, block_bytes - self.0.len() - raw.len(), raw.len());
        let odd = if name == PseudoName::Path { odd() } else { None };
        Some((name.takes(&text), text.len(), odd))
    }
}

fn static_name(index: usize) -> Option<SizedName> {
    let name = match index {
        4 | 5 => PseudoName::Path,
        6 | 7 => PseudoName::Scheme,
        1..=14 => PseudoName::OtherPseudo,
        _ => PseudoName::Regular,
    };
    STATIC.get(index.checked_sub(1)?).map(|&bytes| (name, bytes.into()))
}

/// The lengths of the names in the static table (RFC 7541, appendix A), from index 1.
const STATIC: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13,
    12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3,
    16,
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        digits
            .chunks(2)
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    }

    const FINE: Found = Found { is_invalid: false, has_pseudo: true };

    /// RFC 7541, appendix C.3, C.4 and, where the table overflows, C.5.
    #[test]
    fn the_examples_of_the_specification_are_read() {
        for blocks in [
            [
                ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", 57),
                ("8286 84be 5808 6e6f 2d63 6163 6865", 110),
                ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", 164),
            ],
            [
                ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", 57),
                ("8286 84be 5886 a8eb 1064 9cbf", 110),
                ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", 164),
            ],
        ] {
            let mut decoder = HpackDecoder::new();
            for (block, used) in blocks {
                assert_eq!(decoder.read(&bytes(block)), Some(FINE), "{block}");
                assert_eq!(decoder.used, used, "{block}");
            }
        }
        let mut decoder = HpackDecoder { limit: 256, ..HpackDecoder::new() };
        let response = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
                        3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d";
        assert_eq!((decoder.read(&bytes(response)), decoder.used), (Some(FINE), 222));
        assert_eq!((decoder.read(&bytes("4803 3330 37c1 c0bf")), decoder.used), (Some(FINE), 222));
    }

    #[test]
    fn invalid_blocks_are_refused() {
        for block in [
            "80",                // index 0
            "bf",                // beyond both tables
            "3fe21f",            // a table of 4097 bytes
            "8220",              // another size behind a field
            "00",                // no name
            "0003 6162",         // a name that ends early
            "ff ffff ffff ff01", // a number without bounds
            "0481 00",           // Huffman's padding is of ones
            "0484 ffff ffff",    // and never the end's whole code
        ] {
            assert_eq!(HpackDecoder::new().read(&bytes(block)), None, "{block}");
        }
    }

    proptest! {
        /// Any bytes: no panic, and the table stays within its limit and adds up.
        #[test]
        fn anything_may_come(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..8)) {
            let mut decoder = HpackDecoder::new();
            for block in blocks {
                let _ = decoder.read(&block);
                let sum: usize = decoder.table.iter().map(|entry| usize::from(entry.bytes)).sum();
                prop_assert!(sum == decoder.used && sum <= TABLE_BYTES);
            }
        }
    }
}
