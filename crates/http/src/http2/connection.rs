//! A connection's state, which its task and its streams share.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::encode::NO_TABLE;
use super::flood::{ControlAllowance, Tally};
use super::frame::{
    self, CLIENT_PREFACE, END_STREAM, HEAD_BYTES, Preface, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use super::hpack::Decoder;
use super::reason::Reason;
use super::stream::{self, NotBegun, Stream, StreamError};
use crate::{HeadError, HttpLimits};

/// Streams at a time over one connection.
pub const MOST_STREAMS: u32 = 128;
/// Streams that a client has begun and whose tasks have not ended, cancelled ones among them.
pub(super) const MOST_HANDLES: u32 = 2 * MOST_STREAMS;
/// The windows before any SETTINGS (RFC 9113 section 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// The largest window (RFC 9113 section 6.9.1).
pub(super) const LARGEST_WINDOW: i64 = i32::MAX as i64;
/// Streams that truepeer has reset, and for which the other end may still have sent frames (RFC 9113 section
/// 5.4.2).
const MOST_RESETS: usize = 256;
/// The longest header block of an origin.
const MOST_BLOCK_BYTES: usize = 1 << 20;
/// The cookies of a request come as one field each (RFC 9113 section 8.2.3) and count as one.
const MOST_COOKIES: usize = 1024;
/// Identifiers of SETTINGS (RFC 9113 section 6.5.2).
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// RFC 8441 section 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// RFC 9218 section 2.1.
const NO_RFC7540_PRIORITIES: u16 = 9;

/// Which end of the connection truepeer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It sends requests to an origin.
    Client,
    /// It answers a client's.
    Server,
}

impl Role {
    /// The bytes of a body in flight, for one stream: the most that truepeer holds for a slow receiver.
    pub(super) fn stream_window(self) -> u32 {
        match self {
            Self::Client => 128 << 10,
            // 13 MB/s at a round trip of 20 ms.
            Self::Server => 256 << 10,
        }
    }

    /// The same for all streams together. An origin's window has room for those of all streams, so a slow
    /// client stops no others.
    pub(super) fn connection_window(self) -> u32 {
        match self {
            Self::Client => self.stream_window() * MOST_STREAMS,
            Self::Server => 1 << 20,
        }
    }
}

/// How far the end of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    No,
    /// The client was told to begin no more streams, and asked for a sign that it knows.
    Announced,
    /// No further stream is taken.
    Over,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) limits: HttpLimits,
    /// What waits to be sent, from `sent` on.
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    /// How many bytes of it the other end has caused.
    pub(super) answers: usize,
    /// Bytes of DATA in `out` that don't count as taken yet.
    pub(super) data_out: usize,
    /// The bytes of DATA that the other end has taken so far. Frames that it can cause at will, such as
    /// answers to PING, don't count: they would hide that it takes no response.
    pub(super) data_taken: u64,
    /// No header block was written yet.
    pub(super) is_first_block: bool,
    /// The streams that have not ended, by their numbers.
    pub(super) streams: Vec<(u32, Rc<RefCell<Stream>>)>,
    /// Streams whose handles have not been dropped.
    pub(super) handles: u32,
    /// The number of the next stream that a client begins.
    pub(super) next: u32,
    /// The first stream of which nothing can have been sent.
    pub(super) first_unsent: u32,
    /// The newest stream that the client at the other end has begun, and those before it that it has left
    /// out.
    pub(super) newest: u32,
    pub(super) skipped: std::ops::Range<u32>,
    /// Requests that nobody has taken.
    pub(super) requests: VecDeque<Rc<RefCell<Stream>>>,
    pub(super) tally: Tally,
    /// Malformed requests that nobody has counted.
    pub(super) malformed: u32,
    pub(super) allowance: ControlAllowance,
    /// Of the last [`Self::receive`].
    pub(super) now: Duration,
    resets: VecDeque<u32>,
    pub(super) decoder: Decoder,
    /// A header block of which more is to come.
    pub(super) block: Option<Block>,
    /// The longest header block. Beyond the limit of heads it is only decoded, because the connection's other
    /// streams need its table.
    pub(super) most_block: usize,
    /// The cookies of the head that is being read.
    pub(super) cookies: Vec<u8>,
    /// The bytes that may be sent on all streams together.
    pub(super) send_window: i64,
    /// The bytes that the other end may send on all streams together.
    pub(super) receive_window: u32,
    /// Bytes that were taken and not yet given back to that window.
    taken: u32,
    /// The other end's settings.
    pub(super) first_send_window: i64,
    pub(super) most_streams: u32,
    pub(super) preface: Preface,
    pub(super) end: End,
    /// The stream that was woken first the last time that there was room.
    pub(super) woken_first: u32,
    task: Option<Waker>,
}

/// A part of a header block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends_stream: bool,
    pub(super) bytes: Vec<u8>,
    /// Frames that it came in.
    pub(super) frames: usize,
}

impl Connection {
    /// A connection with truepeer's preface to be sent.
    #[must_use]
    pub fn new(role: Role, limits: &HttpLimits) -> Self {
        // RFC 9113 6.5.2: each field counts 32 bytes more than its text.
        let list_bytes = match role {
            Role::Client => limits.head_bytes + 32 * limits.fields,
            // Well above the limit, which counts as HTTP/1.1 does: clients may split cookies, and get a 431.
            Role::Server => 4 * (limits.head_bytes + 38 * (limits.fields + MOST_COOKIES)),
        };
        // A client that keeps to the advertised limit sends no longer block: compressed, it is hardly ever
        // longer than the list.
        let most_block =
            if role == Role::Client { MOST_BLOCK_BYTES } else { list_bytes.min(MOST_BLOCK_BYTES) };
        let list_bytes = u32::try_from(list_bytes).unwrap_or(u32::MAX);
        let window = (INITIAL_WINDOW_SIZE, role.stream_window());
        let settings = match role {
            Role::Client => &[(ENABLE_PUSH, 0), window, (MAX_HEADER_LIST_SIZE, list_bytes)][..],
            Role::Server => &[
                (MAX_CONCURRENT_STREAMS, MOST_STREAMS),
                window,
                (MAX_HEADER_LIST_SIZE, list_bytes),
                (ENABLE_CONNECT_PROTOCOL, 1),
                (NO_RFC7540_PRIORITIES, 1),
            ],
        };
        let mut out = if role == Role::Client { CLIENT_PREFACE.to_vec() } else { Vec::new() };
        frame::write_head(&mut out, settings.len() * 6, SETTINGS, 0, 0);
        for (name, value) in settings {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        frame::write_number(&mut out, WINDOW_UPDATE, 0, role.connection_window() - FIRST_WINDOW);
        Self {
            role,
            limits: *limits,
            out,
            sent: 0,
            answers: 0,
            data_out: 0,
            data_taken: 0,
            is_first_block: true,
            streams: Vec::new(),
            handles: 0,
            next: 1,
            first_unsent: 1,
            newest: 0,
            skipped: 0..0,
            requests: VecDeque::new(),
            tally: Tally::default(),
            malformed: 0,
            allowance: ControlAllowance::new(),
            now: Duration::ZERO,
            resets: VecDeque::new(),
            decoder: Decoder::new(),
            block: None,
            most_block,
            cookies: Vec::new(),
            send_window: FIRST_WINDOW.into(),
            receive_window: role.connection_window(),
            taken: 0,
            first_send_window: FIRST_WINDOW.into(),
            most_streams: MOST_STREAMS,
            preface: Preface::Awaited,
            end: End::No,
            woken_first: 0,
            task: None,
        }
    }

    /// The task that sends, and that is woken when there is something to send or a stream has ended.
    pub fn set_task(&mut self, task: &Waker) {
        if !self.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            self.task = Some(task.clone());
        }
    }

    pub(super) fn wake(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    /// How many streams may be open at a time.
    #[must_use]
    pub fn most_streams(&self) -> u32 {
        self.most_streams.min(MOST_STREAMS)
    }

    /// What the other end's first bytes are.
    #[must_use]
    pub fn preface(&self) -> Preface {
        self.preface
    }

    /// The stream whose header block has begun and not ended.
    #[must_use]
    pub fn open_block(&self) -> Option<u32> {
        self.block.as_ref().map(|block| block.stream)
    }

    /// Streams that a client has begun so far, malformed ones too.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.tally.begun
    }

    /// Streams whose handles are held.
    #[must_use]
    pub fn handles(&self) -> u32 {
        self.handles
    }

    /// Whether no stream is open and nothing waits to be sent.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.streams.is_empty() && self.unsent().is_empty()
    }

    /// How many requests were refused as malformed since the last call. No handle tells of them.
    pub fn take_malformed(&mut self) -> u32 {
        std::mem::take(&mut self.malformed)
    }

    /// No further stream is begun. The connection ends when its last one has.
    pub fn let_go(&mut self) {
        self.set_over();
        self.wake();
    }

    pub(super) fn begin(
        &mut self,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), HeadError>,
    ) -> Result<Rc<RefCell<Stream>>, NotBegun> {
        let id = self.next;
        if self.is_over() || id > u32::MAX >> 1 {
            return Err(NotBegun::Refused);
        }
        let start = self.begin_block();
        if let Err(error) = write(&mut self.out) {
            self.is_first_block |= self.out.get(start + HEAD_BYTES) == Some(&NO_TABLE);
            self.out.truncate(start);
            return Err(NotBegun::Invalid(error));
        }
        self.end_block(start, if is_whole { END_STREAM } else { 0 }, id);
        self.next += 2;
        let stream = stream::take();
        stream.borrow_mut().begin(id, self.role.stream_window(), self.first_send_window);
        stream.borrow_mut().is_sent = is_whole;
        self.streams.push((id, Rc::clone(&stream)));
        self.handles += 1;
        self.wake();
        Ok(stream)
    }

    /// The place of an open stream.
    fn place(&self, id: u32) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(super) fn find(&self, id: u32) -> Option<Rc<RefCell<Stream>>> {
        self.place(id).ok().map(|at| Rc::clone(&self.streams[at].1))
    }

    /// Forgets a stream. Whether it was open.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        let place = self.place(id);
        if let Ok(at) = place {
            self.streams.remove(at);
            if self.is_done() {
                self.wake();
            }
        }
        place.is_ok()
    }

    /// Bytes of any stream have been taken, or dropped: opens the connection's window by them. Called for
    /// each DATA frame, too: once slow receivers' bytes fill the window, no other call may come.
    pub(super) fn release(&mut self, bytes: usize) {
        self.taken += u32::try_from(bytes).unwrap_or_default();
        // While half of the window is free, wait, so that few frames are sent. Slow receivers may hold the
        // other half for long.
        let is_worth_it = self.taken >= self.role.stream_window() / 2 || self.taken >= self.receive_window;
        if self.taken > 0 && is_worth_it && self.receive_window <= self.role.connection_window() / 2 {
            let taken = std::mem::take(&mut self.taken);
            self.receive_window += taken;
            frame::write_number(&mut self.out, WINDOW_UPDATE, 0, taken);
            self.wake();
        }
    }

    /// Bytes of this stream have been taken: opens its window and the connection's by them.
    pub(super) fn release_of(&mut self, stream: &mut Stream, bytes: usize) {
        self.release(bytes);
        if stream.is_received || stream.is_cut || stream.error.is_some() {
            return;
        }
        stream.taken += u32::try_from(bytes).unwrap_or_default();
        if stream.taken >= self.role.stream_window() / 2 {
            let taken = std::mem::take(&mut stream.taken);
            stream.receive_window += taken;
            frame::write_number(&mut self.out, WINDOW_UPDATE, stream.id, taken);
            self.wake();
        }
    }

    /// Ends a stream that violates the protocol. A client that makes truepeer reset its request has cancelled
    /// it ("MadeYouReset", CVE-2025-8671).
    pub(super) fn violation(&mut self, stream: &mut Stream, reason: Reason) {
        if self.role == Role::Server && !stream.is_sent {
            self.tally.taken_back += 1;
        }
        self.refuse(stream, reason, StreamError::Violation(reason));
    }

    /// Resets a stream.
    pub(super) fn refuse(&mut self, stream: &mut Stream, reason: Reason, error: StreamError) {
        self.write_reset(stream.id, reason);
        self.fail(stream, error);
    }

    pub(super) fn write_reset(&mut self, id: u32, reason: Reason) {
        frame::write_number(&mut self.out, RST_STREAM, id, reason.0);
        if self.resets.len() == MOST_RESETS {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
        self.wake();
    }

    /// Whether truepeer has reset the stream, so that the other end's frames may have been on their way.
    pub(super) fn has_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    /// The stream has ended before its time.
    pub(super) fn fail(&mut self, stream: &mut Stream, error: StreamError) {
        stream.is_sent = true;
        // A whole response stays one.
        if !stream.is_received || self.role == Role::Server {
            stream.error = Some(error);
        }
        stream.wake();
        self.remove(stream.id);
        if stream.waits_for_room {
            self.wake_for_room();
        }
    }
}
