//! Header blocks (HPACK, RFC 7541): reads responses, and writes requests without a table of the connection's.

use std::collections::VecDeque;

use crate::http2::HpackInput;

/// The size of the table that truepeer's SETTINGS leave at its default (RFC 7541 section 4.2).
const TABLE_BYTES: usize = 4096;
/// The overhead of an entry, besides its text (RFC 7541 section 4.1).
const ENTRY_BYTES: usize = 32;

/// The memory of so many dropped entries is kept, each up to so many bytes: 2 KiB in all.
const MOST_SPARE: usize = 8;
const MOST_SPARE_BYTES: usize = 256;

/// A field of the connection's table.
#[derive(Debug)]
struct Entry {
    text: Vec<u8>,
    name_bytes: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.text.len() + ENTRY_BYTES
    }
}

/// The fields that an index may name: those of the specification, then the connection's, the newest first.
#[derive(Debug)]
struct Table {
    entries: VecDeque<Entry>,
    used: usize,
    limit: usize,
    /// Memory of entries that were dropped, for the next ones: many origins add the same fields to the table in each response.
    spare: Vec<Vec<u8>>,
}

impl Table {
    fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        match index.checked_sub(STATIC.len() + 1) {
            None => STATIC.get(index.checked_sub(1)?).copied(),
            Some(at) => self.entries.get(at).map(|entry| entry.text.split_at(entry.name_bytes)),
        }
    }

    fn add(&mut self, name: &[u8], value: &[u8]) {
        let bytes = name.len() + value.len() + ENTRY_BYTES;
        // RFC 7541 4.4: an entry larger than the table empties it.
        self.shrink(self.limit.saturating_sub(bytes));
        if bytes <= self.limit {
            self.used += bytes;
            let mut text = self.spare.pop().unwrap_or_default();
            text.clear();
            text.extend_from_slice(name);
            text.extend_from_slice(value);
            self.entries.push_front(Entry { text, name_bytes: name.len() });
        }
    }

    fn shrink(&mut self, most: usize) {
        while self.used > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.used -= oldest.bytes();
            if self.spare.len() < MOST_SPARE && oldest.text.capacity() <= MOST_SPARE_BYTES {
                self.spare.push(oldest.text);
            }
        }
    }
}

/// A connection's decoder. It must read all blocks in order.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    /// The name and value of a literal.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        let table = Table { entries: VecDeque::new(), used: 0, limit: TABLE_BYTES, spare: Vec::new() };
        Self { table, name: Vec::new(), value: Vec::new() }
    }

    /// The size of the table.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn used(&self) -> usize {
        self.table.used
    }

    /// Reads a whole block. `None`: it is invalid, and later blocks of the connection can't be read.
    pub(crate) fn read(&mut self, block: &[u8], mut on_field: impl FnMut(&[u8], &[u8])) -> Option<()> {
        let Self { table, name, value } = self;
        let (mut input, mut has_fields) = (HpackInput(block), false);
        while let Some(&first) = input.0.first() {
            if matches!(first, 0x20..0x40) {
                // RFC 7541 4.2: another size of the table, at the start of a block only.
                table.limit = input.integer(5).filter(|&limit| limit <= TABLE_BYTES && !has_fields)?;
                table.shrink(table.limit);
                continue;
            }
            has_fields = true;
            if first >= 0x80 {
                let (name, value) = table.get(input.integer(7)?)?;
                on_field(name, value);
                continue;
            }
            let is_added = first >= 0x40;
            let index = input.integer(if is_added { 6 } else { 4 })?;
            name.clear();
            value.clear();
            match index {
                0 => input.text_into(name)?,
                _ => name.extend_from_slice(table.get(index)?.0),
            }
            input.text_into(value)?;
            on_field(name, value);
            if is_added {
                table.add(name, value);
            }
        }
        Some(())
    }
}

/// Sets the size of the table to 0: what is written never uses it, and later settings of the origin change nothing (RFC 7541
/// section 4.2).
pub(super) const NO_TABLE: u8 = 0x20;
/// A literal that no table may keep (RFC 7541 section 6.2.3).
const NEVER_KEPT: u8 = 0x10;

/// Appends the field that the static table has at `index`.
pub(in super::super) fn write_indexed(block: &mut Vec<u8>, index: u8) {
    block.push(0x80 | index);
}

/// Appends a field, as it is. The name is in lower case.
pub(in super::super) fn write_field(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    begin_field(block, name);
    write_text(block, value);
}

/// Appends a field's name. A [text](write_text) must follow.
pub(in super::super) fn begin_field(block: &mut Vec<u8>, name: &[u8]) {
    let kept = if is_secret(name) { NEVER_KEPT } else { 0 };
    match static_index(name) {
        Some(index) => write_integer(block, kept, 4, index),
        None => {
            block.push(kept);
            write_text(block, name);
        }
    }
}

/// Appends a text, not compressed.
pub(in super::super) fn write_text(block: &mut Vec<u8>, text: &[u8]) {
    write_integer(block, 0, 7, text.len());
    block.extend_from_slice(text);
}

/// RFC 7541 section 5.1.
fn write_integer(block: &mut Vec<u8>, first: u8, prefix: u32, number: usize) {
    let most = (1_usize << prefix) - 1;
    let low = |number: usize| u8::try_from(number & 0x7f).unwrap_or_default();
    if number < most {
        return block.push(first | low(number));
    }
    block.push(first | low(most));
    let mut rest = number - most;
    while rest >= 0x80 {
        block.push(low(rest) | 0x80);
        rest >>= 7;
    }
    block.push(low(rest));
}

fn is_secret(name: &[u8]) -> bool {
    matches!(name, b"authorization" | b"cookie" | b"proxy-authorization")
}

/// Indices in the static table of names that requests often carry.
fn static_index(name: &[u8]) -> Option<usize> {
    Some(match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept" => 19,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-length" => 28,
        b"content-type" => 31,
        b"cookie" => 32,
        b"expect" => 35,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"range" => 50,
        b"referer" => 51,
        b"user-agent" => 58,
        b"via" => 60,
        _ => return None,
    })
}

/// RFC 7541, appendix A, from index 1.
static STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

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
        decoder.read(block, |name, value| {
            fields.push(format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        })?;
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
            decoder.table.limit = 256;
            for (block, expected) in blocks.iter().zip(&expected) {
                assert_eq!(fields(&mut decoder, &bytes(block)).as_ref(), Some(expected));
            }
            assert_eq!(decoder.table.used, 215);
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

    /// Whatever is written is read the same, by `h2`'s rules of sizes as well.
    #[test]
    fn what_is_written_can_be_read() {
        let long = "x".repeat(70_000);
        let (long, edge) = (long.as_bytes(), &b"y".repeat(127)[..]);
        let all: [(&[u8], &[u8]); 6] = [
            (b":path", b"/a"),
            (b"cookie", b"a=b"),
            (b"x-own", b""),
            (b"user-agent", edge),
            (edge, b"1"),
            (b"via", long),
        ];
        let mut block = vec![NO_TABLE];
        write_indexed(&mut block, 2);
        all.iter().for_each(|(name, value)| write_field(&mut block, name, value));
        let mut read = Vec::new();
        let mut decoder = Decoder::new();
        decoder.read(&block, |name, value| read.push((name.to_vec(), value.to_vec()))).unwrap();
        assert_eq!(read[0], (b":method".to_vec(), b"GET".to_vec()));
        assert!(read[1..].iter().zip(&all).all(|(one, other)| (&one.0[..], &one.1[..]) == *other));
        assert_eq!((read.len(), decoder.table.limit), (7, 0));
    }

    #[test]
    fn written_indexes_are_those_of_the_table() {
        for &(name, _) in &STATIC {
            if let Some(index) = static_index(name) {
                assert_eq!(STATIC[index - 1].0, name);
            }
        }
    }

    proptest! {
        /// Any bytes: no panic, and the table stays within its limit and adds up.
        #[test]
        fn anything_may_come(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..8)) {
            let mut decoder = Decoder::new();
            for block in blocks {
                let _ = decoder.read(&block, |_, _| {});
                let sum: usize = decoder.table.entries.iter().map(Entry::bytes).sum();
                prop_assert!(sum == decoder.table.used && sum <= TABLE_BYTES);
            }
        }
    }
}
