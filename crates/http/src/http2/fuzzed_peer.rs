//! Any other end of a connection, and an oracle that keeps count of what it has sent and allowed.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use super::frame::*;
use super::*;
use crate::HttpLimits;
use crate::fuzzing::Given;

/// What waits to be sent at most: a full buffer, a piece of each stream's body, and heads.
const MOST_OUT: usize = 2 * MOST_OUT_BYTES + (64 << 10);

pub(super) struct Peer {
    pub(super) state: Rc<RefCell<Connection>>,
    role: Role,
    input: Vec<u8>,
    /// The part of its next frame that it has sent.
    unfinished: Vec<u8>,
    pieces: usize,
    /// What may be sent, by its words alone: on all streams, and on each.
    window: i64,
    first_window: i64,
    windows: HashMap<u32, i64>,
    /// The data that it has sent on each stream.
    sent: HashMap<u32, Vec<u8>>,
    /// The streams that it has ended. What it sends after that doesn't count.
    ended: HashSet<u32>,
}

impl Peer {
    /// The other end of one with this `role`. It sends its bytes in `pieces` of this size.
    pub(super) fn new(role: Role, pieces: usize) -> Self {
        Self {
            state: Rc::new(RefCell::new(Connection::new(role, &HttpLimits::default()))),
            role,
            input: Vec::new(),
            unfinished: Vec::new(),
            pieces,
            window: 65_535,
            first_window: 65_535,
            windows: HashMap::new(),
            sent: HashMap::new(),
            ended: HashSet::new(),
        }
    }

    /// A stream begins.
    pub(super) fn begin(&mut self, number: u32) {
        self.windows.insert(number, self.first_window);
        self.sent.remove(&number);
        self.ended.remove(&number);
    }

    /// The data that was sent on a stream.
    pub(super) fn sent_on(&self, number: u32) -> &[u8] {
        self.sent.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Usual payloads, or any. `block`: a usual one of HEADERS.
    pub(super) fn payload(kind: u8, block: &[u8], given: &mut Given<'_>) -> Vec<u8> {
        match kind {
            0 => block.to_vec(),
            2 => u32::from(given.byte()).to_be_bytes().to_vec(),
            3 => (u32::from(given.byte()) << 8).to_be_bytes().to_vec(),
            4 => vec![given.byte(); MOST_PAYLOAD],
            5 => [&[0, 4, 0, 0][..], given.bytes(2)].concat(),
            6 => vec![given.byte(); 8],
            7 => b"\x00\x01a\x01b".to_vec(),
            8 => [block, given.text()].concat(),
            _ => given.text().to_vec(),
        }
    }

    /// Sends a frame.
    pub(super) fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), Fault> {
        self.feed(&[&head(payload.len(), kind, flags, stream)[..], payload].concat())
    }

    /// Sends any bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        // What was sent before was allowed before.
        self.take_sent();
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
        let mut rest = said.strip_prefix(CLIENT_PREFACE).unwrap_or(&said);
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
            (HEADERS, _) if self.role == Role::Server && !self.windows.contains_key(&stream) => {
                self.begin(stream);
            }
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

    /// Takes what was written, and compares it with what is allowed.
    pub(super) fn take_sent(&mut self) {
        let mut state = self.state.borrow_mut();
        let length = state.unsent().len();
        let mut rest = state.unsent().strip_prefix(CLIENT_PREFACE).unwrap_or(state.unsent());
        while let Some(head) = FrameHead::of(rest) {
            assert!(head.length <= MOST_PAYLOAD, "longer than may be sent");
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

    /// The connection's memory is within its limits.
    pub(super) fn check(&self, most_streams: usize) {
        let state = self.state.borrow();
        assert!(state.unsent().len() <= MOST_OUT, "{} bytes wait to be sent", state.unsent().len());
        assert!(state.streams.len() <= most_streams);
        let mut held = 0;
        for (_, stream) in &state.streams {
            let stream = stream.borrow();
            assert!(stream.held <= self.role.stream_window() as usize && stream.data.len() <= stream.held);
            held += stream.held;
        }
        assert!(held <= self.role.connection_window() as usize);
    }
}
