//! One connection to the admin socket: a request's head in, a response out, closed.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use truepeer_http::{HeadEnd, HttpLimits, HttpVersion, RequestHead, write};
use truepeer_sys::socket::peer_user;

pub(super) use super::answer::Orders;
use super::answer::{Action, Body, Response, Right, answer};
use super::listing::Listing;
use super::room::Holder;
use super::stream::Stream;

/// How long a request's head may take. Longer in tests, which must not pass because it has ended.
const HEAD_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 5 });
/// How long an order may take.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a reader may read nothing of the response.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const LIMITS: HttpLimits = HttpLimits {
    head_bytes: 64 << 10,
    // Of a thousand clients to ban.
    target_bytes: 60 << 10,
    fields: 64,
    chunk_extension_bytes: 0,
    trailer_bytes: 0,
};

/// A connection and what it waits for.
pub(super) struct Connection {
    stream: Stream,
    holder: Holder,
    right: Right,
    stage: Stage,
    deadline: Instant,
}

enum Stage {
    Head {
        bytes: Vec<u8>,
        end: HeadEnd,
    },
    /// A thread of its own carries out the order.
    Ordered(Receiver<Response>, Framing),
    Sending {
        out: Vec<u8>,
        sent: usize,
        more: Option<Listing>,
        framing: Framing,
    },
}

/// How the request wants its response.
#[derive(Debug, Clone, Copy)]
struct Framing {
    version: HttpVersion,
    /// HEAD: the response's head alone.
    is_head: bool,
}

/// Whether the connection goes on.
enum Turn {
    Wait,
    Closed,
}

impl Connection {
    /// `is_whois`: every user may connect to its socket. `None`: the connection is lost already.
    pub(super) fn new(stream: Stream, is_whois: bool, now: Instant) -> Option<Self> {
        stream.set_nonblocking().ok()?;
        let holder = Holder::of(&stream)?;
        let right = match &stream {
            _ if is_whois => Right::Whois,
            Stream::Tcp(_) => Right::Read,
            Stream::Unix(stream) => Right::Change(peer_user(stream.as_fd()).ok()?),
        };
        let stage = Stage::Head { bytes: Vec::new(), end: HeadEnd::default() };
        Some(Self { stream, holder, right, stage, deadline: now + HEAD_TIMEOUT })
    }

    pub(super) fn holder(&self) -> Holder {
        self.holder
    }

    /// The connection is closed if it is still open then.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it waits for a thread rather than its socket.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Ordered(..))
    }

    pub(super) fn awaited(&self) -> PollFlags {
        match self.stage {
            Stage::Head { .. } => PollFlags::IN,
            Stage::Ordered(..) => PollFlags::empty(),
            Stage::Sending { .. } => PollFlags::OUT,
        }
    }

    /// Does what can be done now. Returns whether the connection goes on.
    pub(super) fn turn(&mut self, orders: &Orders, now: Instant) -> bool {
        let turn = match &mut self.stage {
            Stage::Head { .. } => self.read_head(orders, now),
            Stage::Ordered(answer, framing) => match (answer.try_recv(), *framing) {
                (Ok(response), framing) => Ok(self.respond(response, framing, now)),
                (Err(TryRecvError::Empty), _) => Ok(Turn::Wait),
                (Err(TryRecvError::Disconnected), framing) => {
                    let response = Response::text(500, "the order has failed; the log says why");
                    Ok(self.respond(response, framing, now))
                }
            },
            Stage::Sending { .. } => Ok(Turn::Wait),
        };
        let turn = match (turn, &self.stage) {
            (Ok(Turn::Wait), Stage::Sending { .. }) => self.send(orders, now),
            (turn, _) => turn,
        };
        matches!(turn, Ok(Turn::Wait))
    }

    fn read_head(&mut self, orders: &Orders, now: Instant) -> io::Result<Turn> {
        let Stage::Head { bytes, end } = &mut self.stage else { return Ok(Turn::Wait) };
        let mut piece = [0; 2048];
        match self.stream.read(&mut piece) {
            Ok(0) => return Ok(Turn::Closed),
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if is_temporary(&error) => return Ok(Turn::Wait),
            Err(error) => return Err(error),
        }
        let mut head = RequestHead::default();
        let (length, had) = match head.read(bytes, end, &LIMITS) {
            Ok(None) => return Ok(Turn::Wait),
            Ok(Some(length)) => (length, bytes.len()),
            Err(error) => {
                let framing = Framing { version: HttpVersion::Http10, is_head: false };
                let response = Response::text(400, &format!("not understood: {error}"));
                return Ok(self.respond(response, framing, now));
            }
        };
        let framing = Framing { version: head.version, is_head: head.method() == b"HEAD" };
        match answer(&head, self.right, orders) {
            Action::Now(response) => Ok(self.respond(response, framing, now)),
            Action::Later(answer) => {
                self.stage = Stage::Ordered(answer, framing);
                self.deadline = now + ORDER_TIMEOUT;
                Ok(Turn::Wait)
            }
            Action::Upgrade if had > length => {
                Ok(self.respond(Response::text(400, "bytes before the answer 101"), framing, now))
            }
            Action::Upgrade => {
                let Stream::Unix(stream) = &self.stream else { return Ok(Turn::Closed) };
                match orders.upgrade(stream.try_clone()?) {
                    Ok(()) => Ok(Turn::Closed),
                    Err(error) => Ok(self.respond(Response::text(503, &error.to_string()), framing, now)),
                }
            }
        }
    }

    fn respond(&mut self, response: Response, framing: Framing, now: Instant) -> Turn {
        let is_chunked = framing.version == HttpVersion::Http11;
        let mut out = response.head(is_chunked).into_bytes();
        let more = match response.body {
            _ if framing.is_head => None,
            Body::Whole(bytes) => {
                out.extend_from_slice(&bytes);
                None
            }
            Body::Listing(listing) => Some(listing),
        };
        self.stage = Stage::Sending { out, sent: 0, more, framing };
        self.deadline = now + SEND_TIMEOUT;
        Turn::Wait
    }

    fn send(&mut self, orders: &Orders, now: Instant) -> io::Result<Turn> {
        let Stage::Sending { out, sent, more, framing } = &mut self.stage else { return Ok(Turn::Wait) };
        loop {
            if *sent == out.len() {
                let Some(listing) = more else {
                    self.close();
                    return Ok(Turn::Closed);
                };
                (*sent, *out) = (0, Vec::new());
                let piece = listing.next(orders.rates());
                let is_last = piece.is_none();
                let piece = piece.unwrap_or_default();
                if framing.version == HttpVersion::Http11 {
                    if !piece.is_empty() {
                        write::chunk_start(out, piece.len());
                        out.extend_from_slice(&piece);
                        out.extend_from_slice(b"\r\n");
                    }
                    if is_last {
                        out.extend_from_slice(b"0\r\n\r\n");
                    }
                } else {
                    out.extend_from_slice(&piece);
                }
                if is_last {
                    *more = None;
                } else if out.is_empty() {
                    // A page without what is asked for: other connections have their turn here, too.
                    self.deadline = now + SEND_TIMEOUT;
                    return Ok(Turn::Wait);
                }
                continue;
            }
            match self.stream.write(&out[*sent..]) {
                Ok(length) => {
                    *sent += length;
                    self.deadline = now + SEND_TIMEOUT;
                    // A page at a time: other connections have their turn.
                    if *sent == out.len() && more.is_some() {
                        return Ok(Turn::Wait);
                    }
                }
                Err(error) if is_temporary(&error) => return Ok(Turn::Wait),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the response with FIN.
    fn close(&self) {
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        };
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
