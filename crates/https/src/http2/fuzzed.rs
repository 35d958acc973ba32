//! Any client's frames, held against a plain reading of all of them at once.
//!
//! Header blocks are decoded by the client's decoder ([`crate::origin_h2`]), which keeps all text. What `malformed` finds from
//! sizes and kinds alone must be what the text says.

use std::collections::HashMap;

use super::frames::{
    CONTINUATION, END_HEADERS, FrameHead, Frames, HEADERS, PADDED, PREFACE_BYTES, PRIORITY, Passed,
};
use super::hpack::{Found, HpackDecoder};
use super::malformed::{Blocks, Malformed};
use crate::fuzzing::Given;
use crate::origin_h2::HpackText;

/// The first byte cuts the others, which a client sends, into pieces.
///
/// # Panics
/// The pieces change what is found; a frame or a block is read otherwise than a plain reader does.
pub fn any_client(bytes: &[u8]) {
    let mut given = Given(bytes);
    // Fewer frames than `malformed` notes.
    let (pieces, frames) = (usize::from(given.byte()), given.bytes(2048));
    let sent = [&[0; PREFACE_BYTES][..], &framed(frames)].concat();
    let whole = Watched::reading(std::iter::once(&sent[..]));
    let watched = Watched::reading(sent.chunks(1 + pieces));
    assert_eq!(watched.heads, whole.heads);
    let (plain, noted) = plainly(&sent[PREFACE_BYTES..]);
    assert_eq!(plain, whole.heads);
    for watched in [whole, watched] {
        watched.check(&noted);
    }
}

/// Most random bytes make one long frame. So a length is given for each, and the rest of its header as it is.
pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    let (mut given, mut sent) = (Given(bytes), Vec::new());
    while !given.is_empty() {
        let head = given.bytes(4);
        let &[kind, flags, stream, length] = head else {
            sent.extend_from_slice(head);
            break;
        };
        let payload = given.bytes(length.into());
        // Sometimes the header tells a length that isn't true.
        let told = if flags & 0x40 == 0 { payload.len() } else { usize::from(length) };
        let [.., high, low] = told.to_be_bytes();
        sent.extend_from_slice(&[0, high, low, kind % 10, flags, 0, 0, 0, stream & 31]);
        sent.extend_from_slice(payload);
    }
    sent
}

/// What the watch finds.
struct Watched {
    heads: Vec<FrameHead>,
    malformed: Malformed,
}

impl Watched {
    fn reading<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut frames, mut blocks) = (Frames::after(PREFACE_BYTES), Blocks::new());
        let mut watched = Self { heads: Vec::new(), malformed: Malformed::default() };
        for piece in pieces {
            frames.pass(piece, |passed| match passed {
                Passed::Frame(head, _) => {
                    watched.heads.push(head);
                    blocks.on_frame(head, &watched.malformed);
                }
                Passed::Payload(payload) => blocks.on_payload(payload, &watched.malformed),
            });
        }
        watched
    }

    fn check(&self, noted: &Noted) {
        let is_lost = self.malformed.take(u32::MAX);
        assert!(noted.ends || !is_lost, "a valid block was not read");
        for stream in 0..32 {
            let expected = noted.streams.get(&stream).copied().unwrap_or(0);
            for _ in 0..expected {
                assert!(self.malformed.take(stream), "stream {stream} is malformed");
            }
            if !noted.ends {
                assert!(!self.malformed.take(stream), "stream {stream} is not malformed");
            }
        }
    }
}

/// Which streams are malformed, and how often.
#[derive(Default)]
struct Noted {
    streams: HashMap<u32, usize>,
    /// A block is invalid, or stands where none may: `h2` ends the connection, and what follows doesn't matter.
    ends: bool,
}

fn plainly(mut bytes: &[u8]) -> (Vec<FrameHead>, Noted) {
    let (mut heads, mut noted) = (Vec::new(), Noted::default());
    let (mut text, mut block, mut newest) = (HpackText::new(), None, 0);
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let &[high, middle, low, kind, flags, a, b, c, d] = head;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let stream = u32::from_be_bytes([a & 0x7f, b, c, d]);
        heads.push(FrameHead { kind, flags, payload_bytes: length, stream });
        let Some((payload, after)) = rest.split_at_checked(length) else { break };
        bytes = after;
        if noted.ends {
            continue;
        }
        let (mut fragments, fragment) = match (block.take(), kind) {
            (None, HEADERS) => (Vec::new(), unwrapped(payload, flags)),
            (Some((of, fragments)), CONTINUATION) if of == stream => (fragments, Some(payload)),
            (None, CONTINUATION) | (Some(_), _) => {
                noted.ends = true;
                continue;
            }
            (None, _) => continue,
        };
        let Some(fragment) = fragment else {
            noted.ends = true;
            continue;
        };
        fragments.extend_from_slice(fragment);
        if flags & END_HEADERS == 0 {
            block = Some((stream, fragments));
            continue;
        }
        match found_in(&mut text, &fragments) {
            None => noted.ends = true,
            Some(found) => {
                if found.is_invalid || (found.has_pseudo && stream <= newest) {
                    *noted.streams.entry(stream).or_default() += 1;
                }
                newest = newest.max(stream);
            }
        }
    }
    (heads, noted)
}

/// RFC 9113 section 6.2.
fn unwrapped(payload: &[u8], flags: u8) -> Option<&[u8]> {
    let (padding, rest) = match flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(padding, rest)| (usize::from(*padding), rest))?,
    };
    let rest = if flags & PRIORITY == 0 { rest } else { rest.get(5..)? };
    rest.get(..rest.len().checked_sub(padding)?)
}

fn found_in(text: &mut HpackText, block: &[u8]) -> Option<Found> {
    let mut found = Found::default();
    text.read(block, |name, value| {
        found.has_pseudo |= name.starts_with(b":");
        found.is_invalid |= match name {
            b":path" => value.contains(&b'#'),
            b":scheme" => !(value.eq_ignore_ascii_case(b"http") || value.eq_ignore_ascii_case(b"https")),
            _ => false,
        };
    })?;
    Some(found)
}

/// Any blocks of one connection: both decoders agree, and so do their tables.
pub fn any_blocks(bytes: &[u8]) {
    let (mut given, mut sizes, mut text) = (Given(bytes), HpackDecoder::new(), HpackText::new());
    while !given.is_empty() {
        let block = given.text();
        // The decoder of sizes skips the text of a regular field that no table keeps. If that is no Huffman code, only `h2` and the
        // decoder of text refuse the block.
        let Some(found) = found_in(&mut text, block) else { return };
        assert_eq!(sizes.read(block), Some(found));
        assert_eq!(sizes.used(), text.used());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::fuzzing::steps;

    proptest! {
        #[test]
        fn any_bytes_are_read_as_a_plain_reader_does(bytes in steps()) {
            super::any_client(&bytes);
            super::any_blocks(&bytes);
        }
    }
}
