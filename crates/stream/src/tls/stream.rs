//! A TLS connection: encrypted bytes on one side, plain bytes on the other.
//!
//! Memory is bounded: nothing is read while plain bytes wait to be taken, and nothing is encrypted while
//! encrypted bytes wait to be sent. A read uses a buffer of the thread and returns it once it is empty. An
//! idle connection holds none.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Connection, InvalidMessage, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::HandshakeError;
use super::facts::TlsFacts;
use crate::buffers::{self, RECORD_BYTES};

/// How many plain bytes are encrypted before they are sent: two records.
const WRITE_BYTES: usize = 32 << 10;
/// Their encrypted size, including each record's header and tag, and room for tickets and alerts. Nothing is
/// encrypted while any of it waits, so a connection never holds more.
pub const OUTGOING_BYTES: usize = WRITE_BYTES + 1024;
/// How many of the first bytes are kept to identify a protocol other than TLS.
const FIRST_BYTES: usize = 16;

/// The alert of TLS 1.2, before anything is encrypted.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];

/// What TLS runs over.
pub trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Whether a write may be tried now; otherwise as after a pending write. A write that is tried in vain
    /// costs TLS its preparation.
    fn poll_may_write(&self, _cx: &Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// Encrypted bytes that were read and not yet decrypted.
#[derive(Default)]
struct Ciphertext {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Ciphertext {
    fn holding(bytes: &[u8]) -> Self {
        Self { buffer: bytes.to_vec(), from: 0, to: bytes.len() }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    fn release(&mut self) {
        buffers::give_back(std::mem::take(&mut self.buffer));
        (self.from, self.to) = (0, 0);
    }
}

impl Read for Ciphertext {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.to - self.from);
        into[..length].copy_from_slice(&self.buffer[self.from..self.from + length]);
        self.from += length;
        Ok(length)
    }
}

/// TLS over `S`. A read of 0 bytes is the other end's close_notify. An end of `S` without one is an error of
/// kind [`io::ErrorKind::UnexpectedEof`], because data may be missing.
pub struct TlsStream<S> {
    io: S,
    session: Connection,
    incoming: Ciphertext,
    first: Vec<u8>,
    /// `S` has ended.
    ended: bool,
    closing: bool,
    /// A send has failed. What the other end has sent before can still be read.
    cannot_send: bool,
    /// Why nothing more can be received. The alert is sent before the error is returned.
    broken: Option<rustls::Error>,
    /// Reads return what comes without decrypting it.
    discards: bool,
}

impl<S: Transport> TlsStream<S> {
    /// Accepts TLS from a client. `first` holds the bytes that were already read.
    ///
    /// # Errors
    /// The handshake failed. An alert has been sent to the other end.
    pub async fn accept(io: S, config: Arc<ServerConfig>, first: &[u8]) -> Result<Self, HandshakeError> {
        let mut stream = Self::begin(io, config, first)?;
        stream.handshake().await?;
        Ok(stream)
    }

    /// As [`Self::accept`], before its handshake.
    ///
    /// # Errors
    /// The configuration can't be used.
    pub fn begin(io: S, config: Arc<ServerConfig>, first: &[u8]) -> Result<Self, HandshakeError> {
        let session = rustls::ServerConnection::new(config)
            .map_err(|error| HandshakeError::Tls { error, first: Vec::new() })?;
        Ok(Self::new(io, session.into(), first))
    }

    /// Starts TLS with a backend, which must prove to be `name`.
    ///
    /// # Errors
    /// Those of [`TlsStream::accept`].
    pub async fn connect(
        io: S,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, HandshakeError> {
        let session = rustls::ClientConnection::new(config, name)
            .map_err(|error| HandshakeError::Tls { error, first: Vec::new() })?;
        let mut stream = Self::new(io, session.into(), &[]);
        stream.handshake().await?;
        Ok(stream)
    }

    fn new(io: S, session: Connection, first: &[u8]) -> Self {
        let incoming = Ciphertext::holding(first);
        let first = first[..first.len().min(FIRST_BYTES)].to_vec();
        Self {
            io,
            session,
            incoming,
            first,
            ended: false,
            closing: false,
            cannot_send: false,
            broken: None,
            discards: false,
        }
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// Those of [`Self::accept`].
    pub async fn handshake(&mut self) -> Result<(), HandshakeError> {
        let shaken = std::future::poll_fn(|cx| self.poll_handshake(cx)).await;
        if let Err(error) = &shaken {
            // Tell the other end why: at the end of the turn, or once it reads, if that is within the
            // handshake's timeout.
            let _ = std::future::poll_fn(|cx| self.poll_send(cx)).await;
            if error.lacks_an_alert() {
                let alert = &HANDSHAKE_FAILURE;
                let _ = std::future::poll_fn(|cx| Pin::new(&mut self.io).poll_write(cx, alert)).await;
            }
        }
        self.first = Vec::new();
        shaken
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            // TLS 1.3 tickets may wait; is_handshaking covers the messages that the other end needs.
            let sent = self.poll_send(cx);
            if let Poll::Ready(Err(error)) = sent {
                return Poll::Ready(Err(error.into()));
            }
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.poll_receive(cx)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Err(HandshakeError::Closed { first: self.first.clone() })),
                Err(Broken::Io(error)) => return Poll::Ready(Err(error.into())),
                Err(Broken::Tls(error)) => {
                    return Poll::Ready(Err(HandshakeError::Tls { error, first: self.first.clone() }));
                }
            }
        }
    }

    /// Ends a refused connection: the sending direction first, after the alert, then waits for the other
    /// end's end, and discards what comes before it. A close with unread bytes would be a reset, and the
    /// other end could lose the alert.
    pub async fn end_refused(&mut self) {
        let ended = std::future::poll_fn(|cx| {
            ready!(self.poll_send(cx))?;
            Pin::new(&mut self.io).poll_shutdown(cx)
        });
        if ended.await.is_err() {
            return;
        }
        self.discard();
        std::future::poll_fn(|cx| {
            let mut nothing = [0; 4096];
            while matches!(ready!(self.poll_read_into(cx, &mut nothing)), Ok(1..)) {}
            Poll::Ready(())
        })
        .await;
    }

    /// From now on reads return the bytes of `S` as they are, for a caller that discards them.
    pub fn discard(&mut self) {
        self.incoming.release();
        self.discards = true;
    }

    /// Whether nothing more can be received. The other end has been sent an alert.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Reads and decrypts bytes. `false`: the stream has ended.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        if self.incoming.is_empty() && !self.ended {
            ready!(self.poll_fill(cx))?;
        }
        let length = self.session.read_tls(&mut self.incoming).map_err(|_full| TOO_LONG)?;
        if self.incoming.is_empty() {
            self.incoming.release();
        }
        self.session.process_new_packets()?;
        Poll::Ready(Ok(length > 0))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = buffers::take(RECORD_BYTES);
        let mut space = ReadBuf::new(&mut buffer);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut space);
        let length = space.filled().len();
        if !matches!(read, Poll::Ready(Ok(()))) || length == 0 {
            buffers::give_back(buffer);
            self.ended |= read.is_ready() && length == 0;
            return read;
        }
        if self.first.len() < FIRST_BYTES && self.session.is_handshaking() {
            let missing = FIRST_BYTES - self.first.len();
            self.first.extend_from_slice(&buffer[..length.min(missing)]);
        }
        self.incoming = Ciphertext { buffer, from: 0, to: length };
        Poll::Ready(Ok(()))
    }

    /// Sends the encrypted bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            ready!(self.io.poll_may_write(cx));
            match self.session.write_tls(&mut Sink { io: &mut self.io, cx }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => {
                    self.cannot_send = true;
                    return Poll::Ready(Err(error));
                }
                Ok(_) => {}
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads plain bytes into `buffer`, which must not be empty; 0: the other end's close_notify.
    ///
    /// # Errors
    /// The connection failed, ended without a close_notify ([`io::ErrorKind::UnexpectedEof`]), or its bytes
    /// fail authentication.
    pub fn poll_read_into(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.discards {
            let mut space = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut space))?;
            return Poll::Ready(Ok(space.filled().len()));
        }
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
            // Send responses to key updates now: the application may have nothing to write. What can't be
            // sent ends no read: after a failed send, what came before can still be read, and
            // then the end.
            let sent = if self.cannot_send { Poll::Ready(Ok(())) } else { self.poll_send(cx) };
            if let Some(error) = &self.broken {
                let _ = ready!(sent);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())));
            }
            match ready!(self.poll_receive(cx)) {
                Ok(_) => {}
                Err(Broken::Io(error)) => return Poll::Ready(Err(error)),
                Err(Broken::Tls(error)) => self.broken = Some(error),
            }
        }
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let written = write(&mut self.session.writer());
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(written)
    }

    /// Whether only new bytes of `S` can make a read return something.
    #[must_use]
    pub fn awaits_bytes(&self) -> bool {
        let is_open = !self.ended && self.broken.is_none();
        is_open && self.incoming.is_empty() && self.session.wants_read()
    }

    /// Sends what a read would send. `false`: that has just failed. Reads still give what came before, then
    /// the end.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> bool {
        self.cannot_send || !matches!(self.poll_send(cx), Poll::Ready(Err(_)))
    }

    /// The results of the handshake.
    #[must_use]
    pub fn facts(&self) -> TlsFacts {
        let sni = match &self.session {
            Connection::Server(server) => server.server_name(),
            Connection::Client(_) => None,
        };
        TlsFacts::of(&self.session, sni)
    }

    /// The negotiated application protocol (ALPN).
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.session.alpn_protocol()
    }

    /// The stream beneath TLS.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.io
    }
}

/// Why nothing more can be received.
enum Broken {
    Io(io::Error),
    Tls(rustls::Error),
}

/// Taking bytes from memory fails only if rustls' buffer is full: of a handshake message of more than about
/// 64 KiB, or of early data.
const TOO_LONG: Broken = Broken::Tls(rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge));

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustls::Error> for Broken {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// Lets rustls write into `S`.
struct Sink<'a, 'b, S> {
    io: &'a mut S,
    cx: &'a mut Context<'b>,
}

impl<S: AsyncWrite + Unpin> Write for Sink<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.io).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.io).poll_write_vectored(self.cx, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl<S: Transport> AsyncRead for TlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let length = ready!(self.get_mut().poll_read_into(cx, buffer.initialize_unfilled()))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: Transport> AsyncWrite for TlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        self.get_mut().poll_write_with(cx, |writer| writer.write(bytes))
    }

    /// Small slices share one record.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut room = WRITE_BYTES;
        let fitting = slices.iter().take_while(|slice| {
            let fits = slice.len() <= room;
            room = room.saturating_sub(slice.len());
            fits
        });
        let count = fitting.count();
        let this = self.get_mut();
        match (count, slices.first()) {
            (0, Some(first)) => {
                let first = &first[..first.len().min(WRITE_BYTES)];
                this.poll_write_with(cx, |writer| writer.write(first))
            }
            _ => this.poll_write_with(cx, |writer| writer.write_vectored(&slices[..count])),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    /// Sends close_notify and ends the sending direction of `S`. The receiving direction stays open.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.closing, true) {
            this.session.send_close_notify();
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

impl<S> Drop for TlsStream<S> {
    fn drop(&mut self) {
        self.incoming.release();
    }
}

impl<S: fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("io", &self.io).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
