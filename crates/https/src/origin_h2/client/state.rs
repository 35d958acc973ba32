//! A connection's state, which its task and its requests share.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use h2::Reason;
use truepeer_http::{HeadError, HttpLimits};

use super::frames::{
    self, CONTINUATION, END_HEADERS, GOAWAY, HEAD_BYTES, HEADERS, MOST_PAYLOAD, PING, Preface, RST_STREAM,
    SETTINGS, WINDOW_UPDATE,
};
use super::hpack::{Decoder, NO_TABLE};
use super::stream::{self, NotBegun, Stream, StreamError, head_flags};

/// Streams at a time over one connection. More requests use another connection.
pub(in super::super) const MOST_STREAMS: u32 = 128;
/// The most bytes of a response that truepeer holds for a slow client. The connection's window has room for the windows of all streams, and
/// [`State::release`] opens it before such bytes fill it, so a slow client stops no others.
pub(super) const STREAM_WINDOW: u32 = 128 << 10;
pub(super) const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS;
/// The windows before any SETTINGS (RFC 9113 section 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// The largest window (RFC 9113 section 6.9.1).
pub(super) const LARGEST_WINDOW: i64 = i32::MAX as i64;
/// While so many bytes wait to be sent, no body's data is added. While so many of them answer the origin's frames, nothing is read. Two TLS
/// records.
pub(in super::super) const MOST_OUT_BYTES: usize = 32 << 10;
/// An idle connection keeps no more than this of that memory.
const KEPT_BYTES: usize = 4 << 10;
/// Identifiers of SETTINGS (RFC 9113 section 6.5.2).
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// The state of one connection.
#[derive(Debug)]
pub(in super::super) struct State {
    /// What waits to be sent.
    pub(in super::super) out: Vec<u8>,
    /// How much of it the origin has caused.
    answers: usize,
    pub(super) limits: HttpLimits,
    /// The streams that have not ended, by their numbers.
    pub(super) streams: Vec<(u32, Rc<RefCell<Stream>>)>,
    /// The number of the next stream.
    pub(super) next: u32,
    /// The first stream of which nothing can have been sent.
    first_unsent: u32,
    pub(super) decoder: Decoder,
    /// A header block of which more is to come.
    pub(super) block: Option<Block>,
    /// The bytes that may be sent on all streams together.
    pub(super) send_window: i64,
    /// The bytes that the origin may send on all streams together.
    pub(super) receive_window: u32,
    /// Bytes that were taken and not yet given back to the origin's window.
    taken: u32,
    /// The origin's settings.
    pub(super) first_send_window: i64,
    pub(super) most_streams: u32,
    pub(super) preface: Preface,
    /// The origin takes no new streams (GOAWAY), or the connection has ended.
    pub(super) is_over: bool,
    /// The stream that was woken first the last time that there was room.
    woken_first: u32,
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

impl State {
    /// A connection with truepeer's preface to be sent.
    pub(in super::super) fn new(limits: &HttpLimits) -> Self {
        // RFC 9113 6.5.2: each field counts 32 bytes more than its text.
        let list_bytes = limits.head_bytes + 32 * limits.fields;
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [
            (ENABLE_PUSH, 0),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_HEADER_LIST_SIZE, u32::try_from(list_bytes).unwrap_or(u32::MAX)),
        ];
        frames::write_head(&mut out, settings.len() * 6, SETTINGS, 0, 0);
        for (name, value) in settings {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        frames::write_number(&mut out, WINDOW_UPDATE, 0, CONNECTION_WINDOW - FIRST_WINDOW);
        Self {
            out,
            answers: 0,
            limits: *limits,
            streams: Vec::new(),
            next: 1,
            first_unsent: 1,
            decoder: Decoder::new(),
            block: None,
            send_window: FIRST_WINDOW.into(),
            receive_window: CONNECTION_WINDOW,
            taken: 0,
            first_send_window: FIRST_WINDOW.into(),
            most_streams: MOST_STREAMS,
            preface: Preface::Awaited,
            is_over: false,
            woken_first: 0,
            task: None,
        }
    }

    /// The task that sends `out`.
    pub(in super::super) fn set_task(&mut self, task: &Waker) {
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
    pub(in super::super) fn most_streams(&self) -> u32 {
        self.most_streams.min(MOST_STREAMS)
    }

    /// Whether a request can be begun where so many are open.
    pub(in super::super) fn has_room(&self, open: u32) -> bool {
        // An origin that reads nothing gets no more to read.
        !self.is_over && open < self.most_streams() && self.out.len() < 2 * MOST_OUT_BYTES
    }

    /// Whether no request can be begun any more.
    pub(in super::super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// What the origin's first bytes are.
    pub(in super::super) fn preface(&self) -> Preface {
        self.preface
    }

    /// No further request comes. The connection ends when its last stream has.
    pub(in super::super) fn let_go(&mut self) {
        self.is_over = true;
        self.wake();
    }

    /// Whether it has nothing left to do.
    pub(in super::super) fn is_done(&self) -> bool {
        self.is_over && self.streams.is_empty()
    }

    pub(super) fn begin(
        &mut self,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), HeadError>,
    ) -> Result<Rc<RefCell<Stream>>, NotBegun> {
        let id = self.next;
        if self.is_over || id > u32::MAX >> 1 {
            return Err(NotBegun::Refused);
        }
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEAD_BYTES]);
        if id == 1 {
            self.out.push(NO_TABLE);
        }
        if let Err(error) = write(&mut self.out) {
            self.out.truncate(start);
            return Err(NotBegun::Invalid(error));
        }
        let length = self.out.len() - start - HEAD_BYTES;
        let (kind, flags) = head_flags(is_whole);
        if length <= MOST_PAYLOAD {
            self.out[start..start + HEAD_BYTES].copy_from_slice(&frames::head(length, kind, flags, id));
        } else {
            let block = self.out.split_off(start + HEAD_BYTES);
            self.out.truncate(start);
            self.write_block(&block, flags & !END_HEADERS, id);
        }
        self.next += 2;
        let stream = stream::take();
        stream.borrow_mut().begin(id, self.first_send_window, is_whole);
        self.streams.push((id, Rc::clone(&stream)));
        self.wake();
        Ok(stream)
    }

    /// Appends a header block, in as many frames as it needs.
    pub(super) fn write_block(&mut self, block: &[u8], flags: u8, stream: u32) {
        let (mut kind, mut flags, mut rest) = (HEADERS, flags, block);
        loop {
            let (piece, after) = rest.split_at(rest.len().min(MOST_PAYLOAD));
            let end = if after.is_empty() { END_HEADERS } else { 0 };
            frames::write_head(&mut self.out, piece.len(), kind, flags | end, stream);
            self.out.extend_from_slice(piece);
            if after.is_empty() {
                return;
            }
            (kind, flags, rest) = (CONTINUATION, 0, after);
        }
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

    /// Bytes of any stream have been taken, or dropped: opens the connection's window by them. Called for each DATA frame, too: once
    /// slow clients' bytes fill the window, no other call may come.
    pub(super) fn release(&mut self, bytes: usize) {
        self.taken += u32::try_from(bytes).unwrap_or_default();
        // While half of the window is free, wait, so that few frames are sent. Slow clients may hold the other half for long.
        if self.taken >= STREAM_WINDOW / 2 && self.receive_window <= CONNECTION_WINDOW / 2 {
            let taken = std::mem::take(&mut self.taken);
            self.receive_window += taken;
            frames::write_number(&mut self.out, WINDOW_UPDATE, 0, taken);
            self.wake();
        }
    }

    /// Bytes of this stream have been taken: opens its window and the connection's by them.
    pub(super) fn release_of(&mut self, stream: &mut Stream, bytes: usize) {
        self.release(bytes);
        if stream.is_received || stream.error.is_some() {
            return;
        }
        stream.taken += u32::try_from(bytes).unwrap_or_default();
        if stream.taken >= STREAM_WINDOW / 2 {
            let taken = std::mem::take(&mut stream.taken);
            stream.receive_window += taken;
            frames::write_number(&mut self.out, WINDOW_UPDATE, stream.id, taken);
            self.wake();
        }
    }

    /// Ends a stream that violates the protocol.
    pub(super) fn violation(&mut self, stream: &mut Stream, reason: Reason) {
        self.refuse(stream, reason, StreamError::Violation(reason));
    }

    /// Resets a stream.
    pub(super) fn refuse(&mut self, stream: &mut Stream, reason: Reason, error: StreamError) {
        frames::write_number(&mut self.out, RST_STREAM, stream.id, reason.into());
        self.fail(stream, error);
    }

    /// The stream has ended before its time.
    pub(super) fn fail(&mut self, stream: &mut Stream, error: StreamError) {
        stream.is_sent = true;
        // A whole response stays one.
        if !stream.is_received {
            stream.error = Some(error);
        }
        stream.wake();
        self.remove(stream.id);
    }

    /// A part of `out` was taken, and the origin may read it.
    pub(in super::super) fn on_taken(&mut self) {
        self.first_unsent = self.next;
    }

    /// The connection has ended, and nothing more is sent.
    pub(in super::super) fn end(&mut self) {
        self.is_over = true;
        let sent = self.streams.partition_point(|(id, _)| *id < self.first_unsent);
        for (_, stream) in self.streams.split_off(sent) {
            self.fail(&mut stream.borrow_mut(), StreamError::Unprocessed);
        }
        self.fail_all(StreamError::Closed);
    }

    /// Ends all streams, and takes no further ones.
    pub(in super::super) fn fail_all(&mut self, error: StreamError) {
        self.is_over = true;
        for (_, stream) in std::mem::take(&mut self.streams) {
            self.fail(&mut stream.borrow_mut(), error);
        }
    }

    /// Ends the connection with this reason.
    pub(in super::super) fn go_away(&mut self, reason: Reason) {
        frames::write_head(&mut self.out, 8, GOAWAY, 0, 0);
        // No stream of the origin's was processed.
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(&u32::from(reason).to_be_bytes());
        self.fail_all(StreamError::Closed);
    }

    /// Asks the origin for a sign of life.
    pub(in super::super) fn ping(&mut self) {
        frames::write_head(&mut self.out, 8, PING, 0, 0);
        self.out.extend_from_slice(b"truepeer");
    }

    /// Notes what was written in answer to the origin since `out` had this length.
    pub(super) fn note_answers(&mut self, out_before: usize) {
        self.answers += self.out.len() - out_before;
    }

    /// Whether the origin must take answers before it may cause more of them. Requests don't count: an origin may take none of them before
    /// it has written its responses.
    pub(in super::super) fn is_owed_too_much(&self) -> bool {
        self.answers >= MOST_OUT_BYTES
    }

    /// Nobody takes what waits to be sent.
    pub(in super::super) fn discard_out(&mut self) {
        self.out.clear();
        self.answers = 0;
    }

    /// Everything was sent.
    pub(in super::super) fn on_sent(&mut self) {
        self.discard_out();
        if self.out.capacity() > KEPT_BYTES && self.streams.is_empty() {
            self.out = Vec::new();
        }
        self.wake_for_room();
    }

    /// Wakes the streams that wait for room. The first one may take all of it, so each time another stream is first.
    pub(super) fn wake_for_room(&mut self) {
        let next = self.streams.partition_point(|(id, _)| *id <= self.woken_first);
        let (last, first) = self.streams.split_at(next);
        let mut woken = None;
        for (id, stream) in first.iter().chain(last) {
            let stream = stream.borrow();
            if stream.waits_for_room {
                stream.wake();
                woken.get_or_insert(*id);
            }
        }
        self.woken_first = woken.unwrap_or(self.woken_first);
    }
}
