//! [`Io`] on real sockets.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use rustix::pipe::{self, PipeFlags, SpliceFlags};
use truepeer_session::budget::{Budget, Permit};
use truepeer_session::connect_as::{ConnectError, Upstream, connect_as};
use truepeer_splice::Reason;
use truepeer_sys::{repair, socket};

use crate::io::{Io, Readiness, Token};
pub use crate::kernel_socket::KernelSocket;
use crate::kernel_socket::reset_when_closed;
use crate::splicing::Splicing;

/// The capacity of a pipe: 64 pages of the unprivileged quota of 16 384 (`fs.pipe-user-pages-soft`).
pub const PIPE_BYTES: usize = 256 << 10;
/// Above the quota, pipes have two pages: too few to be worth their system calls.
const SMALLEST_USEFUL_PIPE: usize = 64 << 10;
/// How many empty pipes each worker keeps for the next bulk transfer.
const POOLED_PIPES: usize = 16;
/// A refused pipe costs four system calls, so the next attempt is made only after this many requests.
const REFUSED_FOR: u32 = 256;

/// The kernel as used by one worker.
#[derive(Debug)]
pub struct Kernel {
    epoll: OwnedFd,
    pipes: Budget,
    pool: Vec<Pipe>,
    /// How many requests get no pipe since the last refusal.
    without_pipe: u32,
    /// Err: why no session leaves user space.
    splicing: Result<Splicing, Reason>,
}

/// A kernel pipe that counts in the budget.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _permit: Permit,
}

/// The events of every session socket, registered once and never changed.
const EDGES: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

impl Kernel {
    /// A worker's kernel: `epoll` watches its sockets, `pipes` limits its pipes. Without `splicing` no
    /// session leaves user space, for the reason that it has instead.
    #[must_use]
    pub fn new(epoll: OwnedFd, pipes: Budget, splicing: Result<Splicing, Reason>) -> Self {
        Self { epoll, pipes, pool: Vec::new(), without_pipe: 0, splicing }
    }

    /// The epoll descriptor.
    #[must_use]
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }
}

/// Converts an epoll event.
#[must_use]
pub fn readiness(flags: EventFlags) -> Readiness {
    let ending = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
    Readiness {
        readable: ending || flags.contains(EventFlags::IN),
        writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
        ending,
        error: flags.contains(EventFlags::ERR),
        urgent: flags.contains(EventFlags::PRI),
    }
}

impl Io for Kernel {
    type Socket = KernelSocket;
    type Pipe = Pipe;
    type Offload = Splicing;

    fn recv(&mut self, socket: &KernelSocket, buffer: &mut [u8]) -> Result<usize, Errno> {
        let length = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()).map(|(length, _)| length)?;
        #[cfg(test)]
        crate::trap::spring(&buffer[..length]);
        Ok(length)
    }

    fn peek(&mut self, socket: &KernelSocket, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(socket, buffer, RecvFlags::PEEK).map(|(length, _)| length)
    }

    fn discard(&mut self, socket: &KernelSocket, mut length: usize) -> Result<(), Errno> {
        let mut waste = [0_u8; 4096];
        while length > 0 {
            let most = length.min(waste.len());
            match rustix::net::recv(socket, &mut waste[..most], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(()),
                Ok((dropped, _)) => length -= dropped,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn send(&mut self, socket: &KernelSocket, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)
    }

    fn shutdown_write(&mut self, socket: &KernelSocket) -> Result<(), Errno> {
        rustix::net::shutdown(socket, Shutdown::Write)
    }

    fn reset_when_closed(&mut self, socket: &KernelSocket) {
        reset_when_closed(socket);
    }

    fn unacknowledged(&mut self, socket: &KernelSocket) -> usize {
        socket::unacknowledged_bytes(socket.as_fd()).unwrap_or(0)
    }

    fn pipe(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.pool.pop() {
            return Some(pipe);
        }
        self.without_pipe = self.without_pipe.saturating_sub(1);
        if self.without_pipe > 0 {
            return None;
        }
        let pipe = open_pipe(&self.pipes);
        if pipe.is_none() {
            self.without_pipe = REFUSED_FOR;
        }
        pipe
    }

    fn recycle(&mut self, pipe: Pipe) {
        if self.pool.len() < POOLED_PIPES {
            self.pool.push(pipe);
        }
    }

    fn splice_in(&mut self, socket: &KernelSocket, pipe: &Pipe) -> Result<usize, Errno> {
        move_bytes(socket, &pipe.write, PIPE_BYTES)
    }

    fn splice_out(&mut self, pipe: &Pipe, socket: &KernelSocket, length: usize) -> Result<usize, Errno> {
        move_bytes(&pipe.read, socket, length)
    }

    fn connect(&mut self, upstream: &Upstream) -> Result<KernelSocket, ConnectError> {
        let connected = match &self.splicing {
            Ok(splicing) => splicing.connect(upstream),
            Err(_) => connect_as(upstream),
        };
        connected.map(KernelSocket::from)
    }

    fn connect_result(&mut self, socket: &KernelSocket) -> Result<(), Errno> {
        sockopt::socket_error(socket)?
    }

    fn watch(&mut self, socket: &KernelSocket, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), EDGES)
    }

    fn local_address(&mut self, socket: &KernelSocket) -> Option<SocketAddr> {
        socket::local_address(socket.as_fd()).ok()
    }

    fn path_mtu(&mut self, socket: &KernelSocket) -> Option<u32> {
        self.splicing.as_ref().ok()?;
        // Without it, a session whose segments are too long stays in user space.
        repair::connection(socket.as_fd()).ok().map(|connection| connection.path_mtu)
    }

    fn offload(&self) -> Result<&Splicing, Reason> {
        self.splicing.as_ref().map_err(|reason| *reason)
    }
}

fn open_pipe(budget: &Budget) -> Option<Pipe> {
    let permit = budget.take(1)?;
    let (read, write) = pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
    // Above the user's quota (EPERM) the pipe keeps its size.
    let bytes =
        pipe::fcntl_setpipe_size(&write, PIPE_BYTES).or_else(|_| pipe::fcntl_getpipe_size(&write)).ok()?;
    (bytes >= SMALLEST_USEFUL_PIPE).then_some(Pipe { read, write, _permit: permit })
}

fn move_bytes(from: impl AsFd, to: impl AsFd, length: usize) -> Result<usize, Errno> {
    pipe::splice(from, None, to, None, length, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
}
