//! A connection with or without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::reactor::TcpStream;
use crate::tls::{TlsFacts, TlsStream, Transport};

/// A connection of either kind.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The TCP connection beneath it.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref(),
        }
    }

    /// The result of the TLS handshake.
    #[must_use]
    pub fn facts(&self) -> Option<TlsFacts> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream.facts()),
        }
    }

    /// Reads into `buffer`, which must not be empty; 0: the other end has ended the stream in order.
    ///
    /// # Errors
    /// Those of [`TcpStream::poll_read_into`] and [`TlsStream::poll_read_into`].
    pub fn poll_read_into(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_read_into(cx, buffer),
            Self::Tls(stream) => stream.poll_read_into(cx, buffer),
        }
    }
}

impl Transport for TcpStream {
    fn poll_may_write(&self, cx: &Context<'_>) -> Poll<()> {
        Self::poll_may_write(self, cx)
    }
}

/// What exchanges need from a connection besides its bytes. The defaults suit in-memory connections (tests).
pub trait Connection: AsyncRead + AsyncWrite + Unpin {
    /// Makes the close send a reset, so that the other end knows that bytes may be missing.
    fn reset_when_closed(&self) {}

    /// Makes the next read ask the kernel even without an event. It then finds bytes that arrived since the
    /// last epoll_wait.
    fn look_again(&self) {}

    /// Whether nothing has come since the last read, as far as known. Then the task is woken when something
    /// comes. As a read does, it sends what TLS has to send.
    fn poll_quiet(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

    /// Whether the last read emptied the socket. `false`: it may have stopped only at the end of this turn's
    /// allowance.
    fn is_read_out(&self) -> bool {
        true
    }

    /// Whether the kernel accepts more bytes, as far as known. `false` only if it has refused some and has
    /// not reported room since.
    fn may_be_writable(&self) -> bool {
        true
    }

    /// The number of sent bytes that the other end's kernel has not acknowledged; 0 if unknown.
    fn unacknowledged(&self) -> usize {
        0
    }

    /// Whether TLS can receive nothing more. The other end has been sent an alert.
    fn is_broken(&self) -> bool {
        false
    }

    /// The caller discards what it reads from now on, so it need not be decrypted.
    fn discard(&mut self) {}
}

impl Connection for Stream {
    fn reset_when_closed(&self) {
        self.tcp().reset_when_closed();
    }

    fn look_again(&self) {
        self.tcp().look_again();
    }

    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Plain(stream) => stream.poll_quiet(cx),
            Self::Tls(stream) => {
                stream.awaits_bytes() && stream.get_ref().poll_quiet(cx) && stream.poll_sent(cx)
            }
        }
    }

    fn is_read_out(&self) -> bool {
        !self.tcp().may_be_readable()
    }

    fn may_be_writable(&self) -> bool {
        self.tcp().may_be_writable()
    }

    fn unacknowledged(&self) -> usize {
        self.tcp().unacknowledged()
    }

    fn is_broken(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_broken())
    }

    fn discard(&mut self) {
        if let Self::Tls(stream) = self {
            stream.discard();
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Connection for tokio::io::DuplexStream {}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.poll_quiet(cx) {
            return Poll::Pending;
        }
        match this {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
