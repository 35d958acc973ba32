//! The use of one stream: a request and its response.

use std::cell::{Cell, RefCell};
use std::mem::{replace, swap};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connection::{Connection, Role};
use super::encode;
use super::frame::{self, DATA, END_STREAM};
use super::heads::head_bytes;
use super::reason::Reason;
use super::stream::{NotBegun, Stream, StreamError, keep};
use crate::fields::FieldList;
use crate::{HeadError, RequestHead, ResponseHead};

/// The use of one stream. Dropping it resets the stream, if it has not ended. One task must use it: it stores
/// one waker.
#[derive(Debug)]
pub struct StreamHandle {
    connection: Rc<RefCell<Connection>>,
    stream: Rc<RefCell<Stream>>,
    has_taken_head: Cell<bool>,
}

impl StreamHandle {
    /// Begins a request; `write` appends its head's fields. `is_whole`: it has no body.
    ///
    /// # Errors
    /// See [`NotBegun`].
    pub fn begin(
        connection: &Rc<RefCell<Connection>>,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), HeadError>,
    ) -> Result<Self, NotBegun> {
        let stream = connection.borrow_mut().begin(is_whole, write)?;
        Ok(Self { connection: Rc::clone(connection), stream, has_taken_head: Cell::new(false) })
    }

    /// The next request that a client has begun.
    #[must_use]
    pub fn next_request(connection: &Rc<RefCell<Connection>>) -> Option<Self> {
        let stream = connection.borrow_mut().requests.pop_front()?;
        connection.borrow_mut().handles += 1;
        Some(Self { connection: Rc::clone(connection), stream, has_taken_head: Cell::new(false) })
    }

    /// The stream's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.stream.borrow().id
    }

    /// A client's request, or why it must be answered with an error. Once.
    ///
    /// # Errors
    /// Its fault.
    pub fn take_request(&self) -> Result<RequestHead, HeadError> {
        let mut stream = self.stream.borrow_mut();
        match stream.refused {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut stream.request)),
        }
    }

    /// Whether a client's request is one of HEAD, also if it is refused.
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.stream.borrow().is_head
    }

    /// A response's head that may be used while a client's stream is served, with its memory.
    #[must_use]
    pub fn take_response(&self) -> ResponseHead {
        std::mem::take(&mut self.stream.borrow_mut().head)
    }

    /// Gives both back for their memory.
    pub fn give_back(&self, request: RequestHead, response: ResponseHead) {
        let mut stream = self.stream.borrow_mut();
        (stream.request, stream.head) = (request, response);
    }

    /// The next head of a response, 1xx or final. After the final one there is none.
    pub fn poll_head(&self, cx: &Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        let mut stream = self.stream.borrow_mut();
        if let Some(mut interim) = stream.interim.pop_front() {
            stream.interim_bytes = stream.interim_bytes.saturating_sub(head_bytes(&interim));
            swap(head, &mut interim);
            return Poll::Ready(Ok(()));
        }
        if stream.has_head && !self.has_taken_head.replace(true) {
            swap(head, &mut stream.head);
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = stream.error {
            return Poll::Ready(Err(error));
        }
        stream.wait(cx);
        Poll::Pending
    }

    /// Whether no data is left to take: the message from the other end is whole.
    #[must_use]
    pub fn is_received(&self) -> bool {
        let stream = self.stream.borrow();
        stream.is_received && stream.data.is_empty()
    }

    /// Whether trailers have come.
    #[must_use]
    pub fn has_trailers(&self) -> bool {
        !self.stream.borrow().trailers.is_empty()
    }

    /// Replaces `data` with the data that has come. `false`: the end.
    pub fn poll_data(&self, cx: &Context<'_>, data: &mut Vec<u8>) -> Poll<Result<bool, StreamError>> {
        let mut stream = self.stream.borrow_mut();
        data.clear();
        if !stream.data.is_empty() {
            swap(data, &mut stream.data);
            return Poll::Ready(Ok(true));
        }
        if let Some(error) = stream.bad_trailers {
            return Poll::Ready(Err(StreamError::BadHead(error)));
        }
        if stream.is_received {
            return Poll::Ready(Ok(false));
        }
        if let Some(error) = stream.error {
            return Poll::Ready(Err(error));
        }
        if stream.is_cut {
            return Poll::Ready(Err(StreamError::Cut));
        }
        stream.wait(cx);
        Poll::Pending
    }

    /// The trailers, once the message is whole.
    #[must_use]
    pub fn take_trailers(&self) -> FieldList {
        std::mem::take(&mut self.stream.borrow_mut().trailers)
    }

    /// This many bytes of data have been taken for good: opens the windows by them.
    pub fn release(&self, bytes: usize) {
        let (mut connection, mut stream) = (self.connection.borrow_mut(), self.stream.borrow_mut());
        stream.held = stream.held.saturating_sub(bytes);
        let out_before = connection.out.len();
        connection.release_of(&mut stream, bytes);
        connection.note_answers(out_before);
    }

    /// Ready once the stream has failed: the other end has reset it, or the connection has ended.
    pub fn poll_failed(&self, cx: &Context<'_>) -> Poll<StreamError> {
        let mut stream = self.stream.borrow_mut();
        if let Some(error) = stream.error {
            return Poll::Ready(error);
        }
        stream.wait(cx);
        Poll::Pending
    }

    /// How many of `wanted` bytes of data the other end takes now. `None`: it takes none any more.
    pub fn poll_room(&self, cx: &Context<'_>, wanted: usize) -> Poll<Option<usize>> {
        let (connection, mut stream) = (self.connection.borrow(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return Poll::Ready(None);
        }
        let window = usize::try_from(stream.send_window.min(connection.send_window)).unwrap_or(0);
        let room = wanted.min(window).min(connection.out_room());
        if room == 0 {
            return stream.wait_for_room(cx, wanted);
        }
        stream.waits_for_room = false;
        Poll::Ready(Some(room))
    }

    /// The bytes of DATA that the other end has taken so far, of all streams. They show its rate while this
    /// stream waits for others. `None`: it has closed this stream's window.
    #[must_use]
    pub fn taken_before_this(&self) -> Option<u64> {
        (self.stream.borrow().send_window > 0).then(|| self.connection.borrow().data_taken)
    }

    /// Waits until a head may be sent. `false`: the other end takes none any more.
    pub fn poll_head_room(&self, cx: &Context<'_>) -> Poll<bool> {
        let (connection, mut stream) = (self.connection.borrow(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return Poll::Ready(false);
        }
        if connection.out_room() == 0 {
            return stream.wait_for_room(cx, 0);
        }
        stream.waits_for_room = false;
        Poll::Ready(true)
    }

    /// Sends a head, as a block of fields. `ends`: it is the last of the stream.
    pub fn send_head(&self, block: &[u8], is_interim: bool, ends: bool) {
        let (mut connection, mut stream) = (self.connection.borrow_mut(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return;
        }
        stream.has_answered |= !is_interim;
        let start = connection.begin_block();
        connection.out.extend_from_slice(block);
        connection.end_block(start, if ends { END_STREAM } else { 0 }, stream.id);
        if ends {
            connection.end_sending(&mut stream);
        }
        connection.wake();
    }

    /// Sends data for which there is [room](Self::poll_room). `ends`: it is the last of the stream.
    pub fn send_data(&self, data: &[u8], ends: bool) {
        let (mut connection, mut stream) = (self.connection.borrow_mut(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return;
        }
        let bytes = i64::try_from(data.len()).unwrap_or(i64::MAX);
        stream.send_window -= bytes;
        connection.send_window -= bytes;
        connection.data_out += data.len();
        connection.allowance.on_sent(data.len());
        let last = data.len().div_ceil(frame::MOST_PAYLOAD).saturating_sub(1);
        for (at, piece) in data.chunks(frame::MOST_PAYLOAD).enumerate() {
            let flags = if ends && at == last { END_STREAM } else { 0 };
            frame::write_head(&mut connection.out, piece.len(), DATA, flags, stream.id);
            connection.out.extend_from_slice(piece);
        }
        if ends {
            if data.is_empty() {
                frame::write_head(&mut connection.out, 0, DATA, END_STREAM, stream.id);
            }
            connection.end_sending(&mut stream);
        }
        connection.wake();
    }

    /// Ends truepeer's message. `false`: the other end has stopped reading it.
    pub fn send_end(&self, trailers: &FieldList) -> bool {
        if trailers.is_empty() {
            let is_open = !self.is_sent();
            self.send_data(&[], true);
            return is_open;
        }
        let (mut connection, mut stream) = (self.connection.borrow_mut(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return false;
        }
        let start = connection.begin_block();
        encode::trailers(&mut connection.out, trailers);
        connection.end_block(start, END_STREAM, stream.id);
        connection.end_sending(&mut stream);
        connection.wake();
        true
    }

    /// Whether nothing more can be sent.
    pub(super) fn is_sent(&self) -> bool {
        let stream = self.stream.borrow();
        stream.is_sent || stream.error.is_some()
    }

    /// Resets the stream, if it has not ended.
    pub fn reset(&self, reason: Reason) {
        let (mut connection, mut stream) = (self.connection.borrow_mut(), self.stream.borrow_mut());
        if connection.find(stream.id).is_some() {
            connection.refuse(&mut stream, reason, StreamError::Closed);
        }
    }
}

impl Connection {
    fn end_sending(&mut self, stream: &mut Stream) {
        stream.is_sent = true;
        if stream.is_received || stream.is_cut {
            self.remove(stream.id);
        }
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let mut connection = self.connection.borrow_mut();
        let waited = {
            let mut stream = self.stream.borrow_mut();
            // Give back the window of all data, also of data that was taken but not delivered.
            let out_before = connection.out.len();
            connection.release(stream.held);
            if connection.remove(stream.id) {
                // RFC 9113 8.1: the response is whole, and the rest of the request is not needed.
                let is_answered = connection.role == Role::Server && stream.is_sent;
                let reason = if is_answered { Reason::NO_ERROR } else { Reason::CANCEL };
                connection.write_reset(stream.id, reason);
            }
            connection.note_answers(out_before);
            replace(&mut stream.waits_for_room, false)
        };
        connection.handles -= 1;
        if waited {
            connection.wake_for_room();
        }
        if connection.role == Role::Server {
            connection.wake();
        }
        drop(connection);
        keep(&self.stream);
    }
}
