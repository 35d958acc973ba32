//! Listening sockets. Each loop has its own: the kernel spreads connections over them (SO_REUSEPORT).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

use mio::Interest;
use truepeer_session::listening::prepare;
use truepeer_session::table::Key;

use super::event_loop::Reactor;
use super::sources::{Source, token};
use super::stream::TcpStream;

/// A listening socket in a loop.
pub struct TcpListener {
    io: mio::net::TcpListener,
    source: Rc<Source>,
    key: Key,
    reactor: Reactor,
}

impl TcpListener {
    /// Takes a listening socket, opened by [`truepeer_session::listening::listen`] or inherited.
    ///
    /// # Errors
    /// The descriptor is not a socket, or the limit of epoll watches is reached.
    pub fn new(reactor: &Reactor, socket: OwnedFd) -> io::Result<Self> {
        prepare(&socket);
        let io = std::net::TcpListener::from(socket);
        io.set_nonblocking(true)?;
        let mut io = mio::net::TcpListener::from_std(io);
        let (state, source) = (reactor.state(), Source::fresh());
        let key = state.sources.add(&source);
        let registered = state.poll.borrow().registry().register(&mut io, token(key), Interest::READABLE);
        if let Err(error) = registered {
            state.sources.remove(key);
            return Err(error);
        }
        Ok(Self { io, source, key, reactor: reactor.clone() })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// The connection was lost before accept(), or the error may last: see
    /// [`truepeer_session::listening::concerns_one_connection`].
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (io, sender) = std::future::poll_fn(|cx| {
            if !self.source.readable.get() {
                self.source.await_readable(cx);
                return Poll::Pending;
            }
            std::task::ready!(self.reactor.poll_allowance(cx));
            match self.io.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.readable.set(false);
                    self.source.await_readable(cx);
                    Poll::Pending
                }
                done => Poll::Ready(done),
            }
        })
        .await?;
        Ok((TcpStream::established(&self.reactor, io)?, sender))
    }

    /// A duplicate of the socket.
    ///
    /// # Errors
    /// The process has run out of descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.io.as_fd().try_clone_to_owned()
    }

    /// Whether there may be connections to accept.
    #[must_use]
    pub fn may_be_readable(&self) -> bool {
        self.source.readable.get()
    }

    /// Makes the next [`Self::accept`] ask the kernel even without an event.
    pub fn assume_readable(&self) {
        self.source.readable.set(true);
    }

    /// The local address.
    ///
    /// # Errors
    /// None for a listening socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let state = self.reactor.state();
        // Another process may share the socket: then closing it here does not end the watch. Fails only if it
        // has ended already.
        let _ = state.poll.borrow().registry().deregister(&mut self.io);
        state.sources.remove(self.key);
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.io).finish()
    }
}
