//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT becomes the HTTP/1.1 upgrade that origins know, and
//! its stream a connection.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use truepeer_http::RequestHead;
use truepeer_http::fields::FieldList;
use truepeer_http::http2::{Reason, StreamHandle};
use truepeer_stream::buffers::OutBuffer;
use truepeer_stream::stream::Connection;

/// Adds what the handshake has in HTTP/1.1 only (RFC 6455 section 4.1). The client has sent no key, and gets
/// no answer to it.
pub(super) fn make_upgrade(head: &mut RequestHead) {
    head.fields.push(b"upgrade", b"websocket");
    head.fields.push(b"sec-websocket-key", key().as_bytes());
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
    stream: StreamHandle,
    /// Received, and read up to `read`.
    data: OutBuffer,
    read: usize,
    resets: Cell<bool>,
}

impl StreamConnection {
    pub(super) fn new(stream: StreamHandle) -> Self {
        Self { stream, data: OutBuffer::take(), read: 0, resets: Cell::new(false) }
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
            self.stream.reset(Reason::CANCEL);
        }
    }
}

impl AsyncRead for StreamConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, data, read, .. } = self.get_mut();
        if *read == data.len() {
            *read = 0;
            let came = ready!(stream.poll_data(cx, data));
            if !came.map_err(|_| io::ErrorKind::ConnectionReset)? {
                return Poll::Ready(Ok(()));
            }
        }
        let length = (data.len() - *read).min(buffer.remaining());
        buffer.put_slice(&data[*read..*read + length]);
        *read += length;
        stream.release(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let Some(length) = ready!(self.stream.poll_room(cx, bytes.len())) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        self.stream.send_data(&bytes[..length], false);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_open = self.stream.send_end(&FieldList::default());
        Poll::Ready(if is_open { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) })
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
