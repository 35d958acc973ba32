//! Any origin, and any use of its connection. The oracle keeps count of what each side was allowed and sent.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::encode::indexed;
use super::frame::*;
use super::given::Given;
use super::*;
use crate::fields::FieldList;
use crate::{HttpLimits, ResponseHead};

const STREAM_WINDOW: usize = 128 << 10;
/// What waits to be sent at most: a full buffer, a piece of each stream's body, and heads.
const MOST_OUT: usize = 2 * MOST_OUT_BYTES + (64 << 10);
/// Requests at a time.
const MOST_REQUESTS: usize = 6;

/// Each byte is a step: a frame of the origin's, a request, data, an end.
///
/// # Panics
/// More is sent than the origin allows; a request gets bytes that were not sent for it; memory grows beyond
/// its limits; a request doesn't end with its connection; something that was written is no frame.
pub fn any_origin(bytes: &[u8]) {
    let mut given = Given(bytes);
    let pieces = 1 + usize::from(given.byte());
    let mut bed = Bed::new(pieces);
    // Without SETTINGS at first, sometimes.
    let mut result = if given.byte() & 7 == 0 { Ok(()) } else { bed.say(SETTINGS, 0, 0, &[]) };
    while result.is_ok() && !given.is_empty() {
        result = bed.step(&mut given);
        bed.check();
    }
    if let Err(fault) = result {
        bed.state.borrow_mut().go_away(fault.reason());
    }
    bed.end();
}

struct Request {
    number: u32,
    stream: StreamHandle,
    has_head: bool,
    received: Vec<u8>,
}

struct Bed {
    state: Rc<RefCell<Connection>>,
    input: Vec<u8>,
    /// What the origin has sent of its next frame.
    unfinished: Vec<u8>,
    pieces: usize,
    requests: Vec<Request>,
    /// What may be sent, by the origin's words alone: on all streams, and on each.
    window: i64,
    first_window: i64,
    windows: HashMap<u32, i64>,
    /// The data that the origin sent on each stream.
    sent: HashMap<u32, Vec<u8>>,
    /// The streams that the origin has ended. What it sends after that doesn't count.
    ended: HashSet<u32>,
    next: u32,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Bed {
    fn new(pieces: usize) -> Self {
        Self {
            state: Rc::new(RefCell::new(Connection::new(Role::Client, &HttpLimits::default()))),
            input: Vec::new(),
            unfinished: Vec::new(),
            pieces,
            requests: Vec::new(),
            window: 65_535,
            first_window: 65_535,
            windows: HashMap::new(),
            sent: HashMap::new(),
            ended: HashSet::new(),
            next: 1,
        }
    }

    fn step(&mut self, given: &mut Given<'_>) -> Result<(), Fault> {
        let step = given.byte();
        match step & 15 {
            0..=8 => {
                let (flags, stream) = (given.byte(), u32::from(given.byte() & 15));
                let payload = self.payload(step >> 4, given);
                self.say((step & 15) + u8::from(step & 15 >= PUSH_PROMISE), flags, stream, &payload)
            }
            9 => self.feed(given.text()),
            10 | 11 => {
                self.begin(step & 16 != 0);
                Ok(())
            }
            12 => {
                self.take();
                Ok(())
            }
            13 => {
                self.send(usize::from(given.byte()) << 8, step & 16 != 0);
                Ok(())
            }
            14 if !self.requests.is_empty() => {
                let at = usize::from(step >> 4) % self.requests.len();
                drop(self.requests.remove(at));
                Ok(())
            }
            _ => {
                self.sent_frames();
                Ok(())
            }
        }
    }

    /// Usual payloads, or any.
    fn payload(&self, kind: u8, given: &mut Given<'_>) -> Vec<u8> {
        match kind {
            0 => vec![0x88],
            1 => b"\x08\x03103".to_vec(),
            2 => u32::from(given.byte()).to_be_bytes().to_vec(),
            3 => (u32::from(given.byte()) << 8).to_be_bytes().to_vec(),
            4 => vec![given.byte(); MOST_PAYLOAD],
            5 => [&[0, 4, 0, 0][..], given.bytes(2)].concat(),
            6 => vec![given.byte(); 8],
            7 => b"\x00\x01a\x01b".to_vec(),
            8 => [&[0x88][..], given.text()].concat(),
            _ => given.text().to_vec(),
        }
    }

    /// The origin sends a frame.
    fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), Fault> {
        self.feed(&[&head(payload.len(), kind, flags, stream)[..], payload].concat())
    }

    /// The origin sends any bytes, in pieces.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        // What was sent before was allowed before.
        self.sent_frames();
        self.note_frames(bytes);
        for piece in bytes.chunks(self.pieces) {
            self.input.extend_from_slice(piece);
            let taken = self.state.borrow_mut().receive(&self.input, Duration::ZERO)?;
            self.input.drain(..taken);
        }
        assert!(self.input.len() <= HEAD_BYTES + MOST_PAYLOAD, "whole frames are left in the buffer");
        Ok(())
    }

    /// After any bytes, the next frame may be the payload of one that they began.
    fn note_frames(&mut self, bytes: &[u8]) {
        let mut said = std::mem::take(&mut self.unfinished);
        said.extend_from_slice(bytes);
        let mut rest = &said[..];
        while let Some((&[high, middle, low, kind, flags, a, b, c, d], after)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let Some((payload, after)) = after.split_at_checked(length) else { break };
            self.note(kind, flags, u32::from_be_bytes([a & 0x7f, b, c, d]), payload);
            rest = after;
        }
        self.unfinished = rest.to_vec();
    }

    fn note(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        match (kind, payload) {
            (DATA, _) if !self.ended.contains(&stream) => {
                let data = without_padding(payload, flags & PADDED != 0).unwrap_or_default();
                self.sent.entry(stream).or_default().extend_from_slice(data);
            }
            (WINDOW_UPDATE, &[a, b, c, d]) => {
                let more = i64::from(u32::from_be_bytes([a & 0x7f, b, c, d]));
                match stream {
                    0 => self.window += more,
                    _ => *self.windows.entry(stream).or_default() += more,
                }
            }
            (SETTINGS, _) if stream == 0 && flags & ACK == 0 && payload.len().is_multiple_of(6) => {
                for setting in payload.chunks(6) {
                    let &[0, 4, a, b, c, d] = setting else { continue };
                    let window = i64::from(u32::from_be_bytes([a, b, c, d]));
                    for open in self.windows.values_mut() {
                        *open += window - self.first_window;
                    }
                    self.first_window = window;
                }
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            self.ended.insert(stream);
        }
    }

    fn begin(&mut self, is_whole: bool) {
        if self.requests.len() >= MOST_REQUESTS || !self.state.borrow().has_room(0) {
            return;
        }
        let begun = StreamHandle::begin(&self.state, is_whole, |block| {
            indexed(block, 2);
            Ok(())
        });
        let Ok(stream) = begun else { return };
        let number = self.next;
        self.next += 2;
        self.windows.insert(number, self.first_window);
        self.sent.remove(&number);
        self.ended.remove(&number);
        self.requests.push(Request { number, stream, has_head: false, received: Vec::new() });
    }

    fn take(&mut self) {
        for request in &mut self.requests {
            let state = request.take();
            let sent = self.sent.get(&request.number).map_or(&[][..], Vec::as_slice);
            assert!(sent.starts_with(&request.received), "bytes that were not sent for this request");
            assert!(state != Taken::Whole || sent == request.received, "a whole response lacks bytes");
        }
    }

    fn send(&mut self, bytes: usize, ends: bool) {
        for Request { stream, .. } in &self.requests {
            if let Poll::Ready(Some(room)) = stream.poll_room(&cx(), bytes.max(1)) {
                assert!((1..=bytes.max(1)).contains(&room));
                stream.send_data(&vec![0; room], false);
            }
            if ends {
                stream.send_end(&FieldList::default());
            }
        }
    }

    /// Takes what was written, and compares it with what the origin allows.
    fn sent_frames(&mut self) {
        let mut state = self.state.borrow_mut();
        let length = state.unsent().len();
        let mut rest = state.unsent().strip_prefix(CLIENT_PREFACE).unwrap_or(state.unsent());
        while let Some(head) = FrameHead::of(rest) {
            assert!(head.length <= MOST_PAYLOAD, "longer than the origin takes");
            rest = rest.get(HEAD_BYTES + head.length..).expect("whole frames are written");
            if head.kind == DATA {
                let bytes = i64::try_from(head.length).unwrap_or(i64::MAX);
                let window = self.windows.get_mut(&head.stream).expect("a stream that was begun");
                assert!(bytes <= self.window && (bytes == 0 || bytes <= *window), "more than the windows");
                self.window -= bytes;
                *window -= bytes;
            }
        }
        assert!(rest.is_empty(), "whole frames are written");
        state.on_taken(length);
    }

    fn check(&self) {
        let state = self.state.borrow();
        assert!(state.unsent().len() <= MOST_OUT, "{} bytes wait to be sent", state.unsent().len());
        assert!(state.streams.len() <= MOST_REQUESTS);
        for (_, stream) in &state.streams {
            let stream = stream.borrow();
            assert!(stream.held <= STREAM_WINDOW && stream.data.len() <= stream.held);
        }
    }

    /// The connection ends, and each request with it.
    fn end(mut self) {
        self.state.borrow_mut().fail_all(StreamError::Closed);
        self.take();
        for request in &mut self.requests {
            assert!(request.take() != Taken::GoesOn, "a request goes on without its connection");
        }
        assert!(self.state.borrow().is_done());
    }
}

/// What is known of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    GoesOn,
    /// The origin has ended it in order.
    Whole,
    Failed,
}

impl Request {
    /// Takes all that has come.
    fn take(&mut self) -> Taken {
        let mut head = ResponseHead::default();
        while !self.has_head {
            match self.stream.poll_head(&cx(), &mut head) {
                Poll::Ready(Ok(())) => self.has_head = head.status >= 200,
                Poll::Ready(Err(_)) => return Taken::Failed,
                Poll::Pending => return Taken::GoesOn,
            }
        }
        let mut data = Vec::new();
        loop {
            match self.stream.poll_data(&cx(), &mut data) {
                Poll::Ready(Ok(true)) => {
                    self.received.extend_from_slice(&data);
                    self.stream.release(data.len());
                }
                Poll::Ready(Ok(false)) => return Taken::Whole,
                Poll::Ready(Err(_)) => return Taken::Failed,
                Poll::Pending => return Taken::GoesOn,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::given::steps;

    proptest! {
        #[test]
        fn any_bytes_are_an_origin_that_is_survived(bytes in steps()) {
            super::any_origin(&bytes);
        }
    }
}
