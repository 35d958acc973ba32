//! Hand-made frames, for behaviour that real clients don't show.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// RFC 7541 section 6.3: the dynamic table has a size of 0.
pub(super) const NO_TABLE: u8 = 0x20;
/// HPACK's static index 12 (RFC 7541, appendix A): `:status: 400`.
pub(super) const STATUS_400: u8 = 0x80 | 12;
/// RFC 9113 section 7.
pub(super) const ENHANCE_YOUR_CALM: u32 = 0xb;
pub(super) const PROTOCOL_ERROR: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM (at offset 0) or GOAWAY (at offset 4).
    pub(super) fn error(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

impl Frame {
    /// See [`Frame::error`]; 0 for other frames.
    pub(super) fn error_or_0(&self) -> u32 {
        if matches!(self.kind, RST_STREAM | GOAWAY) { self.error() } else { 0 }
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A block of literal fields without indexing (RFC 7541 section 6.2.2), each shorter than 127 bytes.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The start of a client's connection.
pub(super) fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// The frame at the start of `bytes` and its length; `None` while it is incomplete.
pub(super) fn parse(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (head, rest) = bytes.split_first_chunk::<9>()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let payload = rest.get(..len)?.to_vec();
    Some((Frame { kind: head[3], flags: head[4], stream, payload }, 9 + len))
}

/// The next frame; `None`: the connection has ended.
async fn next(stream: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; len as usize];
    stream.read_exact(&mut payload).await.ok()?;
    parse(&[&head[..], &payload].concat()).map(|(frame, _)| frame)
}

/// The next frame of one of these kinds; `None`: the connection has ended.
pub(super) async fn next_of(stream: &mut (impl AsyncRead + Unpin), kinds: &[u8]) -> Option<Frame> {
    loop {
        match next(stream).await {
            Some(frame) if !kinds.contains(&frame.kind) => {}
            found => return found,
        }
    }
}

/// Writes until the other end stops reading. Returns whether everything was written.
pub(super) async fn send(stream: &mut DuplexStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok()
}
