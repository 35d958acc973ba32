//! The connection beneath `h2`: gathers what `h2` writes, so that the frames of one turn leave in one record and one send.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::shared_stream::SharedStream;

/// How many bytes are gathered before they are sent: two TLS records.
const GATHERED_BYTES: usize = 32 << 10;
/// An idle connection keeps no more than this.
const KEPT_BYTES: usize = 4 << 10;
/// The header of a frame (RFC 9113 section 4.1).
const FRAME_HEAD_BYTES: usize = 9;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;

/// Clones share the connection; `h2` has one, the connection's task the other.
#[derive(Debug)]
pub(super) struct GatheringStream<S>(Rc<Gathering<S>>);

#[derive(Debug)]
struct Gathering<S> {
    stream: SharedStream<S>,
    out: RefCell<Vec<u8>>,
    /// The start of `out` that was sent.
    sent: Cell<usize>,
    received: Cell<u64>,
    first: Cell<[u8; FRAME_HEAD_BYTES]>,
}

/// How the origin's first bytes look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preface {
    /// They have not all come.
    Awaited,
    /// The SETTINGS frame with which HTTP/2 begins.
    Settings,
    /// Not HTTP/2.
    Other,
}

impl<S> Clone for GatheringStream<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> GatheringStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(Rc::new(Gathering {
            stream: SharedStream::new(stream),
            out: RefCell::default(),
            sent: Cell::new(0),
            received: Cell::new(0),
            first: Cell::default(),
        }))
    }

    /// The number of bytes received.
    pub(super) fn received(&self) -> u64 {
        self.0.received.get()
    }

    /// RFC 9113 3.4: the server's preface is a SETTINGS frame.
    pub(super) fn preface(&self) -> Preface {
        let known = usize::try_from(self.received()).unwrap_or(usize::MAX);
        let [high, .., kind, flags, a, b, c, d] = self.0.first.get();
        match known {
            // A frame of 64 KiB or more can't be the first one: no such size is allowed yet. Text can look like it.
            1.. if high != 0 => Preface::Other,
            FRAME_HEAD_BYTES.. if kind == SETTINGS && flags & ACK == 0 && [a, b, c, d] == [0; 4] => {
                Preface::Settings
            }
            FRAME_HEAD_BYTES.. => Preface::Other,
            _ => Preface::Awaited,
        }
    }

    /// Sends what was gathered. `h2` itself never waits for that.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.0.out.borrow_mut();
        if out.is_empty() {
            // TLS may hold a part of an earlier send.
            return self.0.stream.with(|stream| stream.poll_flush(cx));
        }
        self.0.stream.with(|mut stream| {
            while self.0.sent.get() < out.len() {
                match ready!(stream.as_mut().poll_write(cx, &out[self.0.sent.get()..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    length => self.0.sent.set(self.0.sent.get() + length),
                }
            }
            self.0.sent.set(0);
            out.clear();
            if out.capacity() > KEPT_BYTES {
                *out = Vec::new();
            }
            stream.poll_flush(cx)
        })
    }

    /// Takes as much of `slices` as there is room for.
    fn poll_gather(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.0.out.borrow().len() >= GATHERED_BYTES {
            ready!(self.poll_send(cx))?;
        }
        let mut out = self.0.out.borrow_mut();
        let before = out.len();
        for slice in slices {
            let room = GATHERED_BYTES.saturating_sub(out.len());
            out.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        Poll::Ready(Ok(out.len() - before))
    }

    fn note_received(&self, bytes: &[u8]) {
        let known = usize::try_from(self.received()).unwrap_or(usize::MAX);
        if known < FRAME_HEAD_BYTES {
            let mut first = self.0.first.get();
            first[known..].iter_mut().zip(bytes).for_each(|(kept, byte)| *kept = *byte);
            self.0.first.set(first);
        }
        self.0.received.set(self.received() + bytes.len() as u64);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for GatheringStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.0.stream.with(|stream| stream.poll_read(cx, buffer)))?;
        self.note_received(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GatheringStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_gather(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The connection's task sends after `h2` has written everything.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        self.0.stream.with(|stream| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn writes_are_gathered_until_they_are_sent() {
        let (ours, mut theirs) = duplex(1 << 20);
        let mut stream = GatheringStream::new(ours);
        for piece in [&b"one"[..], b"two"] {
            assert!(Pin::new(&mut stream).poll_write(&mut cx(), piece).is_ready());
            assert!(Pin::new(&mut stream).poll_flush(&mut cx()).is_ready());
        }
        let mut space = [0; 16];
        assert!(std::pin::pin!(theirs.read(&mut space)).as_mut().poll(&mut cx()).is_pending());
        assert!(stream.poll_send(&mut cx()).is_ready());
        let Poll::Ready(Ok(6)) = std::pin::pin!(theirs.read(&mut space)).as_mut().poll(&mut cx()) else {
            panic!("not sent")
        };
        assert_eq!(&space[..6], b"onetwo");
    }

    #[test]
    fn what_is_gathered_has_a_limit() {
        let (ours, _theirs) = duplex(16);
        let mut stream = GatheringStream::new(ours);
        let mut taken = 0;
        while let Poll::Ready(Ok(length)) = Pin::new(&mut stream).poll_write(&mut cx(), &[7; 1000]) {
            taken += length;
            assert!(taken <= GATHERED_BYTES + 16, "{taken} bytes");
        }
        assert!(taken >= GATHERED_BYTES);
    }

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
            let (ours, _theirs) = duplex(16);
            let stream = GatheringStream::new(ours);
            bytes.chunks(3).for_each(|piece| stream.note_received(piece));
            assert_eq!(stream.preface(), preface, "{bytes:?}");
        }
    }
}
