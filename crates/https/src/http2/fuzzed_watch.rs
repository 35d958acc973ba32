//! What the watch changes in any client's frames, held against a plain reading of all of them at once.

use std::collections::HashMap;
use std::task::{Context, Waker};

use tokio::io::{DuplexStream, duplex};

use super::frames::{DATA, END_STREAM, HEADERS, PADDED, PREFACE_BYTES, RST_STREAM};
use super::fuzzed::framed;
use super::uploads::Upload;
use super::watch::{CountedStream, UNKNOWN};
use crate::fuzzing::Given;
use crate::reactor::Reactor;

/// What a request's task does.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// It begins to serve the stream, whose request has announced this length.
    Begin(u32, Option<u64>),
    /// Its response begins.
    Respond(u32),
    /// It ends.
    End(u32),
}

/// The first byte cuts the frames, which a client sends, into pieces. Acts come between pieces.
///
/// # Panics
/// Other bytes change than those of the ends to hide, or another request counts as cut short.
pub fn any_watched(bytes: &[u8]) {
    let mut given = Given(bytes);
    let (pieces, acts) = (1 + usize::from(given.byte()), given.text());
    // Fewer frames than a client may send.
    let frames = framed(given.bytes(2048));
    let sent = [&[0; PREFACE_BYTES][..], &frames].concat();
    let mut acts = acts.as_chunks::<2>().0.iter().map(|&[kind, value]| act(kind, value));
    let acts: Vec<Option<Act>> = sent.chunks(pieces).map(|_| acts.next().flatten()).collect();

    let mut plain = Plain::default();
    let expected = plain.read(&sent, pieces, &acts);
    let watched = stream();
    let known = std::rc::Rc::clone(watched.uploads());
    let (mut uploads, mut seen): (HashMap<u32, Upload<'_>>, _) = (HashMap::new(), sent.clone());
    for (piece, act) in seen.chunks_mut(pieces).zip(acts) {
        match act {
            Some(Act::Begin(stream, length)) => {
                uploads.entry(stream).or_insert_with(|| Upload::new(&known, stream, length));
            }
            Some(Act::Respond(stream)) => _ = uploads.get(&stream).map(Upload::on_response),
            Some(Act::End(stream)) => _ = uploads.remove(&stream),
            None => {}
        }
        watched.note_received(piece);
    }
    assert!(!watched.is_exhausted());
    assert_eq!(seen, expected);
    for (stream, upload) in &uploads {
        let is_cut = upload.poll_cut(&Context::from_waker(Waker::noop())).is_ready();
        assert_eq!(is_cut, plain.known.get(stream).is_some_and(|upload| upload.is_cut), "stream {stream}");
    }
}

fn act(kind: u8, value: u8) -> Option<Act> {
    let stream = u32::from(kind & 31);
    match kind >> 5 {
        0 | 1 => Some(Act::Begin(stream, Some(value.into()))),
        2 => Some(Act::Begin(stream, None)),
        3..=5 => Some(Act::Respond(stream)),
        6 => Some(Act::End(stream)),
        _ => None,
    }
}

fn stream() -> CountedStream<DuplexStream> {
    thread_local! {
        static REACTOR: Reactor = Reactor::new().expect("an event loop");
    }
    REACTOR.with(|reactor| CountedStream::new(duplex(1).0, reactor))
}

/// A request whose end has not come.
#[derive(Default)]
struct PlainUpload {
    received: u64,
    answered: Option<u64>,
    is_cut: bool,
}

#[derive(Default)]
struct Plain {
    known: HashMap<u32, PlainUpload>,
    lengths: HashMap<u32, Option<u64>>,
}

impl Plain {
    /// The bytes that `h2` must see.
    fn read(&mut self, sent: &[u8], pieces: usize, acts: &[Option<Act>]) -> Vec<u8> {
        let mut seen = sent.to_vec();
        let (mut at, mut piece) = (PREFACE_BYTES, 0);
        // Up to the piece with the header's last byte.
        while let Some(&[high, middle, low, kind, flags, a, b, c, d]) = sent[at..].first_chunk::<9>() {
            let whole_in = (at + 8) / pieces;
            self.act(&acts[piece..=whole_in]);
            piece = whole_in + 1;
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let stream = u32::from_be_bytes([a & 0x7f, b, c, d]);
            if self.hides(kind, flags, length, stream) {
                // What came in earlier pieces has passed.
                let is_here = |at: usize| at / pieces == whole_in;
                if length == 0 && is_here(at + 3) {
                    seen[at + 3] = UNKNOWN;
                } else if is_here(at + 4) {
                    seen[at + 4] &= !END_STREAM;
                }
            }
            at += 9 + length;
            if at > sent.len() {
                break;
            }
        }
        self.act(&acts[piece.min(acts.len())..]);
        seen
    }

    fn act(&mut self, acts: &[Option<Act>]) {
        for act in acts.iter().flatten() {
            match *act {
                Act::Begin(stream, length) => _ = self.lengths.entry(stream).or_insert(length),
                Act::Respond(stream) => {
                    if let (Some(upload), Some(length)) =
                        (self.known.get_mut(&stream), self.lengths.get(&stream))
                    {
                        upload.answered = *length;
                    }
                }
                Act::End(stream) => {
                    if self.lengths.remove(&stream).is_some() {
                        self.known.remove(&stream);
                    }
                }
            }
        }
    }

    /// Whether this frame's end must be hidden.
    fn hides(&mut self, kind: u8, flags: u8, length: usize, stream: u32) -> bool {
        let ends = flags & END_STREAM != 0;
        if kind == HEADERS && !ends {
            self.known.entry(stream).or_default();
        } else if kind == HEADERS || kind == RST_STREAM {
            self.known.remove(&stream);
        } else if kind == DATA
            && let Some(upload) = self.known.get_mut(&stream)
        {
            upload.received += length as u64;
            if ends {
                let is_short = upload.answered.is_some_and(|announced| upload.received < announced);
                upload.is_cut = is_short && flags & PADDED == 0;
                if !upload.is_cut {
                    self.known.remove(&stream);
                }
            }
            return ends && self.known.contains_key(&stream);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::fuzzing::steps;

    proptest! {
        #[test]
        fn only_ends_to_hide_are_changed(bytes in steps()) {
            super::any_watched(&bytes);
        }
    }
}
