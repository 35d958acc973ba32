//! Frames (RFC 9113 sections 4 and 6).

/// The size of a frame's header.
pub(super) const HEAD_BYTES: usize = 9;
/// The longest payload, of either end: the default of SETTINGS_MAX_FRAME_SIZE.
pub(super) const MOST_PAYLOAD: usize = 16 << 10;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
/// Its contents are deprecated (RFC 9113 section 5.3.2).
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
/// RFC 9218 section 7.1.
pub(super) const PRIORITY_UPDATE: u8 = 0x10;

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const HAS_PRIORITY: u8 = 0x20;

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    /// The header with which `bytes` begin, if it has come whole.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(Self { length, kind, flags, stream: number(stream)? & (u32::MAX >> 1) })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The number in the first four bytes.
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|&bytes| u32::from_be_bytes(bytes))
}

/// Appends the header of a frame.
pub(super) fn write_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&head(length, kind, flags, stream));
}

pub(super) fn head(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD_BYTES] {
    // Longer frames are never written.
    let [_, a, b, c] = u32::try_from(length).unwrap_or_default().to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [a, b, c, kind, flags, d, e, f, g]
}

/// Appends a frame whose payload is a number.
pub(super) fn write_number(out: &mut Vec<u8>, kind: u8, stream: u32, number: u32) {
    write_head(out, 4, kind, 0, stream);
    out.extend_from_slice(&number.to_be_bytes());
}

/// The payload without its padding. `None`: the padding is longer than the payload.
pub(super) fn without_padding(payload: &[u8], is_padded: bool) -> Option<&[u8]> {
    if !is_padded {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(padding.into())?)
}

/// A client's first bytes (RFC 9113 section 3.4).
pub(super) const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the other end's first bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// Too few have come to tell.
    Awaited,
    /// A client's first line, before its SETTINGS.
    FirstLine,
    /// The SETTINGS frame with which HTTP/2 begins.
    Settings,
    /// Not HTTP/2.
    Other,
}

impl Preface {
    /// What a server's first bytes are: its preface is a SETTINGS frame (RFC 9113 section 3.4).
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match (bytes.first(), FrameHead::of(bytes)) {
            // A frame of 64 KiB or more can't be the first one: no such size is allowed yet. Text can look
            // like it.
            (Some(1..), _) => Self::Other,
            (_, None) => Self::Awaited,
            (_, Some(head)) if head.kind == SETTINGS && !head.has(ACK) && head.stream == 0 => Self::Settings,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_from_other_protocols() {
        for (bytes, preface) in [
            (&b""[..], Preface::Awaited),
            (b"\0\0\x06\x04", Preface::Awaited),
            (b"\0\0\x06\x04\0\0\0\0\0", Preface::Settings),
            (b"\0\0\0\x04\x01\0\0\0\0", Preface::Other),
            (b"\0\0\x06\x04\0\0\0\0\x01", Preface::Other),
            (b"\0\0\x08\x06\0\0\0\0\0", Preface::Other),
            (b"HTTP/1.1 400 Bad Request", Preface::Other),
            (b"H", Preface::Other),
        ] {
            assert_eq!(Preface::of(bytes), preface, "{bytes:?}");
        }
    }

    #[test]
    fn padding_is_no_longer_than_the_payload() {
        for (payload, rest) in [
            (&b""[..], None),
            (b"\0", Some(&b""[..])),
            (b"\x01", None),
            (b"\x01ab", Some(b"a")),
            (b"\x02ab", Some(b"")),
        ] {
            assert_eq!(without_padding(payload, true), rest, "{payload:?}");
        }
        assert_eq!(without_padding(b"\x09", false), Some(&b"\x09"[..]));
    }
}
