//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT becomes the HTTP/1.1 upgrade that origins know, and
//! its stream a connection.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::Method;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use truepeer_http::RequestHead;

use crate::stream::Connection;

/// Bytes that one write takes: a few records.
const MOST_WRITTEN: usize = 64 << 10;

/// Whether the request asks for a WebSocket. Other protocols have no upgrade that truepeer knows.
pub(super) fn is_asked_for(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    parts.method == Method::CONNECT && protocol.is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Adds what the handshake has in HTTP/1.1 only (RFC 6455 section 4.1). The client has sent no key, and gets
/// no answer to it.
pub(super) fn make_upgrade(head: &mut RequestHead) {
    head.fields.push(b"upgrade", b"websocket");
    head.fields.push(b"sec-websocket-key", key().as_bytes());
    head.wants_upgrade = true;
}

/// Whether a field of the handshake is of HTTP/1.1 only.
pub(super) fn is_of_http1(name: &[u8]) -> bool {
    [&b"sec-websocket-key"[..], b"sec-websocket-accept"].iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// 16 random bytes in base64. They only keep caches from answering.
fn key() -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let random = RandomState::new();
    let mut bits = (u128::from(random.hash_one(0)) << 64) | u128::from(random.hash_one(1));
    // 22 digits have 132 bits; the last four are 0.
    let digit = |_| {
        let at = (bits >> 122) as usize & 63;
        bits <<= 6;
        char::from(DIGITS[at])
    };
    (0..22).map(digit).collect::<String>() + "=="
}

/// A stream as a connection.
#[derive(Debug)]
pub(super) struct StreamConnection {
    incoming: RecvStream,
    outgoing: SendStream<Bytes>,
    /// Received, and not read yet.
    piece: Bytes,
    resets: Cell<bool>,
}

impl StreamConnection {
    pub(super) fn new(incoming: RecvStream, outgoing: SendStream<Bytes>) -> Self {
        Self { incoming, outgoing, piece: Bytes::new(), resets: Cell::new(false) }
    }
}

impl Connection for StreamConnection {
    fn reset_when_closed(&self) {
        self.resets.set(true);
    }
}

impl Drop for StreamConnection {
    fn drop(&mut self) {
        if self.resets.get() {
            // RFC 8441 section 5: it stands for TCP's reset.
            self.outgoing.send_reset(Reason::CANCEL);
        }
    }
}

fn broken(_: h2::Error) -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for StreamConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(self.incoming.poll_data(cx)) {
                Some(data) => self.piece = data.map_err(broken)?,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece[..length]);
        self.piece.advance(length);
        self.incoming.flow_control().release_capacity(length).map_err(broken)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.outgoing.reserve_capacity(bytes.len().min(MOST_WRITTEN));
        while self.outgoing.capacity() == 0 {
            match ready!(self.outgoing.poll_capacity(cx)) {
                Some(room) => room.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let length = bytes.len().min(self.outgoing.capacity());
        self.outgoing.send_data(Bytes::copy_from_slice(&bytes[..length]), false).map_err(broken)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.outgoing.send_data(Bytes::new(), true).map_err(broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sixteen_bytes_in_base64_and_differ() {
        let (one, other) = (key(), key());
        assert!(one.len() == 24 && one.ends_with("==") && one != other, "{one} {other}");
        // The last digit has two bits of the key.
        assert!(b"AQgw".contains(&one.as_bytes()[21]), "{one}");
    }
}
