//! The bytes that wait to be sent: header blocks are added, and streams take turns when there is room for
//! more.

use super::connection::Connection;
use super::encode::NO_TABLE;
use super::frame::{self, CONTINUATION, END_HEADERS, HEAD_BYTES, HEADERS, MOST_PAYLOAD};

/// While so many bytes wait to be sent, no body's data is added, and no response begins. While so many of
/// them answer the other end's frames, nothing should be read. Two TLS records.
pub const MOST_OUT_BYTES: usize = 32 << 10;
/// An idle connection keeps no more than this of that memory.
const KEPT_BYTES: usize = 4 << 10;

impl Connection {
    /// Begins a header block in `out`, which then ends with it.
    pub(super) fn begin_block(&mut self) -> usize {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEAD_BYTES]);
        if std::mem::take(&mut self.is_first_block) {
            self.out.push(NO_TABLE);
        }
        start
    }

    /// Makes frames of the block that began at `start`: as many as it needs.
    pub(super) fn end_block(&mut self, start: usize, flags: u8, stream: u32) {
        let first = start + HEAD_BYTES;
        let length = self.out.len() - first;
        if length <= MOST_PAYLOAD {
            let head = frame::head(length, HEADERS, flags | END_HEADERS, stream);
            self.out[start..first].copy_from_slice(&head);
            return;
        }
        let block = self.out.split_off(first);
        self.out.truncate(start);
        let last = block.len().div_ceil(MOST_PAYLOAD) - 1;
        for (at, piece) in block.chunks(MOST_PAYLOAD).enumerate() {
            let (kind, flags) = if at == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
            let end = if at == last { END_HEADERS } else { 0 };
            frame::write_head(&mut self.out, piece.len(), kind, flags | end, stream);
            self.out.extend_from_slice(piece);
        }
    }

    /// What waits to be sent.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.out.get(self.sent..).unwrap_or_default()
    }

    /// This many bytes of [`Self::unsent`] were taken, and the other end may read them.
    pub fn on_taken(&mut self, bytes: usize) {
        self.first_unsent = self.next;
        self.sent += bytes;
        let data = bytes.min(self.data_out);
        self.data_out -= data;
        self.data_taken += data as u64;
        if self.sent < self.out.len() {
            return;
        }
        self.discard_out();
        if self.out.capacity() > KEPT_BYTES && self.streams.is_empty() {
            self.out = Vec::new();
        }
        self.wake_for_room();
    }

    /// Nobody takes what waits to be sent.
    pub fn discard_out(&mut self) {
        self.out.clear();
        (self.sent, self.answers, self.data_out) = (0, 0, 0);
    }

    /// Notes what was written in answer to the other end since `out` had this length.
    pub(super) fn note_answers(&mut self, out_before: usize) {
        self.answers += self.out.len().saturating_sub(out_before);
    }

    /// Whether the other end must take answers before it may cause more of them. Requests don't count: an
    /// origin may take none of them before it has written its responses.
    #[must_use]
    pub fn is_owed_too_much(&self) -> bool {
        self.answers >= MOST_OUT_BYTES
    }

    /// Whether a request can be begun where so many are open.
    #[must_use]
    pub fn has_room(&self, open: u32) -> bool {
        // An origin that reads nothing gets no more to read.
        !self.is_over() && open < self.most_streams() && self.unsent().len() < 2 * MOST_OUT_BYTES
    }

    /// How many more bytes may wait to be sent.
    pub(super) fn out_room(&self) -> usize {
        MOST_OUT_BYTES.saturating_sub(self.unsent().len())
    }

    /// Wakes the streams that wait for room: the urgent ones first (RFC 9218), and of those that take turns
    /// each time another one. The first ones may take all of it. No more are woken than can use it: data
    /// whose window is closed must not keep the heads of others waiting.
    pub(super) fn wake_for_room(&mut self) {
        let (last_first, all) = (self.woken_first, self.send_window);
        let mut waiting: Vec<_> = self
            .streams
            .iter()
            .filter_map(|(id, stream)| {
                let stream = stream.borrow();
                let usable = stream.wanted.min(usize::try_from(stream.send_window.min(all)).unwrap_or(0));
                let may_send = stream.waits_for_room && (usable > 0 || stream.wanted == 0);
                let turn = (stream.priority.is_incremental && *id <= last_first, *id);
                may_send.then(|| (stream.priority, turn, usable))
            })
            .collect();
        waiting.sort_unstable();
        let mut room = self.out_room();
        for (at, (_, (_, id), usable)) in waiting.into_iter().enumerate() {
            let Some(stream) = self.find(id) else { continue };
            if at == 0 {
                self.woken_first = id;
            }
            stream.borrow().wake();
            room = room.saturating_sub(usable);
            if room == 0 {
                return;
            }
        }
    }
}
