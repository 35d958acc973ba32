//! One request's stream.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::swap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2::Reason;
use truepeer_http::fields::FieldList;
use truepeer_http::{HeadError, ResponseHead};

use super::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM};
use super::head::head_bytes;
use super::hpack::write_field;
use super::state::{MOST_OUT_BYTES, STREAM_WINDOW, State};

/// How much memory an ended stream keeps for the next one's data.
const KEPT_BYTES: usize = 20 << 10;
/// Ended streams that a thread keeps for the next ones: at most 1.2 MiB.
const MOST_KEPT: usize = 48;

thread_local! {
    static KEPT: RefCell<Vec<Rc<RefCell<Stream>>>> = const { RefCell::new(Vec::new()) };
}

/// A stream to [begin](Stream::begin).
pub(super) fn take() -> Rc<RefCell<Stream>> {
    KEPT.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of an ended stream that nobody else has.
fn keep(stream: &Rc<RefCell<Stream>>) {
    if Rc::strong_count(stream) > 1 {
        return;
    }
    stream.borrow_mut().clear();
    // While a thread ends, its thread-local values may already be destroyed.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.len() < MOST_KEPT {
            kept.push(Rc::clone(stream));
        }
    });
}

/// Why a stream gives no whole response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum StreamError {
    /// The origin has not processed it: it is ending the connection (GOAWAY), or it has ended it before anything of the request was sent.
    Unprocessed,
    /// The origin reset it.
    Reset(Reason),
    /// The origin violated the protocol, and truepeer reset it.
    Violation(Reason),
    /// The head of its response is beyond the limits, and truepeer reset it.
    BadHead(HeadError),
    /// The connection has ended.
    Closed,
}

/// Why a request was not begun.
#[derive(Debug)]
pub(in super::super) enum NotBegun {
    /// The connection accepts no more requests.
    Refused,
    /// HTTP/2 can't carry it.
    Invalid(HeadError),
}

/// What the connection knows about a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// The head that is being read, then the final one.
    pub(super) head: ResponseHead,
    /// 1xx heads that nobody has taken.
    pub(super) interim: VecDeque<ResponseHead>,
    /// What they count against the limit of a head.
    pub(super) interim_bytes: usize,
    pub(super) has_head: bool,
    /// Data that nobody has taken.
    pub(super) data: Vec<u8>,
    pub(super) trailers: FieldList,
    /// The response is whole.
    pub(super) is_received: bool,
    /// Nothing more is sent: the request is whole, or the origin wants no more of it.
    pub(super) is_sent: bool,
    pub(super) error: Option<StreamError>,
    /// The bytes that the origin may send.
    pub(super) receive_window: u32,
    /// Data that came and was not [released](RequestStream::release).
    pub(super) held: usize,
    /// Bytes that were released and not yet given back to the origin's window.
    pub(super) taken: u32,
    /// The bytes that may be sent; below 0 after the origin has reduced its window.
    pub(super) send_window: i64,
    pub(super) waits_for_room: bool,
    waker: Option<Waker>,
}

impl Stream {
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// As new, with its memory.
    pub(super) fn begin(&mut self, id: u32, send_window: i64, is_sent: bool) {
        self.clear();
        self.id = id;
        self.is_sent = is_sent;
        self.send_window = send_window;
        self.receive_window = STREAM_WINDOW;
    }

    fn clear(&mut self) {
        self.head.fields.rest();
        self.trailers.rest();
        self.interim.clear();
        self.interim_bytes = 0;
        self.data.clear();
        if self.data.capacity() > KEPT_BYTES {
            self.data = Vec::new();
        }
        (self.has_head, self.is_received, self.waits_for_room) = (false, false, false);
        (self.error, self.held, self.taken, self.waker) = (None, 0, 0, None);
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }
}

/// A request's handle of its stream. Dropping it resets the stream, if it has not ended.
#[derive(Debug)]
pub(in super::super) struct RequestStream {
    state: Rc<RefCell<State>>,
    stream: Rc<RefCell<Stream>>,
    has_taken_head: Cell<bool>,
}

impl RequestStream {
    /// Begins a request; `write` appends its head's fields. `is_whole`: it has no body.
    ///
    /// # Errors
    /// See [`NotBegun`].
    pub(in super::super) fn begin(
        shared: &Rc<RefCell<State>>,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), HeadError>,
    ) -> Result<Self, NotBegun> {
        let stream = shared.borrow_mut().begin(is_whole, write)?;
        Ok(Self { state: Rc::clone(shared), stream, has_taken_head: Cell::new(false) })
    }

    /// The next head, 1xx or final. After the final one there is none.
    pub(in super::super) fn poll_head(
        &self,
        cx: &Context<'_>,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), StreamError>> {
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

    /// Whether no data of the response is left to take.
    pub(in super::super) fn is_received(&self) -> bool {
        let stream = self.stream.borrow();
        stream.is_received && stream.data.is_empty()
    }

    /// Whether trailers have come.
    pub(in super::super) fn has_trailers(&self) -> bool {
        !self.stream.borrow().trailers.is_empty()
    }

    /// Replaces `data` with the data that has come. `false`: the end.
    pub(in super::super) fn poll_data(
        &self,
        cx: &Context<'_>,
        data: &mut Vec<u8>,
    ) -> Poll<Result<bool, StreamError>> {
        let mut stream = self.stream.borrow_mut();
        data.clear();
        if !stream.data.is_empty() {
            swap(data, &mut stream.data);
            return Poll::Ready(Ok(true));
        }
        if stream.is_received {
            return Poll::Ready(Ok(false));
        }
        if let Some(error) = stream.error {
            return Poll::Ready(Err(error));
        }
        stream.wait(cx);
        Poll::Pending
    }

    /// The trailers, once the response is whole.
    pub(in super::super) fn take_trailers(&self) -> FieldList {
        std::mem::take(&mut self.stream.borrow_mut().trailers)
    }

    /// The client has taken this many bytes of data: opens the windows by them.
    pub(in super::super) fn release(&self, bytes: usize) {
        let (mut state, mut stream) = (self.state.borrow_mut(), self.stream.borrow_mut());
        stream.held = stream.held.saturating_sub(bytes);
        let out_before = state.out.len();
        state.release_of(&mut stream, bytes);
        state.note_answers(out_before);
    }

    /// How many of `wanted` bytes the origin takes now. `None`: it takes none any more.
    pub(in super::super) fn poll_room(&self, cx: &Context<'_>, wanted: usize) -> Poll<Option<usize>> {
        let (state, mut stream) = (self.state.borrow(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return Poll::Ready(None);
        }
        let window = usize::try_from(stream.send_window.min(state.send_window)).unwrap_or(0);
        let room = wanted.min(window).min(MOST_OUT_BYTES.saturating_sub(state.out.len()));
        stream.waits_for_room = room == 0;
        if room == 0 {
            stream.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(Some(room))
    }

    /// Sends data for which there is [room](Self::poll_room).
    pub(in super::super) fn send_data(&self, data: &[u8]) {
        let (mut state, mut stream) = (self.state.borrow_mut(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return;
        }
        let bytes = i64::try_from(data.len()).unwrap_or(i64::MAX);
        stream.send_window -= bytes;
        state.send_window -= bytes;
        for piece in data.chunks(frames::MOST_PAYLOAD) {
            frames::write_head(&mut state.out, piece.len(), DATA, 0, stream.id);
            state.out.extend_from_slice(piece);
        }
        state.wake();
    }

    /// Ends the request. `false`: the origin has stopped reading it.
    pub(in super::super) fn send_end(&self, trailers: &FieldList) -> bool {
        let (mut state, mut stream) = (self.state.borrow_mut(), self.stream.borrow_mut());
        if stream.is_sent || stream.error.is_some() {
            return false;
        }
        stream.is_sent = true;
        if trailers.is_empty() {
            frames::write_head(&mut state.out, 0, DATA, END_STREAM, stream.id);
        } else {
            let mut block = Vec::new();
            for field in trailers.iter() {
                write_field(&mut block, &field.spelt.to_ascii_lowercase(), field.value);
            }
            state.write_block(&block, END_STREAM, stream.id);
        }
        if stream.is_received {
            state.remove(stream.id);
        }
        state.wake();
        true
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        {
            let stream = self.stream.borrow();
            // Give back the window of all data, also of data that was taken but not delivered.
            state.release(stream.held);
            if state.remove(stream.id) {
                frames::write_number(&mut state.out, RST_STREAM, stream.id, Reason::CANCEL.into());
                state.wake();
            }
        }
        keep(&self.stream);
    }
}

/// Flags of a head.
pub(super) fn head_flags(is_whole: bool) -> (u8, u8) {
    (HEADERS, if is_whole { END_HEADERS | END_STREAM } else { END_HEADERS })
}
