//! Reads header blocks (HPACK, RFC 7541).

use std::collections::VecDeque;

use super::text::{is_name, is_value};
use super::{huffman, static_table};
use crate::fields::FieldName;

/// The size of the table that truepeer's SETTINGS leave at its default (RFC 7541 section 4.2).
const TABLE_BYTES: usize = 4096;
/// The overhead of an entry, besides its text (RFC 7541 section 4.1).
const ENTRY_BYTES: usize = 32;
/// The most text of literals in one block. A literal of two bytes can name an entry of 4 KiB, whose name is
/// copied.
const MOST_COPIED: usize = 16 << 20;

/// The memory of this many dropped entries is kept, each up to this many bytes: 2 KiB in all.
const MOST_SPARE: usize = 8;
const MOST_SPARE_BYTES: usize = 256;

/// A field as a block has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded<'a> {
    pub(super) kind: FieldName,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// The name, if it is no pseudo-field's, and the value have the letters that they may have.
    pub(super) is_valid: bool,
}

/// Why a block can't be read. Later blocks of the connection can't be read either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockError {
    /// It violates RFC 7541.
    Invalid,
    /// Its literals stand for too much text.
    TooMuch,
}

/// A field of the connection's table. Its letters are checked once, however often an index repeats it.
#[derive(Debug)]
struct Entry {
    text: Vec<u8>,
    name_bytes: usize,
    kind: FieldName,
    is_valid: bool,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.text.len() + ENTRY_BYTES
    }

    fn decoded(&self) -> Decoded<'_> {
        let (name, value) = self.text.split_at(self.name_bytes);
        Decoded { kind: self.kind, name, value, is_valid: self.is_valid }
    }
}

/// The fields that an index may name: those of the specification, then the connection's, the newest first.
#[derive(Debug)]
struct Table {
    entries: VecDeque<Entry>,
    used: usize,
    limit: usize,
    /// Memory for the next literals: many messages add the same fields to the table.
    spare: Vec<Vec<u8>>,
}

impl Table {
    fn get(&self, index: usize) -> Option<Decoded<'_>> {
        match index.checked_sub(static_table::ENTRIES + 1) {
            None => {
                let (name, value) = static_table::get(index)?;
                Some(Decoded { kind: static_table::kind(index), name, value, is_valid: true })
            }
            Some(at) => self.entries.get(at).map(Entry::decoded),
        }
    }

    fn add(&mut self, entry: Entry) {
        let bytes = entry.bytes();
        // RFC 7541 4.4: an entry larger than the table empties it.
        self.shrink(self.limit.saturating_sub(bytes));
        if bytes <= self.limit {
            self.used += bytes;
            self.entries.push_front(entry);
        } else {
            self.spare(entry.text);
        }
    }

    fn shrink(&mut self, most: usize) {
        while self.used > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.used -= oldest.bytes();
            self.spare(oldest.text);
        }
    }

    fn spare(&mut self, mut text: Vec<u8>) {
        if self.spare.len() < MOST_SPARE && text.capacity() <= MOST_SPARE_BYTES {
            text.clear();
            self.spare.push(text);
        }
    }
}

/// A connection's decoder. It must read all blocks in order.
#[derive(Debug)]
pub(super) struct Decoder(Table);

impl Decoder {
    pub(super) fn new() -> Self {
        Self(Table { entries: VecDeque::new(), used: 0, limit: TABLE_BYTES, spare: Vec::new() })
    }

    /// Reads a whole block.
    pub(super) fn read(
        &mut self,
        block: &[u8],
        mut on_field: impl FnMut(Decoded<'_>),
    ) -> Result<(), BlockError> {
        let (mut input, mut has_fields, mut left) = (Input(block), false, MOST_COPIED);
        while let Some(&first) = input.0.first() {
            let table = &mut self.0;
            if matches!(first, 0x20..0x40) {
                // RFC 7541 4.2: another size of the table, at the start of a block only.
                let limit = input.integer(5).filter(|&limit| limit <= TABLE_BYTES && !has_fields);
                table.limit = limit.ok_or(BlockError::Invalid)?;
                table.shrink(table.limit);
                continue;
            }
            has_fields = true;
            if first >= 0x80 {
                let indexed = input.integer(7).and_then(|index| table.get(index));
                on_field(indexed.ok_or(BlockError::Invalid)?);
                continue;
            }
            let is_added = first >= 0x40;
            let literal = table.literal(&mut input, if is_added { 6 } else { 4 });
            let entry = literal.ok_or(BlockError::Invalid)?;
            left = left.checked_sub(entry.bytes()).ok_or(BlockError::TooMuch)?;
            on_field(entry.decoded());
            if is_added {
                table.add(entry);
            } else {
                table.spare(entry.text);
            }
        }
        Ok(())
    }
}

impl Table {
    /// A literal field, whose name may be an index.
    fn literal(&mut self, input: &mut Input<'_>, prefix: u32) -> Option<Entry> {
        let index = input.integer(prefix)?;
        let mut text = self.spare.pop().unwrap_or_default();
        let (kind, is_known) = if index == 0 {
            input.text_into(&mut text)?;
            (FieldName::of(&text), false)
        } else {
            let known = self.get(index)?;
            text.extend_from_slice(known.name);
            (known.kind, index <= static_table::ENTRIES)
        };
        let name_bytes = text.len();
        input.text_into(&mut text)?;
        let (name, value) = text.split_at(name_bytes);
        let is_valid = (is_known || name.first() == Some(&b':') || is_name(name)) && is_value(value);
        Some(Entry { text, name_bytes, kind, is_valid })
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
            // At most four more bytes: no length is longer.
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

    /// Appends a string to `text`.
    fn text_into(&mut self, text: &mut Vec<u8>) -> Option<()> {
        match self.raw_text()? {
            (raw, false) => {
                text.extend_from_slice(raw);
                Some(())
            }
            (raw, true) => huffman::decode_into(raw, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2);
        pairs.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Option<Vec<String>> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder
            .read(block, |field| {
                assert_eq!(field.kind, FieldName::of(field.name));
                fields.push(format!("{}: {}", text(field.name), text(field.value)));
            })
            .ok()?;
        Some(fields)
    }

    /// RFC 7541, appendix C.5 and C.6: a table of 256 bytes, from which fields are dropped.
    #[test]
    fn the_examples_of_the_specification_are_read() {
        let date = |second| format!("date: Mon, 21 Oct 2013 20:13:{second} GMT");
        let expected = [
            vec![
                ":status: 302".to_owned(),
                "cache-control: private".to_owned(),
                date(21),
                "location: https://www.example.com".to_owned(),
            ],
            vec![
                ":status: 307".to_owned(),
                "cache-control: private".to_owned(),
                date(21),
                "location: https://www.example.com".to_owned(),
            ],
            vec![
                ":status: 200".to_owned(),
                "cache-control: private".to_owned(),
                date(22),
                "location: https://www.example.com".to_owned(),
                "content-encoding: gzip".to_owned(),
                "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1".to_owned(),
            ],
        ];
        let plain = [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ];
        let huffman = [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad \
             1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ];
        for blocks in [plain, huffman] {
            let mut decoder = Decoder::new();
            decoder.0.limit = 256;
            for (block, expected) in blocks.iter().zip(&expected) {
                assert_eq!(fields(&mut decoder, &bytes(block)).as_ref(), Some(expected));
            }
            assert_eq!(decoder.0.used, 215);
        }
    }

    #[test]
    fn invalid_blocks_are_refused() {
        for block in [
            "80",                // index 0
            "bf",                // beyond both tables
            "3fe21f",            // a table of 4097 bytes
            "8820",              // another size after a field
            "00",                // no name
            "0003 6162",         // a name that ends early
            "ff ffff ffff ff01", // a number without bounds
            "0481 00",           // Huffman's padding is of ones
            "0484 ffff ffff",    // and never the end's whole code
        ] {
            assert_eq!(fields(&mut Decoder::new(), &bytes(block)), None, "{block}");
        }
    }

    /// Whatever came before, an index gives the field with its kind and its fault.
    #[test]
    fn the_table_keeps_what_is_known_of_a_field() {
        let mut decoder = Decoder::new();
        let literals = [&b"\x40\x04host\x01a"[..], b"\x40\x01A\x01b", b"\x40\x01b\x01\n"].concat();
        decoder.read(&literals, |_| {}).unwrap();
        let mut seen = Vec::new();
        decoder.read(&[0xc0, 0xbf, 0xbe], |field| seen.push((field.kind, field.is_valid))).unwrap();
        assert_eq!(seen, [(FieldName::Host, true), (FieldName::Other, false), (FieldName::Other, false)]);
    }

    #[test]
    fn a_block_that_stands_for_too_much_text_is_refused() {
        let mut decoder = Decoder::new();
        let name = [b'x'; 4000];
        let large = [&[0x40, 0x7f, 0xa1, 0x1e][..], &name, &[0]].concat();
        decoder.read(&large, |_| {}).unwrap();
        // A literal with this name, which no table keeps; and an index, which copies nothing.
        let (mut fields, block) = (0, b"\x0f\x2f\0".repeat(10_000));
        assert_eq!(decoder.read(&block, |_| fields += 1), Err(BlockError::TooMuch));
        assert_eq!(fields, MOST_COPIED / (4000 + ENTRY_BYTES));
        assert_eq!(decoder.read(&block[..300], |_| {}), Ok(()));
        assert_eq!(decoder.read(&[0xbe; 100_000], |_| {}), Ok(()));
    }

    proptest! {
        /// Any bytes: no panic, and the table stays within its limit and adds up.
        #[test]
        fn anything_may_come(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..8)) {
            let mut decoder = Decoder::new();
            for block in blocks {
                let _ = decoder.read(&block, |_| {});
                let sum: usize = decoder.0.entries.iter().map(Entry::bytes).sum();
                prop_assert!(sum == decoder.0.used && sum <= TABLE_BYTES);
            }
        }
    }
}
