//! A TCP connection for the tasks of a loop.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use truepeer_policy::{HeaderError, HeaderReader, LATE_BYTES, Opening};
use truepeer_session::table::Key;

use super::event_loop::Reactor;
use super::sources::{OF_A_CONNECTION, Source, token};

/// A connection. Dropping it closes it: with FIN, or with RST after [`TcpStream::reset_when_closed`].
pub struct TcpStream {
    io: mio::net::TcpStream,
    source: Rc<Source>,
    key: Key,
    reactor: Reactor,
    /// Judges the first bytes, until they are data. Boxed: few connections need one.
    late: RefCell<Option<Box<HeaderReader>>>,
}

/// Ends a connection from outside its task.
#[derive(Debug)]
pub struct AbortHandle(Rc<Source>);

impl AbortHandle {
    /// Makes every read and write fail from now on, as after a reset, and the close send one.
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl TcpStream {
    /// Takes an established connection. Reads and writes may succeed at once.
    pub(super) fn established(reactor: &Reactor, io: mio::net::TcpStream) -> io::Result<Self> {
        Self::register(reactor, io, Source::fresh())
    }

    /// Takes a connection in progress: see [`TcpStream::connected`].
    pub(super) fn connecting(reactor: &Reactor, io: mio::net::TcpStream) -> io::Result<Self> {
        Self::register(reactor, io, Rc::default())
    }

    fn register(reactor: &Reactor, mut io: mio::net::TcpStream, source: Rc<Source>) -> io::Result<Self> {
        let state = reactor.state();
        let key = state.sources.add(&source);
        source.descriptor.set(io.as_raw_fd());
        let registered = state.poll.borrow().registry().register(&mut io, token(key), OF_A_CONNECTION);
        if let Err(error) = registered {
            state.sources.remove(key);
            return Err(error);
        }
        Ok(Self { io, source, key, reactor: reactor.clone(), late: RefCell::default() })
    }

    /// Waits until the connection is established. Nothing may be written before: some network stacks refuse
    /// it.
    pub(super) async fn connected(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            if self.source.writable.get() {
                return Poll::Ready(());
            }
            self.source.await_writable(cx);
            Poll::Pending
        })
        .await;
        match self.io.take_error()? {
            Some(error) => Err(error),
            // VPP only reports that the connect failed, not why.
            None if self.source.is_broken() => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
            None => Ok(()),
        }
    }

    /// Reads into `buffer`, which must not be empty; 0 is the end of the stream.
    ///
    /// # Errors
    /// The error that ended the connection. Bytes that arrived before it are returned first.
    pub fn poll_read_into(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.source.readable.get() {
            self.source.await_readable(cx);
            return Poll::Pending;
        }
        ready!(self.reactor.poll_allowance(cx));
        self.check_aborted()?;
        ready!(self.poll_late_bytes(cx))?;
        loop {
            match (&self.io).read(buffer) {
                Ok(length) => {
                    if length > 0 && length < buffer.len() {
                        self.source.on_short_read();
                    }
                    return Poll::Ready(Ok(length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.readable.set(false);
                    self.source.await_readable(cx);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The sender was silent while a header was optional: each read first [judges](Self::poll_late_bytes)
    /// what comes.
    pub fn await_late_bytes(&self, reader: HeaderReader) {
        self.late.replace(Some(Box::new(reader)));
    }

    /// Waits until the first bytes of a sender that was silent are known to be data. They stay in the kernel
    /// until then.
    ///
    /// # Errors
    /// They are a header: [`refused_late`] returns why. Or the error that ended the connection.
    pub fn poll_late_bytes(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut late = self.late.borrow_mut();
        while let Some(reader) = late.as_deref() {
            if !self.source.readable.get() {
                self.source.await_readable(cx);
                return Poll::Pending;
            }
            let mut bytes = [0; LATE_BYTES];
            let length = match self.io.peek(&mut bytes) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.readable.set(false);
                    continue;
                }
                Err(error) => return Poll::Ready(Err(error)),
            };
            match reader.on_late_bytes(&bytes[..length]) {
                Opening::Refused(error) => {
                    self.reset_when_closed();
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
                Opening::NeedMore if length > 0 && self.source.may_show_more() => {
                    self.source.readable.set(false)
                }
                _ => *late = None,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much of `slices` as there is room for.
    ///
    /// # Errors
    /// The error that ended the connection.
    pub fn poll_write_slices(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |mut io| match slices {
            [one] => io.write(one),
            many => io.write_vectored(many),
        })
    }

    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&mio::net::TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_may_write(cx));
        ready!(self.reactor.poll_allowance(cx));
        self.check_aborted()?;
        loop {
            match write(&self.io) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.writable.set(false);
                    self.source.await_writable(cx);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Bytes from before the reset can still be read, perhaps before their event was seen.
                    self.look_again();
                    return Poll::Ready(Err(error));
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Whether a write may be tried now. Otherwise the task is woken when there is room, or polled again at
    /// the end of the turn.
    pub fn poll_may_write(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.source.writable.get() {
            self.source.await_writable(cx);
            return Poll::Pending;
        }
        self.reactor.poll_settling()
    }

    /// Whether nothing has come since the last read. Then the task is woken when something comes.
    pub fn poll_quiet(&self, cx: &Context<'_>) -> bool {
        let is_quiet = !self.source.readable.get();
        if is_quiet {
            self.source.await_readable(cx);
        }
        is_quiet
    }

    /// Whether a read may return something now.
    #[must_use]
    pub fn may_be_readable(&self) -> bool {
        self.source.readable.get()
    }

    /// Whether the kernel may accept bytes now. If a write is pending nevertheless, it only waits for the end
    /// of the turn.
    #[must_use]
    pub fn may_be_writable(&self) -> bool {
        self.source.writable.get()
    }

    /// Makes the next read ask the kernel even without an event.
    pub fn look_again(&self) {
        self.source.readable.set(true);
    }

    /// A handle that ends the connection.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Rc::clone(&self.source))
    }

    fn check_aborted(&self) -> io::Result<()> {
        if self.source.is_aborted() {
            self.reset_when_closed();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    /// Makes the close send a reset.
    pub fn reset_when_closed(&self) {
        // SO_LINGER with 0 s makes close() send a reset (tcp(7)). If setting it fails, close() sends a FIN.
        let _ = SockRef::from(&self.io).set_linger(Some(Duration::ZERO));
    }

    /// The number of sent bytes that the other end's kernel has not acknowledged; 0 if the stack can't tell.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        use std::os::fd::AsFd as _;
        truepeer_sys::socket::unacknowledged_bytes(self.io.as_fd()).unwrap_or(0)
    }

    /// The address that the other end connected to, or that this end connected from.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// The loop that owns it.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }
}

/// Why [`TcpStream::poll_late_bytes`] has refused the connection, if that is what ended it.
#[must_use]
pub fn refused_late(error: &io::Error) -> Option<HeaderError> {
    error.get_ref()?.downcast_ref().copied()
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let length = ready!(self.poll_read_into(cx, buffer.initialize_unfilled()))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |mut io| io.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the sending direction. The other end reads an end of the stream after everything that was
    /// written.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.io.shutdown(Shutdown::Write))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        // Closing the descriptor removes it from epoll.
        self.reactor.state().sources.remove(self.key);
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpStream").field(&self.io).finish()
    }
}
