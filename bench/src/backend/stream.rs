//! One connection of a backend.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};

use super::tally::Totals;
use crate::pattern::{CHUNK, Pattern};
use crate::suites::Kind;

/// A connection, and what it still has to write.
pub(super) struct Stream {
    socket: OwnedFd,
    kind: Kind,
    /// Bytes that the socket did not accept, and how many of them have been written since.
    unwritten: (Vec<u8>, usize),
    totals: Totals,
}

/// What a connection needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// More events.
    Waits,
    /// It must be closed.
    Ended,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd, kind: Kind) -> Self {
        Self { socket, kind, unwritten: (Vec::new(), 0), totals: Totals::default() }
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// The events that it waits for.
    pub(super) fn interest(&self) -> EventFlags {
        match self.kind {
            Kind::Source => EventFlags::OUT | EventFlags::RDHUP,
            _ if self.unwritten.0.is_empty() => EventFlags::IN,
            _ => EventFlags::OUT,
        }
    }

    /// One step after an event: a read and its consequences, or a write.
    pub(super) fn advance(&mut self, flags: EventFlags, buffer: &mut [u8], pattern: &Pattern) -> Next {
        let step = match self.kind {
            Kind::Sink => self.swallow(buffer, pattern),
            Kind::Source => self.pour(flags, pattern),
            Kind::Echo | Kind::EchoShort | Kind::Datagrams | Kind::Origin(_) => self.echo(buffer),
        };
        match step {
            Ok(next) => next,
            Err(Errno::AGAIN | Errno::INTR) => Next::Waits,
            Err(_) => Next::Ended, // a reset: the load notices what is missing
        }
    }

    fn echo(&mut self, buffer: &mut [u8]) -> Result<Next, Errno> {
        if !self.unwritten.0.is_empty() {
            return self.catch_up();
        }
        let read = io::read(&self.socket, &mut *buffer)?;
        if read == 0 {
            return Ok(Next::Ended);
        }
        self.totals.read += read as u64;
        let written = match io::write(&self.socket, &buffer[..read]) {
            Ok(written) => written,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error),
        };
        self.totals.written += written as u64;
        self.unwritten.0.extend_from_slice(&buffer[written..read]);
        Ok(Next::Waits)
    }

    fn catch_up(&mut self) -> Result<Next, Errno> {
        let (bytes, start) = &mut self.unwritten;
        let written = io::write(&self.socket, &bytes[*start..])?;
        self.totals.written += written as u64;
        *start += written;
        if *start == bytes.len() {
            bytes.clear();
            *start = 0;
        }
        Ok(Next::Waits)
    }

    fn swallow(&mut self, buffer: &mut [u8], pattern: &Pattern) -> Result<Next, Errno> {
        let read = io::read(&self.socket, &mut *buffer)?;
        if read == 0 {
            return Ok(Next::Ended);
        }
        self.totals.wrong += u64::from(!pattern.matches(self.totals.read, &buffer[..read]));
        self.totals.read += read as u64;
        Ok(Next::Waits)
    }

    fn pour(&mut self, flags: EventFlags, pattern: &Pattern) -> Result<Next, Errno> {
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            return Ok(Next::Ended);
        }
        let written = io::write(&self.socket, pattern.at(self.totals.written, CHUNK))?;
        self.totals.written += written as u64;
        Ok(Next::Waits)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
