//! One direction of a session: moves bytes from one socket to the other, and holds as few as possible.
//!
//! ```text
//!            read fills the buffer                 no pipe available, or 8 small moves in a row
//!   copy ─────────────────────────▶ splice     splice ─────────────────────────▶ copy
//! ```
//! *Copying* uses the worker's one buffer. What the receiver does not take at once is kept in a backlog of
//! exactly that size. *Splicing* moves bulk data through a kernel pipe, which is held only while it contains
//! bytes. Nothing is read while bytes are held, so a slow receiver slows its sender, and a session's memory
//! is bounded by one backlog or one pipe in each direction.

use rustix::io::Errno;
use truepeer_session::budget::{Budget, Permit};

use crate::io::{Io, Readiness};

/// The size of a read when copying; also the most that a backlog holds. A read that fills it switches the
/// half to splicing.
pub(crate) const COPY_BYTES: usize = 64 << 10;
/// The size of a peek when the budget for backlogs is used up. Bytes that the sink doesn't take are copied
/// again by the next peek, so it is smaller than [`COPY_BYTES`].
const PEEK_BYTES: usize = 16 << 10;
/// Smaller moves are not bulk: the calls that they need cost more than copying.
const SMALL_BYTES: usize = 4 << 10;
/// Small moves after which splicing no longer pays.
const BULK_READS: u8 = 8;
/// Moves per call. The limit keeps one session from starving the others.
const MOVES_PER_TURN: usize = 16;

/// One end of a session.
#[derive(Debug)]
pub(crate) struct End<S> {
    pub(crate) socket: S,
    pub(crate) ready: Readiness,
}

/// The objects that a half uses while it moves bytes.
pub(crate) struct PumpContext<'a, I> {
    pub(crate) io: &'a mut I,
    /// At least [`COPY_BYTES`] long. Contents are unspecified between calls.
    pub(crate) scratch: &'a mut [u8],
    pub(crate) backlog_bytes: &'a Budget,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Nothing can be done until the next event.
    Blocked,
    /// The turn ended before the work was done.
    TurnOver,
    /// The stream ended, all of it was delivered, and the end was passed on.
    Finished,
    /// The source was reset; everything before was delivered.
    SourceReset,
    /// The sink is broken: nothing more can be delivered.
    SinkBroken,
}

/// One direction of a session.
#[derive(Debug)]
pub(crate) struct Half<P> {
    held: Held<P>,
    input: Input,
    bulk: u8,
    delivered_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Open,
    Ended,
    Reset,
    /// The end was passed on, or the sink is gone.
    Closed,
}

#[derive(Debug)]
enum Held<P> {
    Nothing,
    Backlog(Backlog),
    Piped { pipe: P, bytes: usize },
}

/// Bytes that were read and not yet taken by the sink.
#[derive(Debug)]
pub(crate) struct Backlog {
    bytes: Box<[u8]>,
    sent: usize,
    _permit: Option<Permit>,
}

impl Backlog {
    /// Holds `bytes`. The caller must have [checked](Budget::has) the budget.
    pub(crate) fn of(bytes: Box<[u8]>, budget: &Budget) -> Self {
        let permit = (!bytes.is_empty()).then(|| budget.take_anyway(bytes.len()));
        Self { bytes, sent: 0, _permit: permit }
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }
}

enum Step {
    Moved,
    Wait,
    SinkBroken,
}

impl<P> Half<P> {
    /// A half without bytes to deliver first.
    pub(crate) fn new() -> Self {
        Self { held: Held::Nothing, input: Input::Open, bulk: 0, delivered_bytes: 0 }
    }

    /// A half that delivers `first` before anything else: the bytes after the header.
    pub(crate) fn starting_with(first: Backlog) -> Self {
        let mut half = Self::new();
        half.delivered_bytes = first.sent as u64;
        if !first.unsent().is_empty() {
            half.held = Held::Backlog(first);
        }
        half
    }

    /// How many bytes the sink's socket has taken.
    pub(crate) fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// Bytes that were read and not yet taken by the sink.
    pub(crate) fn held_bytes(&self) -> u64 {
        match &self.held {
            Held::Nothing => 0,
            Held::Backlog(backlog) => backlog.unsent().len() as u64,
            Held::Piped { bytes, .. } => *bytes as u64,
        }
    }

    /// Whether the source has been read to its end.
    pub(crate) fn has_ended(&self) -> bool {
        self.input != Input::Open
    }

    /// Whether bytes from `from` are still to be delivered.
    pub(crate) fn owes<S>(&self, from: &End<S>) -> bool {
        let unread = self.input == Input::Open && from.ready.readable;
        unread || !matches!(self.held, Held::Nothing)
    }

    /// Gives up: the held bytes can't be delivered.
    pub(crate) fn abandon(&mut self) {
        self.held = Held::Nothing;
        self.input = Input::Closed;
    }

    /// Whether the stream has ended and the end was passed on.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.held, Held::Nothing) && self.input == Input::Closed
    }

    /// Moves bytes until something blocks, ends or breaks, or the turn is over. `is_last`: the other
    /// direction has finished, so the sockets will be closed once this one has, too.
    pub(crate) fn pump<I: Io<Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        from: &mut End<I::Socket>,
        to: &mut End<I::Socket>,
        is_last: bool,
    ) -> Pumped {
        for _ in 0..MOVES_PER_TURN {
            let step = match (&self.held, self.input) {
                (Held::Backlog(_), _) => self.send_backlog(cx, to),
                (Held::Piped { .. }, _) => self.drain_pipe(cx, to),
                (Held::Nothing, Input::Open) if from.ready.readable && to.ready.writable => {
                    self.read(cx, from, to)
                }
                (Held::Nothing, Input::Open) => Step::Wait,
                (Held::Nothing, Input::Ended) if is_last => self.leave_the_end_to_close(),
                (Held::Nothing, Input::Ended) => self.pass_the_end_on(cx.io, to),
                (Held::Nothing, Input::Reset) => return Pumped::SourceReset,
                (Held::Nothing, Input::Closed) => return Pumped::Finished,
            };
            match step {
                Step::Moved => {}
                Step::Wait => return Pumped::Blocked,
                Step::SinkBroken => {
                    // This call took the connection's error. The half that reads from it would find an
                    // orderly end.
                    to.ready.error = true;
                    return Pumped::SinkBroken;
                }
            }
        }
        Pumped::TurnOver
    }

    /// close(2) sends FIN after all bytes that are still to be sent. It would send a reset if the socket had
    /// unread bytes, but the other half has read it to the end.
    fn leave_the_end_to_close(&mut self) -> Step {
        self.input = Input::Closed;
        Step::Moved
    }

    fn pass_the_end_on<I: Io>(&mut self, io: &mut I, to: &End<I::Socket>) -> Step {
        match io.shutdown_write(&to.socket) {
            Ok(()) => {
                self.input = Input::Closed;
                Step::Moved
            }
            Err(_) => Step::SinkBroken,
        }
    }

    fn read<I: Io<Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        from: &mut End<I::Socket>,
        to: &mut End<I::Socket>,
    ) -> Step {
        if self.bulk > 0 && !from.ready.urgent {
            match cx.io.pipe() {
                Some(pipe) => return self.fill_pipe(cx, from, pipe),
                None => self.bulk = 0,
            }
        }
        if cx.backlog_bytes.has(COPY_BYTES) {
            self.copy(cx, from, to)
        } else {
            self.copy_holding_nothing(cx, from, to)
        }
    }

    /// The meaning of a read that returned nothing.
    fn on_read_error<S>(&mut self, from: &mut End<S>, errno: Errno) -> Step {
        match errno {
            Errno::AGAIN => {
                from.ready.readable = false;
                Step::Wait
            }
            Errno::INTR => Step::Moved,
            _ => self.on_input_end(true),
        }
    }

    /// A broken connection reports its error once, to the first call. After that, reads return an orderly
    /// end.
    fn on_input_end(&mut self, broken: bool) -> Step {
        self.input = if broken { Input::Reset } else { Input::Ended };
        Step::Moved
    }
}

/// Copying, while reads are small.
impl<P> Half<P> {
    fn copy<I: Io<Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        from: &mut End<I::Socket>,
        to: &mut End<I::Socket>,
    ) -> Step {
        let length = match cx.io.recv(&from.socket, &mut cx.scratch[..COPY_BYTES]) {
            Ok(0) => return self.on_input_end(from.ready.error),
            Ok(length) => length,
            Err(errno) => return self.on_read_error(from, errno),
        };
        self.note_read(from, length, COPY_BYTES);
        let rest = match cx.io.send(&to.socket, &cx.scratch[..length]) {
            Ok(sent) => {
                self.delivered_bytes += sent as u64;
                &cx.scratch[sent..length]
            }
            Err(Errno::AGAIN | Errno::INTR) => &cx.scratch[..length],
            Err(_) => return Step::SinkBroken,
        };
        if !rest.is_empty() {
            self.held = Held::Backlog(Backlog::of(rest.into(), cx.backlog_bytes));
        }
        Step::Moved
    }

    /// Used when all sessions' backlogs together have reached their limit: bytes stay in the kernel until the
    /// sink has taken them. It costs one more call for each move, and nothing is held.
    fn copy_holding_nothing<I: Io<Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        from: &mut End<I::Socket>,
        to: &mut End<I::Socket>,
    ) -> Step {
        let length = match cx.io.peek(&from.socket, &mut cx.scratch[..PEEK_BYTES]) {
            Ok(0) => return self.on_input_end(from.ready.error),
            Ok(length) => length,
            Err(errno) => return self.on_read_error(from, errno),
        };
        if length == PEEK_BYTES {
            self.bulk = BULK_READS;
        }
        match cx.io.send(&to.socket, &cx.scratch[..length]) {
            Ok(sent) => {
                self.delivered_bytes += sent as u64;
                match cx.io.discard(&from.socket, sent) {
                    Ok(()) => Step::Moved,
                    Err(errno) => self.on_read_error(from, errno),
                }
            }
            Err(errno) => on_write_error(to, errno),
        }
    }

    fn note_read<S>(&mut self, from: &mut End<S>, length: usize, most: usize) {
        if length == most {
            self.bulk = BULK_READS;
        } else {
            from.ready.on_short_read();
        }
    }

    fn send_backlog<I: Io>(&mut self, cx: &mut PumpContext<'_, I>, to: &mut End<I::Socket>) -> Step {
        let Held::Backlog(backlog) = &mut self.held else { return Step::Moved };
        if !to.ready.writable {
            return Step::Wait;
        }
        match cx.io.send(&to.socket, backlog.unsent()) {
            Ok(sent) => {
                backlog.count_sent(sent);
                self.delivered_bytes += sent as u64;
                if backlog.unsent().is_empty() {
                    self.held = Held::Nothing;
                }
                Step::Moved
            }
            Err(errno) => on_write_error(to, errno),
        }
    }
}

/// Splicing, while reads are bulk.
impl<P> Half<P> {
    fn fill_pipe<I: Io<Pipe = P>>(
        &mut self,
        cx: &mut PumpContext<'_, I>,
        from: &mut End<I::Socket>,
        pipe: P,
    ) -> Step {
        match cx.io.splice_in(&from.socket, &pipe) {
            Ok(0) => {
                cx.io.recycle(pipe);
                self.on_input_end(from.ready.error)
            }
            Ok(bytes) => {
                self.bulk = if bytes < SMALL_BYTES { self.bulk - 1 } else { BULK_READS };
                self.held = Held::Piped { pipe, bytes };
                Step::Moved
            }
            Err(errno) => {
                cx.io.recycle(pipe);
                self.on_read_error(from, errno)
            }
        }
    }

    fn drain_pipe<I: Io<Pipe = P>>(&mut self, cx: &mut PumpContext<'_, I>, to: &mut End<I::Socket>) -> Step {
        let Held::Piped { pipe, bytes } = &mut self.held else { return Step::Moved };
        if !to.ready.writable {
            return Step::Wait;
        }
        match cx.io.splice_out(pipe, &to.socket, *bytes) {
            Ok(moved) => {
                *bytes -= moved;
                self.delivered_bytes += moved as u64;
                self.recycle_when_empty(cx.io);
                Step::Moved
            }
            Err(errno) => on_write_error(to, errno),
        }
    }

    fn recycle_when_empty<I: Io<Pipe = P>>(&mut self, io: &mut I) {
        if let Held::Piped { bytes: 0, .. } = self.held
            && let Held::Piped { pipe, .. } = std::mem::replace(&mut self.held, Held::Nothing)
        {
            io.recycle(pipe);
        }
    }
}

fn on_write_error<S>(to: &mut End<S>, errno: Errno) -> Step {
    match errno {
        Errno::AGAIN => {
            to.ready.writable = false;
            Step::Wait
        }
        Errno::INTR => Step::Moved,
        _ => Step::SinkBroken,
    }
}
