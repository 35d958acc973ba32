//! Finds the frames (RFC 9113 section 4.1) in a stream of bytes that comes in pieces.

/// Types of frames (RFC 9113 section 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const CONTINUATION: u8 = 9;
/// A flag of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
/// Flags of HEADERS; PADDED also of DATA, END_HEADERS also of CONTINUATION.
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;
/// The header of a frame.
pub(super) const FRAME_HEAD_BYTES: usize = 9;
/// The connection preface (RFC 9113 section 3.4) is not a frame.
pub(super) const PREFACE_BYTES: usize = 24;

/// The header of a frame (RFC 9113 section 4.1), as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) payload_bytes: usize,
    pub(super) stream: u32,
}

/// A part of the stream.
pub(super) enum Passed<'a> {
    /// The header of a frame, and how many bytes of this piece follow it.
    Frame(FrameHead, usize),
    /// A part of the payload of the last frame.
    Payload(&'a [u8]),
}

/// Finds the frames in a stream that comes in pieces.
#[derive(Debug)]
pub(super) struct Frames {
    head: [u8; 9],
    known: usize,
    /// Bytes to skip: of a payload, or of the preface.
    rest: usize,
    is_preface: bool,
}

impl Frames {
    pub(super) fn after(preface: usize) -> Self {
        Self { head: [0; 9], known: 0, rest: preface, is_preface: preface > 0 }
    }

    /// How many bytes of an unfinished header of a frame have passed.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    pub(super) fn pass(&mut self, mut bytes: &[u8], mut on_passed: impl FnMut(Passed<'_>)) {
        loop {
            let (passed, after) = bytes.split_at(self.rest.min(bytes.len()));
            self.rest -= passed.len();
            if !passed.is_empty() && !self.is_preface {
                on_passed(Passed::Payload(passed));
            }
            self.is_preface &= self.rest > 0;
            bytes = after;
            let taken = (self.head.len() - self.known).min(bytes.len());
            if taken == 0 {
                return;
            }
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            self.known += taken;
            if self.known == self.head.len() {
                let [high, middle, low, kind, flags, stream @ ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.known = 0;
                // RFC 9113 4.1: the highest bit is reserved.
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                let head = FrameHead { kind, flags, payload_bytes: self.rest, stream };
                on_passed(Passed::Frame(head, bytes.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let bytes = [
            &[7; PREFACE_BYTES][..],
            &[0, 0, 8, 6, 0, 0, 0, 0, 0][..],
            &[1; 8],
            &[0, 1, 2, 0, 1, 0, 0, 0, 3],
            &[2; 258],
            &[0, 0, 0, 4, 1, 0, 0, 0, 0],
        ]
        .concat();
        for size in [1, 2, 5, 9, 24, 33, bytes.len()] {
            let (mut frames, mut found) = (Frames::after(PREFACE_BYTES), Vec::new());
            let mut payload = Vec::new();
            bytes.chunks(size).for_each(|piece| {
                frames.pass(piece, |passed| match passed {
                    Passed::Frame(head, _) => found.push(head),
                    Passed::Payload(bytes) => payload.extend_from_slice(bytes),
                });
            });
            let expected = [
                FrameHead { kind: 6, flags: 0, payload_bytes: 8, stream: 0 },
                FrameHead { kind: DATA, flags: END_STREAM, payload_bytes: 258, stream: 3 },
                FrameHead { kind: 4, flags: 1, payload_bytes: 0, stream: 0 },
            ];
            assert_eq!(found, expected, "in pieces of {size}");
            assert_eq!(payload, [&[1; 8][..], &[2; 258]].concat(), "in pieces of {size}");
        }
    }
}
