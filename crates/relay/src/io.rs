//! The system calls of a session as a trait, implemented on sockets and in a simulator.
//!
//! No method blocks; after [`Errno::AGAIN`] wait for an event. Dropping a socket closes it.

use std::net::SocketAddr;

use rustix::io::Errno;
use truepeer_session::connect_as::{ConnectError, Upstream};

/// A socket's user data in the readiness events that it asked for.
pub type Token = u64;

/// The operations of a session.
pub trait Io {
    /// A connected (or connecting) stream socket.
    type Socket;
    /// A kernel pipe: bytes pass through it without being copied.
    type Pipe;

    /// Reads into `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    /// AGAIN, or what ended the connection; what was received before is read first.
    fn recv(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Reads into `buffer` and leaves the bytes where they are.
    ///
    /// # Errors
    /// As [`Io::recv`].
    fn peek(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Drops `length` bytes that were [peeked](Io::peek) at. It must drop all of them: the rest would be read and delivered a
    /// second time.
    ///
    /// # Errors
    /// What ended the connection.
    fn discard(&mut self, socket: &Self::Socket, length: usize) -> Result<(), Errno>;

    /// Writes a part of `bytes`, as much as fits.
    ///
    /// # Errors
    /// AGAIN, or what ended the connection.
    fn send(&mut self, socket: &Self::Socket, bytes: &[u8]) -> Result<usize, Errno>;

    /// Ends our direction: the other end reads an end of the stream after everything sent before.
    ///
    /// # Errors
    /// NOTCONN if the connection has ended already.
    fn shutdown_write(&mut self, socket: &Self::Socket) -> Result<(), Errno>;

    /// Makes dropping `socket` a reset (RST) instead of an orderly end (FIN).
    fn reset_when_closed(&mut self, socket: &Self::Socket);

    /// Bytes sent on `socket` that have not reached the other end's kernel.
    fn unacknowledged(&mut self, socket: &Self::Socket) -> usize;

    /// An empty pipe, unless the budget or the system has none.
    fn pipe(&mut self) -> Option<Self::Pipe>;

    /// Takes an empty pipe back for reuse.
    fn recycle(&mut self, pipe: Self::Pipe);

    /// Moves bytes from `socket` into an empty `pipe`; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`Io::recv`].
    fn splice_in(&mut self, socket: &Self::Socket, pipe: &Self::Pipe) -> Result<usize, Errno>;

    /// Moves at most `length` bytes from `pipe` to `socket`.
    ///
    /// # Errors
    /// As [`Io::send`].
    fn splice_out(&mut self, pipe: &Self::Pipe, socket: &Self::Socket, length: usize)
    -> Result<usize, Errno>;

    /// Makes an upstream socket and starts to connect it.
    ///
    /// # Errors
    /// See [`ConnectError`]; a connection in progress is no error.
    fn connect(&mut self, upstream: &Upstream) -> Result<Self::Socket, ConnectError>;

    /// How connecting ended; `Ok` also while it has not.
    ///
    /// # Errors
    /// What the kernel reports for the attempt, REFUSED above all.
    fn connect_result(&mut self, socket: &Self::Socket) -> Result<(), Errno>;

    /// Asks for edge-triggered readiness events of `socket`.
    ///
    /// # Errors
    /// NOMEM, NOSPC: the system is out of watches.
    fn watch(&mut self, socket: &Self::Socket, token: Token) -> Result<(), Errno>;

    /// The address that the sender connected to.
    fn local_address(&mut self, socket: &Self::Socket) -> Option<SocketAddr>;
}

/// What is known about a socket between events. Events are edge-triggered: only the next edge sets a flag again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading may give something.
    pub readable: bool,
    /// Writing may take something.
    pub writable: bool,
    /// The other end has finished, or the connection is broken: after a short read there is still something to read.
    pub ending: bool,
    /// The connection is broken.
    pub error: bool,
    /// A byte of the stream was marked urgent (tcp(7)): reads stop in front of it, and splicing never passes it.
    pub urgent: bool,
}

impl Readiness {
    /// Both directions may work.
    pub const FRESH: Self =
        Self { readable: true, writable: true, ending: false, error: false, urgent: false };
    /// A broken connection: reads return what was received, then the error, and never block.
    pub const BROKEN: Self =
        Self { readable: true, writable: true, ending: true, error: true, urgent: false };

    /// Adds what an event says.
    pub fn merge(&mut self, event: Self) {
        self.readable |= event.readable;
        self.writable |= event.writable;
        self.ending |= event.ending;
        self.error |= event.error;
        self.urgent |= event.urgent;
    }

    /// A read returned less than asked for: the socket is empty, and the next edge announces more. Two exceptions stay
    /// readable: an end that was announced already makes no further edge, and an urgent byte makes reads short.
    pub(crate) fn on_short_read(&mut self) {
        self.readable = self.ending || self.urgent;
    }
}
