//! Detects malformed requests (RFC 9113 sections 8.1.1 and 8.3) that `h2` accepts.
//!
//! `h2` removes a fragment from `:path`, ignores `:scheme` without `:authority`, and drops pseudo-fields from
//! trailers. The origin would get a different request than the client sent. So header blocks are parsed
//! before they reach `h2`. Streams with malformed ones are stored here until the connection's tasks check
//! them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::frames::{CONTINUATION, END_HEADERS, FrameHead, HEADERS, PADDED, PRIORITY};
use super::hpack::HpackDecoder;

/// How many streams are stored. A client with more of them at a time is disconnected.
const MOST_NOTED: usize = 512;
/// The longest header block over all its frames. `h2` ends a connection before a block reaches it.
const MOST_BLOCK_BYTES: usize = 4 << 20;

const PRIORITY_BYTES: usize = 5;
/// The longest frame that `h2` takes: the default of SETTINGS_MAX_FRAME_SIZE.
const MOST_FRAME_BYTES: usize = 16 << 10;

/// The malformed streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Malformed {
    streams: RefCell<VecDeque<u32>>,
    /// Paths of streams for which `h2` gets another one.
    paths: RefCell<VecDeque<(u32, Rc<[u8]>)>>,
    /// Streams that are reset for an error that has been counted.
    reset: RefCell<VecDeque<u32>>,
    /// A block could not be parsed. `h2` ends the connection because of it. Until then every stream counts
    /// as malformed.
    is_lost: Cell<bool>,
}

impl Malformed {
    /// Whether `stream` is malformed. Asking removes the entry.
    pub(super) fn take(&self, stream: u32) -> bool {
        let mut streams = self.streams.borrow_mut();
        let at = streams.iter().position(|&noted| noted == stream);
        at.is_some_and(|at| streams.remove(at).is_some()) || self.is_lost.get()
    }

    /// Notes that `stream` is reset for an error that has been counted.
    pub(super) fn expect_reset(&self, stream: u32) {
        let mut reset = self.reset.borrow_mut();
        if reset.len() == MOST_NOTED {
            reset.pop_front();
        }
        reset.push_back(stream);
    }

    /// Whether the reset of `stream` was expected.
    pub(super) fn was_reset(&self, stream: u32) -> bool {
        let mut reset = self.reset.borrow_mut();
        reset.iter().position(|&noted| noted == stream).is_some_and(|at| reset.remove(at).is_some())
    }

    /// The path of `stream` as it was sent, if `h2` got another one.
    pub(super) fn take_path(&self, stream: u32) -> Option<Rc<[u8]>> {
        let mut paths = self.paths.borrow_mut();
        let at = paths.iter().position(|(noted, _)| *noted == stream)?;
        // Streams come in order. `h2` refused those before, for another reason.
        paths.drain(..=at).next_back().map(|(_, path)| path)
    }

    /// Whether too many malformed streams have not been checked yet.
    pub(super) fn are_too_many(&self) -> bool {
        self.streams.borrow().len() > MOST_NOTED || self.paths.borrow().len() > MOST_NOTED
    }

    fn note(&self, stream: u32) {
        if !self.are_too_many() {
            self.streams.borrow_mut().push_back(stream);
        }
    }
}

/// The header blocks that a connection receives.
#[derive(Debug)]
pub(super) struct Blocks {
    decoder: HpackDecoder,
    /// The frame that is coming, if it is part of a block, and how much of it is still to come.
    frame: Option<(FrameHead, usize)>,
    /// The received part of a block; up to `whole` without padding and priorities.
    block: Vec<u8>,
    whole: usize,
    /// The highest stream that has started. A block of this or an earlier stream contains trailers.
    newest: u32,
    /// Replaced in the last block: a part of it, from this byte on.
    replaced: Option<(usize, Vec<u8>)>,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self {
            decoder: HpackDecoder::new(),
            frame: None,
            block: Vec::new(),
            whole: 0,
            newest: 0,
            replaced: None,
        }
    }

    pub(super) fn on_frame(&mut self, head: FrameHead, malformed: &Malformed) {
        self.frame = matches!(head.kind, HEADERS | CONTINUATION).then_some((head, head.payload_bytes));
        if head.kind == HEADERS {
            self.block.clear();
        }
        self.whole = self.block.len();
        if head.payload_bytes == 0 {
            self.on_payload(&[], malformed);
        }
    }

    pub(super) fn on_payload(&mut self, bytes: &[u8], malformed: &Malformed) {
        let Some((head, left)) = &mut self.frame else { return };
        let head = *head;
        *left = left.saturating_sub(bytes.len());
        let is_end = *left == 0;
        if malformed.is_lost.get() {
            return;
        }
        // Most blocks are one frame that arrives in one piece. They are not copied.
        if is_end
            && bytes.len() == head.payload_bytes
            && self.block.is_empty()
            && head.flags & END_HEADERS != 0
        {
            return self.on_block(fragment(bytes, head).map(|range| &bytes[range]), head.stream, malformed);
        }
        if self.block.len() + bytes.len() > MOST_BLOCK_BYTES {
            self.block = Vec::new();
            return malformed.is_lost.set(true);
        }
        self.block.extend_from_slice(bytes);
        if is_end {
            self.on_frame_end(head, malformed);
        }
    }

    fn on_frame_end(&mut self, head: FrameHead, malformed: &Malformed) {
        let Some(range) = fragment(&self.block[self.whole..], head) else {
            return malformed.is_lost.set(true);
        };
        self.block.truncate(self.whole + range.end);
        self.block.drain(self.whole..self.whole + range.start);
        if head.flags & END_HEADERS != 0 {
            // Free the memory: a connection may be idle for long.
            let block = std::mem::take(&mut self.block);
            self.on_block(Some(&block), head.stream, malformed);
        }
    }

    fn on_block(&mut self, block: Option<&[u8]>, stream: u32, malformed: &Malformed) {
        let Some((found, odd_path)) = block.and_then(|block| self.decoder.read_all(block)) else {
            return malformed.is_lost.set(true);
        };
        let is_trailers = stream <= self.newest;
        self.newest = self.newest.max(stream);
        if found.is_invalid || (is_trailers && found.has_pseudo) {
            malformed.note(stream);
        }
        if let Some(odd) = odd_path.filter(|_| !is_trailers) {
            malformed.paths.borrow_mut().push_back((stream, odd.path));
            self.replaced = odd.other;
        }
    }

    /// The replacement for the rest of the block that has just ended: where it begins, and its bytes.
    pub(super) fn take_replaced(&mut self) -> Option<(usize, Vec<u8>)> {
        self.replaced.take()
    }

    /// Whether a block has begun that can still be whole.
    pub(super) fn is_open(&self) -> bool {
        self.frame.is_some_and(|(head, left)| {
            head.payload_bytes <= MOST_FRAME_BYTES && (left > 0 || head.flags & END_HEADERS == 0)
        })
    }
}

/// Writes `text` into a block, whose frames stand at the start of `frames`, from its byte `from` on.
pub(super) fn replace(frames: &mut [u8], (from, text): &(usize, Vec<u8>)) {
    let (mut at, mut skipped, mut written) = (0, 0, 0);
    while let Some(&[high, middle, low, kind, flags, ..]) =
        frames.get(at..).and_then(<[u8]>::first_chunk::<9>)
    {
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let head = FrameHead { kind, flags, payload_bytes: length, stream: 0 };
        let Some(payload) = frames.get_mut(at + 9..at + 9 + length) else { return };
        let Some(range) = fragment(payload, head) else { return };
        for byte in &mut payload[range] {
            if skipped < *from {
                skipped += 1;
            } else if let Some(&new) = text.get(written) {
                *byte = new;
                written += 1;
            }
        }
        if flags & END_HEADERS != 0 {
            return;
        }
        at += 9 + length;
    }
}

/// The part of a frame's payload that belongs to the block (RFC 9113 section 6.2); `None`: the padding is too
/// long.
fn fragment(payload: &[u8], head: FrameHead) -> Option<Range<usize>> {
    if head.kind != HEADERS {
        return Some(0..payload.len());
    }
    let (mut start, mut padding) = (0, 0);
    if head.flags & PADDED != 0 {
        padding = usize::from(*payload.first()?);
        start = 1;
    }
    if head.flags & PRIORITY != 0 {
        start += PRIORITY_BYTES;
    }
    let end = payload.len().checked_sub(padding)?;
    (start <= end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [u8; 3] = [0x82, 0x87, 0x84];

    /// One HEADERS frame with this payload, in pieces of `size`.
    fn come(payload: &[u8], flags: u8, size: usize) -> (Blocks, Malformed) {
        let (mut blocks, malformed) = (Blocks::new(), Malformed::default());
        let head = FrameHead { kind: HEADERS, flags, payload_bytes: payload.len(), stream: 1 };
        blocks.on_frame(head, &malformed);
        payload.chunks(size).for_each(|piece| blocks.on_payload(piece, &malformed));
        (blocks, malformed)
    }

    #[test]
    fn blocks_are_found_in_pieces_behind_priorities_and_in_padding() {
        let bad = [&GET[..2], b"\x04\x03/#x"].concat();
        for (flags, payload) in [
            (END_HEADERS, bad.clone()),
            (END_HEADERS | PADDED, [&[2][..], &bad, &[0; 2]].concat()),
            (END_HEADERS | PRIORITY, [&[0; 5][..], &bad].concat()),
            (END_HEADERS | PRIORITY | PADDED, [&[1][..], &[0; 5], &bad, &[0]].concat()),
        ] {
            for size in [1, 2, 3, payload.len()] {
                let (blocks, malformed) = come(&payload, flags, size);
                assert!(
                    malformed.take(1) && !malformed.take(1) && !malformed.is_lost.get(),
                    "{flags} {size}"
                );
                assert_eq!(blocks.block.capacity(), 0, "an idle connection holds no block");
            }
        }
        assert!(!come(&GET, END_HEADERS, 9).1.take(1));
    }

    #[test]
    fn after_an_invalid_block_every_stream_is_malformed() {
        for (flags, payload) in [
            (END_HEADERS | PADDED, &[3, 0x82][..]),
            (END_HEADERS | PRIORITY, &[0; 4][..]),
            (END_HEADERS, &[0x80]),
        ] {
            for size in [1, 9] {
                assert!(come(payload, flags, size).1.take(7), "{payload:?}");
            }
        }
    }

    #[test]
    fn unchecked_malformed_streams_are_limited() {
        let (mut blocks, malformed) = (Blocks::new(), Malformed::default());
        for stream in 1..10_000 {
            let head = FrameHead { kind: HEADERS, flags: END_HEADERS, payload_bytes: 5, stream };
            blocks.on_frame(head, &malformed);
            blocks.on_payload(b"\x06\x03ftp", &malformed);
        }
        assert!(malformed.are_too_many());
        assert_eq!(malformed.streams.borrow().len(), MOST_NOTED + 1);
    }
}
