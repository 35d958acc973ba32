//! Frames of the other end (RFC 9113 section 6). An error ends the connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::connection::{
    Block, Connection, ENABLE_PUSH, INITIAL_WINDOW_SIZE, LARGEST_WINDOW, MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE, Role,
};
use super::frame::{
    self, ACK, CLIENT_PREFACE, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHead, GOAWAY, HAS_PRIORITY,
    HEAD_BYTES, HEADERS, MOST_PAYLOAD, PADDED, PING, PRIORITY, PRIORITY_UPDATE, PUSH_PROMISE, Preface,
    RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use super::hpack::BlockError;
use super::priority::Priority;
use super::reason::{Fault, Reason};
use super::stream::{Stream, StreamError};
use crate::HeadError;

/// The most frames of a header block: this many, and one more for each so many bytes. Without a limit, empty
/// ones could go on forever.
const MOST_BLOCK_FRAMES: usize = 32;
const FRAME_BYTES: usize = 4 << 10;

pub(super) type Done = Result<(), Fault>;
type Open = Option<Rc<RefCell<Stream>>>;

impl From<BlockError> for Fault {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Invalid => Reason::COMPRESSION_ERROR.into(),
            BlockError::TooMuch => Self::Excess,
        }
    }
}

impl Connection {
    /// Takes all whole frames from `input`; `now`: the time since any fixed moment. Returns how many bytes
    /// they were.
    ///
    /// # Errors
    /// Why the connection must end. Nothing more may be received.
    pub fn receive(&mut self, input: &[u8], now: Duration) -> Result<usize, Fault> {
        self.now = now;
        let mut at = 0;
        if self.preface != Preface::Settings {
            match self.take_preface(input)? {
                Some(length) => at = length,
                None => return Ok(0),
            }
        }
        while let Some(head) = FrameHead::of(&input[at..]) {
            if head.length > MOST_PAYLOAD {
                return Err(Reason::FRAME_SIZE_ERROR.into());
            }
            let end = at + HEAD_BYTES + head.length;
            let Some(payload) = input.get(at + HEAD_BYTES..end) else { break };
            if self.role == Role::Server && !self.allowance.on_received(head, now) {
                return Err(Fault::Excess);
            }
            let out_before = self.out.len();
            self.take_frame(head, payload)?;
            self.note_answers(out_before);
            // Wait for the whole first frame: requests must not begin before its parameters are known.
            self.preface = Preface::Settings;
            at = end;
        }
        Ok(at)
    }

    /// The length of the first line, which servers don't send. `None`: more is to come.
    fn take_preface(&mut self, input: &[u8]) -> Result<Option<usize>, Fault> {
        let mut at = 0;
        if self.role == Role::Server && self.preface == Preface::Awaited {
            let known = input.len().min(CLIENT_PREFACE.len());
            if input[..known] != CLIENT_PREFACE[..known] {
                self.preface = Preface::Other;
                return Err(Reason::PROTOCOL_ERROR.into());
            }
            if known < CLIENT_PREFACE.len() {
                return Ok(None);
            }
            self.preface = Preface::FirstLine;
            at = known;
        }
        if Preface::of(&input[at..]) == Preface::Other {
            self.preface = Preface::Other;
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        Ok(Some(at))
    }

    fn take_frame(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        // RFC 9113 6.10: nothing comes between the frames of a block.
        if self.block.is_some() != (head.kind == CONTINUATION) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        match head.kind {
            DATA => self.data(head, payload),
            HEADERS => self.headers(head, payload),
            CONTINUATION => self.continuation(head, payload),
            RST_STREAM => self.reset(head, payload),
            SETTINGS => self.settings(head, payload),
            PING => self.answer_ping(head, payload),
            GOAWAY => self.going_away(head, payload),
            WINDOW_UPDATE => self.window_update(head, payload),
            PUSH_PROMISE => Err(Reason::PROTOCOL_ERROR.into()),
            PRIORITY if self.role == Role::Server => check_priority(head, payload),
            PRIORITY_UPDATE if self.role == Role::Server => self.priority_update(head, payload),
            // Unknown kinds.
            _ => Ok(()),
        }
    }

    /// The open stream of a frame. `None`: it has ended, and the frame may have been on its way.
    fn stream_of(&self, head: FrameHead) -> Result<Open, Fault> {
        // RFC 9113 5.1.1: a client's streams have odd numbers, and a server opens none.
        let was_begun = head.stream % 2 == 1
            && match self.role {
                Role::Client => head.stream < self.next,
                Role::Server => head.stream <= self.newest,
            };
        if was_begun { Ok(self.find(head.stream)) } else { Err(Reason::PROTOCOL_ERROR.into()) }
    }

    fn data(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let stream = self.stream_of(head)?;
        // RFC 9113 6.9.1: padding counts, and so do frames that are ignored.
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.receive_window = self.receive_window.checked_sub(bytes).ok_or(Reason::FLOW_CONTROL_ERROR)?;
        let data = frame::without_padding(payload, head.has(PADDED)).ok_or(Reason::PROTOCOL_ERROR)?;
        let Some(stream) = stream else {
            self.release(payload.len());
            return self.on_late(head);
        };
        let mut stream = stream.borrow_mut();
        if stream.is_received || stream.is_cut {
            self.release(payload.len());
            if self.role == Role::Server {
                self.violation(&mut stream, Reason::STREAM_CLOSED);
            }
            return Ok(());
        }
        let window = stream.receive_window.checked_sub(bytes);
        let (true, Some(window)) = (stream.has_head, window) else {
            let reason = if stream.has_head { Reason::FLOW_CONTROL_ERROR } else { Reason::PROTOCOL_ERROR };
            self.release(payload.len());
            self.violation(&mut stream, reason);
            return Ok(());
        };
        stream.receive_window = window;
        if let Some(announced) = stream.announced {
            let Some(left) = announced.checked_sub(data.len() as u64) else {
                self.release(payload.len());
                self.malformed(&mut stream);
                return Ok(());
            };
            stream.announced = Some(left);
        }
        stream.data.extend_from_slice(data);
        stream.held += data.len();
        if head.has(END_STREAM) {
            self.received(&mut stream);
        }
        // Padding is taken at once.
        self.release_of(&mut stream, payload.len() - data.len());
        stream.wake();
        Ok(())
    }

    /// A frame of a stream that has ended.
    fn on_late(&mut self, head: FrameHead) -> Done {
        if self.role == Role::Client || self.is_over() || self.has_reset(head.stream) {
            return Ok(());
        }
        // RFC 9113 5.1: the client has ended it.
        if head.kind == HEADERS {
            return Err(Reason::STREAM_CLOSED.into());
        }
        self.write_reset(head.stream, Reason::STREAM_CLOSED);
        Ok(())
    }

    /// The message is whole, unless a request has announced more.
    pub(super) fn received(&mut self, stream: &mut Stream) {
        if stream.announced.is_some_and(|left| left > 0) {
            // curl ends a request early once it has seen an error in the response, which it still reads.
            if !stream.has_answered {
                return self.malformed(stream);
            }
            stream.is_cut = true;
        } else {
            stream.is_received = true;
        }
        if stream.is_sent {
            self.remove(stream.id);
        }
    }

    /// A request that breaks off or that violates RFC 9113 section 8.
    pub(super) fn malformed(&mut self, stream: &mut Stream) {
        self.violation(stream, Reason::PROTOCOL_ERROR);
    }

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let is_new = self.role == Role::Server && head.stream > self.newest;
        if is_new && head.stream % 2 == 1 {
            if head.stream > self.newest + 2 {
                self.skipped = self.newest + 1..head.stream;
            }
            self.newest = head.stream;
        } else {
            // RFC 9113 5.1.1: numbers only grow.
            let is_skipped = self.role == Role::Server && self.skipped.contains(&head.stream);
            if self.stream_of(head)?.is_none() {
                if is_skipped {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                self.on_late(head)?;
            }
        }
        let mut block = frame::without_padding(payload, head.has(PADDED)).ok_or(Reason::PROTOCOL_ERROR)?;
        if head.has(HAS_PRIORITY) {
            let (priority, rest) = block.split_first_chunk::<5>().ok_or(Reason::FRAME_SIZE_ERROR)?;
            check_priority(head, priority)?;
            block = rest;
        }
        if head.has(END_HEADERS) {
            return self.take_block(head.stream, head.has(END_STREAM), block);
        }
        let ends_stream = head.has(END_STREAM);
        self.block = Some(Block { stream: head.stream, ends_stream, bytes: block.to_vec(), frames: 1 });
        Ok(())
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let Some(mut block) = self.block.take() else { return Err(Reason::PROTOCOL_ERROR.into()) };
        if head.stream != block.stream {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        block.frames += 1;
        block.bytes.extend_from_slice(payload);
        let bytes = block.bytes.len();
        let is_endless = block.frames > MOST_BLOCK_FRAMES + bytes / FRAME_BYTES || bytes > self.most_block;
        // A head within its limits fits twice: what is compressed is seldom longer.
        let is_too_long = is_endless || bytes > 2 * self.limits.head_bytes.max(MOST_PAYLOAD);
        if is_too_long && self.role == Role::Client {
            // Don't repeat the request: the response would be as long again.
            if let Some(stream) = self.find(block.stream) {
                let error = StreamError::BadHead(HeadError::TooLong);
                self.refuse(&mut stream.borrow_mut(), Reason::CANCEL, error);
            }
        }
        if is_endless {
            return Err(Fault::Excess);
        }
        if head.has(END_HEADERS) {
            return self.take_block(block.stream, block.ends_stream, &block.bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    fn reset(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let stream = self.stream_of(head)?;
        let reason = Reason(number_of(payload, 4)?);
        if let Some(stream) = stream {
            let mut stream = stream.borrow_mut();
            if self.role == Role::Server && !stream.is_sent {
                self.tally.taken_back += 1;
            }
            self.fail(&mut stream, StreamError::Reset(reason));
        }
        Ok(())
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(ACK) && !settings.is_empty()) {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        if head.has(ACK) {
            return Ok(());
        }
        let mut window = None;
        for &[a, b, value @ ..] in settings {
            let (name, value) = (u16::from_be_bytes([a, b]), u32::from_be_bytes(value));
            self.set(name, value)?;
            window = if name == INITIAL_WINDOW_SIZE { Some(value) } else { window };
        }
        // Only the last one: each visits all streams, and a frame has room for 2,730 of them.
        if let Some(value) = window {
            self.set_window(value)?;
        }
        frame::write_head(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn set(&mut self, name: u16, value: u32) -> Done {
        // RFC 9113 6.5.2: only a client may allow pushes.
        let most_pushes = u32::from(self.role == Role::Server);
        match name {
            ENABLE_PUSH if value > most_pushes => Err(Reason::PROTOCOL_ERROR.into()),
            MAX_CONCURRENT_STREAMS => {
                self.most_streams = value;
                Ok(())
            }
            INITIAL_WINDOW_SIZE if i64::from(value) > LARGEST_WINDOW => {
                Err(Reason::FLOW_CONTROL_ERROR.into())
            }
            MAX_FRAME_SIZE => {
                let size = value as usize;
                let is_valid = (MOST_PAYLOAD..1 << 24).contains(&size);
                // Longer frames than the usual ones have no advantage.
                if is_valid { Ok(()) } else { Err(Reason::PROTOCOL_ERROR.into()) }
            }
            _ => Ok(()),
        }
    }

    /// RFC 9113 6.9.2: all streams' windows change with their initial size.
    fn set_window(&mut self, value: u32) -> Done {
        let value = i64::from(value);
        let more = value - self.first_send_window;
        self.first_send_window = value;
        for (_, stream) in &self.streams {
            let mut stream = stream.borrow_mut();
            if stream.is_sent {
                continue;
            }
            stream.send_window += more;
            if stream.send_window > LARGEST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR.into());
            }
        }
        self.wake_for_room();
        Ok(())
    }

    fn answer_ping(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if payload.len() != 8 {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        if head.has(ACK) {
            self.on_ping_answer(payload);
        } else {
            frame::write_head(&mut self.out, payload.len(), PING, ACK, 0);
            self.out.extend_from_slice(payload);
        }
        Ok(())
    }

    fn going_away(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if payload.len() < 8 {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        if self.role == Role::Server {
            // The client takes no streams of truepeer's, which begins none.
            return Ok(());
        }
        let last = frame::number(payload).unwrap_or_default() & (u32::MAX >> 1);
        self.set_over();
        let processed = self.streams.partition_point(|(id, _)| *id <= last);
        for (_, stream) in self.streams.split_off(processed) {
            self.fail(&mut stream.borrow_mut(), StreamError::Unprocessed);
        }
        Ok(())
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let more = i64::from(number_of(payload, 4)? & (u32::MAX >> 1));
        if head.stream == 0 {
            self.send_window += more;
            if more == 0 {
                return Err(Reason::PROTOCOL_ERROR.into());
            }
            if self.send_window > LARGEST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR.into());
            }
            self.wake_for_room();
            return Ok(());
        }
        let Some(stream) = self.stream_of(head)? else { return Ok(()) };
        let mut stream = stream.borrow_mut();
        if !stream.is_sent {
            stream.send_window += more;
        }
        if more == 0 {
            self.violation(&mut stream, Reason::PROTOCOL_ERROR);
        } else if stream.send_window > LARGEST_WINDOW {
            self.violation(&mut stream, Reason::FLOW_CONTROL_ERROR);
        } else if stream.waits_for_room {
            stream.wake();
        }
        Ok(())
    }

    /// RFC 9218 section 7.1. That of a stream that has not begun is ignored: its request has a field for it.
    fn priority_update(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let (id, value) = payload.split_first_chunk().ok_or(Reason::FRAME_SIZE_ERROR)?;
        let id = u32::from_be_bytes(*id) & (u32::MAX >> 1);
        if id == 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if let Some(stream) = self.find(id) {
            stream.borrow_mut().priority = Priority::of(value);
        }
        Ok(())
    }
}

/// The fields of PRIORITY, and of HEADERS: `payload` is those 5 bytes. A stream can't depend on itself (RFC
/// 7540 section 5.3.1).
fn check_priority(head: FrameHead, payload: &[u8]) -> Done {
    if payload.len() != 5 {
        return Err(Reason::FRAME_SIZE_ERROR.into());
    }
    let parent = frame::number(payload).unwrap_or_default() & (u32::MAX >> 1);
    if head.stream == 0 || parent == head.stream { Err(Reason::PROTOCOL_ERROR.into()) } else { Ok(()) }
}

/// The number that is the whole payload.
fn number_of(payload: &[u8], bytes: usize) -> Result<u32, Fault> {
    let number = frame::number(payload).filter(|_| payload.len() == bytes);
    number.ok_or(Reason::FRAME_SIZE_ERROR.into())
}
