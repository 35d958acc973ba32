//! Frames of the origin (RFC 9113 section 6). An error ends the connection.

use std::cell::RefCell;
use std::rc::Rc;

use h2::Reason;
use truepeer_http::{HeadError, ResponseHead};

use super::frames::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHead, GOAWAY, HEAD_BYTES, HEADERS,
    MOST_PAYLOAD, PADDED, PING, PRIORITY, PUSH_PROMISE, Preface, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use super::head::{Fault, HeadReader, head_bytes};
use super::state::{
    Block, ENABLE_PUSH, INITIAL_WINDOW_SIZE, LARGEST_WINDOW, MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, State,
};
use super::stream::{Stream, StreamError};
use crate::exchange::MOST_INTERIM;
use crate::read_buffer::Buffer;

/// The most frames of a header block: this many, and one more for each so many bytes. Without a limit, empty ones could go on forever.
const MOST_BLOCK_FRAMES: usize = 32;
const FRAME_BYTES: usize = 4 << 10;
/// The longest header block. Beyond the limit of heads it is only decoded, because the connection's other streams need its table.
const MOST_BLOCK_BYTES: usize = 1 << 20;

type Done = Result<(), Reason>;

impl State {
    /// Takes all whole frames from `input`.
    ///
    /// # Errors
    /// The origin violates the protocol.
    pub(in super::super) fn take_frames(&mut self, input: &mut Buffer) -> Done {
        if self.preface != Preface::Settings && Preface::of(input.data()) == Preface::Other {
            self.preface = Preface::Other;
            return Err(Reason::PROTOCOL_ERROR);
        }
        while let Some(head) = FrameHead::of(input.data()) {
            if head.length > MOST_PAYLOAD {
                return Err(Reason::FRAME_SIZE_ERROR);
            }
            let end = HEAD_BYTES + head.length;
            let Some(payload) = input.data().get(HEAD_BYTES..end) else { break };
            let out_before = self.out.len();
            self.take_frame(head, payload)?;
            self.note_answers(out_before);
            input.consume(end);
            // Wait for the whole first frame: requests must not begin before its parameters are known.
            self.preface = Preface::Settings;
        }
        Ok(())
    }

    fn take_frame(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        // RFC 9113 6.10: nothing comes between the frames of a block.
        if self.block.is_some() != (head.kind == CONTINUATION) {
            return Err(Reason::PROTOCOL_ERROR);
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
            PUSH_PROMISE => Err(Reason::PROTOCOL_ERROR),
            // Priorities, and unknown kinds.
            _ => Ok(()),
        }
    }

    /// The open stream of a frame. `None`: it has ended, and the frame may have been on its way.
    fn stream_of(&self, head: FrameHead) -> Result<Option<Rc<RefCell<Stream>>>, Reason> {
        // RFC 9113 5.1.1: truepeer's streams have odd numbers, and the origin opens none.
        let was_begun = head.stream % 2 == 1 && head.stream < self.next;
        if was_begun { Ok(self.find(head.stream)) } else { Err(Reason::PROTOCOL_ERROR) }
    }

    fn data(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let stream = self.stream_of(head)?;
        // RFC 9113 6.9.1: padding counts, and so do frames that are ignored.
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.receive_window = self.receive_window.checked_sub(bytes).ok_or(Reason::FLOW_CONTROL_ERROR)?;
        let data = frames::without_padding(payload, head.has(PADDED)).ok_or(Reason::PROTOCOL_ERROR)?;
        let open = stream.as_ref().map(|stream| stream.borrow_mut()).filter(|stream| !stream.is_received);
        let Some(mut stream) = open else {
            self.release(payload.len());
            return Ok(());
        };
        let window = stream.receive_window.checked_sub(bytes);
        let (true, Some(window)) = (stream.has_head, window) else {
            let reason = if stream.has_head { Reason::FLOW_CONTROL_ERROR } else { Reason::PROTOCOL_ERROR };
            self.release(payload.len());
            self.violation(&mut stream, reason);
            return Ok(());
        };
        stream.receive_window = window;
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

    /// The response is whole.
    fn received(&mut self, stream: &mut Stream) {
        stream.is_received = true;
        if stream.is_sent {
            self.remove(stream.id);
        }
    }

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        self.stream_of(head)?;
        let mut block = frames::without_padding(payload, head.has(PADDED)).ok_or(Reason::PROTOCOL_ERROR)?;
        if head.has(PRIORITY) {
            block = block.get(5..).ok_or(Reason::FRAME_SIZE_ERROR)?;
        }
        if head.has(END_HEADERS) {
            return self.take_block(head.stream, head.has(END_STREAM), block);
        }
        let ends_stream = head.has(END_STREAM);
        self.block = Some(Block { stream: head.stream, ends_stream, bytes: block.to_vec(), frames: 1 });
        Ok(())
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let Some(mut block) = self.block.take() else { return Err(Reason::PROTOCOL_ERROR) };
        if head.stream != block.stream {
            return Err(Reason::PROTOCOL_ERROR);
        }
        block.frames += 1;
        block.bytes.extend_from_slice(payload);
        let bytes = block.bytes.len();
        let is_endless = block.frames > MOST_BLOCK_FRAMES + bytes / FRAME_BYTES || bytes > MOST_BLOCK_BYTES;
        // A head within its limits fits twice: what is compressed is seldom longer.
        if is_endless || bytes > 2 * self.limits.head_bytes.max(MOST_PAYLOAD) {
            // Don't repeat the request: the response would be as long again.
            if let Some(stream) = self.find(block.stream) {
                let error = StreamError::BadHead(HeadError::TooLong);
                self.refuse(&mut stream.borrow_mut(), Reason::CANCEL, error);
            }
        }
        if is_endless {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        if head.has(END_HEADERS) {
            return self.take_block(block.stream, block.ends_stream, &block.bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    /// Takes a whole header block. Each must be decoded: later ones refer to it.
    fn take_block(&mut self, id: u32, ends_stream: bool, block: &[u8]) -> Done {
        let stream = self.find(id);
        let mut open = stream.as_ref().map(|stream| stream.borrow_mut()).filter(|stream| !stream.is_received);
        let mut reader = match open.as_deref_mut() {
            None => HeadReader::of_nothing(&self.limits),
            Some(Stream { has_head: true, trailers, .. }) => HeadReader::of_trailers(trailers, &self.limits),
            Some(Stream { head, .. }) => HeadReader::of_head(head, &self.limits),
        };
        let read = self.decoder.read(block, |name, value| reader.field(name, value));
        read.ok_or(Reason::COMPRESSION_ERROR)?;
        let fault = reader.fault();
        let Some(mut stream) = open else { return Ok(()) };
        if let Some(Fault::Excess(error)) = fault {
            self.refuse(&mut stream, Reason::CANCEL, StreamError::BadHead(error));
            return Ok(());
        }
        let is_interim = !stream.has_head && stream.head.status < 200;
        // RFC 9113 8.1: neither is a 1xx response the last one, nor do trailers come before the end.
        if fault.is_some() || (ends_stream && is_interim) || (stream.has_head && !ends_stream) {
            self.violation(&mut stream, Reason::PROTOCOL_ERROR);
            return Ok(());
        }
        if is_interim {
            let bytes = stream.interim_bytes + head_bytes(&stream.head);
            if stream.interim.len() > MOST_INTERIM || bytes > self.limits.head_bytes {
                self.violation(&mut stream, Reason::ENHANCE_YOUR_CALM);
                return Ok(());
            }
            let interim: ResponseHead = std::mem::take(&mut stream.head);
            stream.interim.push_back(interim);
            stream.interim_bytes = bytes;
        } else {
            stream.has_head = true;
        }
        if ends_stream {
            self.received(&mut stream);
        }
        stream.wake();
        Ok(())
    }

    fn reset(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        let stream = self.stream_of(head)?;
        let reason = number_of(payload, 4)?;
        if let Some(stream) = stream {
            self.fail(&mut stream.borrow_mut(), StreamError::Reset(reason.into()));
        }
        Ok(())
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(ACK) && !settings.is_empty()) {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        if head.has(ACK) {
            return Ok(());
        }
        for &[a, b, value @ ..] in settings {
            self.set(u16::from_be_bytes([a, b]), u32::from_be_bytes(value))?;
        }
        frames::write_head(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn set(&mut self, name: u16, value: u32) -> Done {
        match name {
            ENABLE_PUSH if value != 0 => Err(Reason::PROTOCOL_ERROR),
            MAX_CONCURRENT_STREAMS => {
                self.most_streams = value;
                Ok(())
            }
            INITIAL_WINDOW_SIZE => self.set_window(value),
            MAX_FRAME_SIZE => {
                let size = value as usize;
                let is_valid = (MOST_PAYLOAD..1 << 24).contains(&size);
                // Longer frames than the usual ones have no advantage.
                if is_valid { Ok(()) } else { Err(Reason::PROTOCOL_ERROR) }
            }
            _ => Ok(()),
        }
    }

    /// RFC 9113 6.9.2: all streams' windows change with their initial size.
    fn set_window(&mut self, value: u32) -> Done {
        let value = i64::from(value);
        if value > LARGEST_WINDOW {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        let more = value - self.first_send_window;
        self.first_send_window = value;
        for (_, stream) in &self.streams {
            let mut stream = stream.borrow_mut();
            if stream.is_sent {
                continue;
            }
            stream.send_window += more;
            if stream.send_window > LARGEST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
        }
        self.wake_for_room();
        Ok(())
    }

    fn answer_ping(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if payload.len() != 8 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        if !head.has(ACK) {
            frames::write_head(&mut self.out, payload.len(), PING, ACK, 0);
            self.out.extend_from_slice(payload);
        }
        Ok(())
    }

    fn going_away(&mut self, head: FrameHead, payload: &[u8]) -> Done {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if payload.len() < 8 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        let last = frames::number(payload).unwrap_or_default() & (u32::MAX >> 1);
        self.is_over = true;
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
                return Err(Reason::PROTOCOL_ERROR);
            }
            if self.send_window > LARGEST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR);
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
}

/// The number that is the whole payload.
fn number_of(payload: &[u8], bytes: usize) -> Result<u32, Reason> {
    frames::number(payload).filter(|_| payload.len() == bytes).ok_or(Reason::FRAME_SIZE_ERROR)
}
