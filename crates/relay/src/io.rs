//! The system calls of a session as a trait, implemented on sockets and in a simulator.
//!
//! No method blocks. After [`Errno::AGAIN`], wait for an event. Dropping a socket closes it.

use std::net::SocketAddr;

use rustix::io::Errno;
use truepeer_session::connect_as::{ConnectError, Upstream};
use truepeer_splice::Reason;

use crate::offload::Offload;

/// A socket's user data in its readiness events.
pub type Token = u64;

/// The operations of a session.
pub trait Io {
    /// A connected (or connecting) stream socket.
    type Socket;
    /// A kernel pipe, which moves bytes without copying them.
    type Pipe;
    /// What moves its sessions out of user space.
    type Offload: Offload<Socket = Self::Socket>;

    /// Reads into `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    /// AGAIN, or the error that ended the connection. Bytes received before it are returned first.
    fn recv(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Reads into `buffer` and leaves the bytes where they are.
    ///
    /// # Errors
    /// Those of [`Io::recv`].
    fn peek(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Drops `length` [peeked](Io::peek) bytes. It must drop all of them: a rest would be read and delivered
    /// a second time.
    ///
    /// # Errors
    /// The error that ended the connection.
    fn discard(&mut self, socket: &Self::Socket, length: usize) -> Result<(), Errno>;

    /// Writes as much of `bytes` as fits.
    ///
    /// # Errors
    /// AGAIN, or the error that ended the connection.
    fn send(&mut self, socket: &Self::Socket, bytes: &[u8]) -> Result<usize, Errno>;

    /// Ends the sending direction. The other end reads an end of the stream after everything sent before.
    ///
    /// # Errors
    /// NOTCONN if the connection has already ended.
    fn shutdown_write(&mut self, socket: &Self::Socket) -> Result<(), Errno>;

    /// Makes the drop of `socket` send a reset (RST) instead of FIN.
    fn reset_when_closed(&mut self, socket: &Self::Socket);

    /// Bytes sent on `socket` that have not reached the other end's kernel.
    fn unacknowledged(&mut self, socket: &Self::Socket) -> usize;

    /// Returns an empty pipe, unless the budget or the system has none.
    fn pipe(&mut self) -> Option<Self::Pipe>;

    /// Takes an empty pipe back for reuse.
    fn recycle(&mut self, pipe: Self::Pipe);

    /// Moves bytes from `socket` into an empty `pipe`; 0 is the end of the stream.
    ///
    /// # Errors
    /// Those of [`Io::recv`].
    fn splice_in(&mut self, socket: &Self::Socket, pipe: &Self::Pipe) -> Result<usize, Errno>;

    /// Moves at most `length` bytes from `pipe` to `socket`.
    ///
    /// # Errors
    /// Those of [`Io::send`].
    fn splice_out(&mut self, pipe: &Self::Pipe, socket: &Self::Socket, length: usize)
    -> Result<usize, Errno>;

    /// Creates an upstream socket and starts to connect it.
    ///
    /// # Errors
    /// See [`ConnectError`]; a connection in progress is not an error.
    fn connect(&mut self, upstream: &Upstream) -> Result<Self::Socket, ConnectError>;

    /// The result of connecting; also `Ok` while it is in progress.
    ///
    /// # Errors
    /// The kernel's error for the attempt, usually REFUSED.
    fn connect_result(&mut self, socket: &Self::Socket) -> Result<(), Errno>;

    /// Requests edge-triggered readiness events of `socket`.
    ///
    /// # Errors
    /// NOMEM or NOSPC: the limit of epoll watches is reached.
    fn watch(&mut self, socket: &Self::Socket, token: Token) -> Result<(), Errno>;

    /// The address that the sender connected to.
    fn local_address(&mut self, socket: &Self::Socket) -> Option<SocketAddr>;

    /// The MTU of the path to the sender, if sessions may leave user space.
    fn path_mtu(&mut self, _socket: &Self::Socket) -> Option<u32> {
        None
    }

    /// What moves sessions out of user space.
    ///
    /// # Errors
    /// Why none leaves.
    fn offload(&self) -> Result<&Self::Offload, Reason>;
}

/// A session of `I` that has left user space.
pub(crate) type FlowOf<I> = <<I as Io>::Offload as Offload>::Flow;

/// The readiness of a socket between events. Events are edge-triggered: only a new edge sets a flag again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read may return something.
    pub readable: bool,
    /// A write may accept something.
    pub writable: bool,
    /// The other end has finished, or the connection is broken: after a short read there is still something
    /// to read.
    pub ending: bool,
    /// The connection is broken.
    pub error: bool,
    /// A byte of the stream was marked urgent (tcp(7)): reads stop before it, and splice never passes it.
    pub urgent: bool,
}

impl Readiness {
    /// Both directions may work.
    pub const FRESH: Self =
        Self { readable: true, writable: true, ending: false, error: false, urgent: false };
    /// A broken connection: reads return the received bytes, then the error, and never block. A byte may be
    /// marked urgent without an event that said so, and splice(2) would stop before it for ever: so `urgent`
    /// is set.
    pub const BROKEN: Self = Self { readable: true, writable: true, ending: true, error: true, urgent: true };

    /// Adds an event.
    pub fn merge(&mut self, event: Self) {
        self.readable |= event.readable;
        self.writable |= event.writable;
        self.ending |= event.ending;
        self.error |= event.error;
        self.urgent |= event.urgent;
    }

    /// A read returned less than asked for: the socket is empty, and the next edge announces more. It stays
    /// readable in two cases: an end that was already announced makes no further edge, and an urgent byte
    /// makes reads short.
    pub(crate) fn on_short_read(&mut self) {
        self.readable = self.ending || self.urgent;
    }
}
