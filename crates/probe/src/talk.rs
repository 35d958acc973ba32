//! One connection to a receiver: what is written, when, and what comes back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::ProbeError;
use crate::app::App;

/// No answer that decides is longer.
const MOST: usize = 4096;
/// A connection to near hosts takes less.
const CONNECT: Duration = Duration::from_secs(5);

/// How connections to the receiver are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) target: SocketAddr,
    pub(crate) from: Option<IpAddr>,
    pub(crate) app: App,
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
}

/// How a connection was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Closed,
    Reset,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Talk {
    /// This side's address.
    pub(crate) own: IpAddr,
    /// Something came before the last piece was written.
    pub(crate) was_early: bool,
    /// What a server that speaks first said before the request.
    pub(crate) greeting: Vec<u8>,
    pub(crate) answer: Vec<u8>,
    pub(crate) end: End,
    /// From the last piece to the end or the decision.
    pub(crate) took: Duration,
}

impl Line {
    fn connect(&self) -> Result<TcpStream, ProbeError> {
        let not = |error| ProbeError::Connect(self.target, error);
        let socket =
            Socket::new(Domain::for_address(self.target), Type::STREAM, Some(Protocol::TCP)).map_err(not)?;
        if let Some(from) = self.from {
            let from = SocketAddr::new(from, 0);
            // A relay on this host may dial from the same address and port.
            socket.set_reuse_address(true).map_err(|error| ProbeError::Bind(from, error))?;
            socket.bind(&from.into()).map_err(|error| ProbeError::Bind(from, error))?;
        }
        socket.connect_timeout(&self.target.into(), CONNECT).map_err(not)?;
        socket.set_tcp_nodelay(true).map_err(not)?;
        Ok(socket.into())
    }

    /// Writes `pieces`, with a `pause` between two, and the request with the last. A server that speaks first
    /// gets the request once it has greeted.
    pub(crate) fn talk(&self, pieces: &[&[u8]], pause: Duration) -> Result<Talk, ProbeError> {
        let stream = self.connect()?;
        let mut talk = Talk {
            own: stream.local_addr()?.ip().to_canonical(),
            was_early: false,
            greeting: Vec::new(),
            answer: Vec::new(),
            end: End::Open,
            took: Duration::ZERO,
        };
        let (last, first): (&[u8], &[&[u8]]) = match pieces.split_last() {
            Some((last, first)) => (last, first),
            None => (&[], &[]),
        };
        let mut heard = Vec::new();
        for piece in first {
            talk.write(&stream, piece, self.patience)?;
            sleep(pause);
            talk.read(&stream, &mut heard, Duration::from_millis(1), |_| false)?;
        }
        talk.was_early = !heard.is_empty();
        let written = Instant::now();
        if self.app.speaks_first() {
            talk.write(&stream, last, self.patience)?;
            talk.read(&stream, &mut heard, self.patience, |said| self.app.has_greeted(said))?;
            talk.greeting = std::mem::take(&mut heard);
            if self.app.greets(&talk.greeting) {
                talk.write(&stream, self.app.request(), self.patience)?;
            }
        } else {
            talk.write(&stream, &[last, self.app.request()].concat(), self.patience)?;
        }
        talk.read(&stream, &mut heard, self.patience, |said| self.app.answers(said).is_some())?;
        talk.answer = heard;
        talk.took = written.elapsed();
        Ok(talk)
    }

    /// Writes one piece and no request, and waits.
    pub(crate) fn wait(&self, piece: &[u8], patience: Duration) -> Result<Talk, ProbeError> {
        Line { app: App::NONE, patience, ..*self }.talk(&[piece], Duration::ZERO)
    }
}

impl Talk {
    /// Writes for `patience`: a receiver may read slowly, or never.
    fn write(&mut self, mut stream: &TcpStream, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        while !bytes.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            stream.set_write_timeout(Some(left))?;
            match stream.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if is_late(&error) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What was answered before the reset is still there to be read.
                Err(_) => {
                    self.end = End::Reset;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads for `patience`, until `is_enough` or the end.
    fn read(
        &mut self,
        mut stream: &TcpStream,
        into: &mut Vec<u8>,
        patience: Duration,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> io::Result<()> {
        let (mut buffer, deadline) = ([0; 1024], Instant::now() + patience);
        while !is_enough(into) && into.len() < MOST {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer) {
                Ok(0) => {
                    self.end = if self.end == End::Reset { End::Reset } else { End::Closed };
                    return Ok(());
                }
                Ok(length) => into.extend_from_slice(&buffer[..length]),
                Err(error) if is_late(&error) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.end = End::Reset;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The time of a read or a write is over.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::{Duration, Instant};

    use super::{End, Line};
    use crate::app::App;

    #[test]
    fn a_receiver_that_never_reads_is_left_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let target = listener.local_addr().expect("an address");
        let line = Line { target, from: None, app: App::NONE, patience: Duration::from_millis(100) };
        let begin = Instant::now();
        let talk = line.talk(&[&vec![0; 32 << 20]], Duration::ZERO).expect("a connection");
        assert_eq!((talk.end, talk.answer.len()), (End::Open, 0));
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
