//! What a connection knows about a stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::priority::Priority;
use super::reason::Reason;
use crate::fields::FieldList;
use crate::{HeadError, RequestHead, ResponseHead};

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
pub(super) fn keep(stream: &Rc<RefCell<Stream>>) {
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

/// Why a stream gives no whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The origin has not processed it: it is ending the connection (GOAWAY), or it has ended it before
    /// anything of the request was sent.
    Unprocessed,
    /// The other end reset it.
    Reset(Reason),
    /// The other end violated the protocol, and truepeer reset it.
    Violation(Reason),
    /// Its head or its trailers are beyond the limits.
    BadHead(HeadError),
    /// The client has ended its request before the announced length, after the response had begun.
    Cut,
    /// The connection has ended.
    Closed,
}

/// Why a request was not begun.
#[derive(Debug)]
pub enum NotBegun {
    /// The connection accepts no more requests.
    Refused,
    /// HTTP/2 can't carry it.
    Invalid(HeadError),
}

/// What the connection knows about a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// A client's request.
    pub(super) request: RequestHead,
    /// Why it must be answered with an error.
    pub(super) refused: Option<HeadError>,
    /// Its method is HEAD.
    pub(super) is_head: bool,
    /// An origin's head that is being read, then the final one. Without use for a client's stream, whose
    /// handle lends it.
    pub(super) head: ResponseHead,
    /// 1xx heads that nobody has taken.
    pub(super) interim: VecDeque<ResponseHead>,
    /// What they count against the limit of a head.
    pub(super) interim_bytes: usize,
    /// The final head was received.
    pub(super) has_head: bool,
    /// Data that nobody has taken.
    pub(super) data: Vec<u8>,
    /// What a request still has to send of the length that it has announced.
    pub(super) announced: Option<u64>,
    pub(super) trailers: FieldList,
    /// A request's trailers are beyond the limits: its answer is an error.
    pub(super) bad_trailers: Option<HeadError>,
    /// The message from the other end is whole.
    pub(super) is_received: bool,
    /// See [`StreamError::Cut`].
    pub(super) is_cut: bool,
    /// The response has begun.
    pub(super) has_answered: bool,
    /// Nothing more is sent: truepeer's message is whole, or the other end wants no more of it.
    pub(super) is_sent: bool,
    pub(super) error: Option<StreamError>,
    /// The bytes that the other end may send.
    pub(super) receive_window: u32,
    /// Data that came and was not [released](super::StreamHandle::release).
    pub(super) held: usize,
    /// Bytes that were released and not yet given back to the other end's window.
    pub(super) taken: u32,
    /// The bytes that may be sent; below 0 after the other end has reduced its window.
    pub(super) send_window: i64,
    pub(super) waits_for_room: bool,
    /// How many bytes it waits to send; 0: a head.
    pub(super) wanted: usize,
    pub(super) priority: Priority,
    waker: Option<Waker>,
}

impl Stream {
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// As new, with its memory.
    pub(super) fn begin(&mut self, id: u32, receive_window: u32, send_window: i64) {
        self.clear();
        self.id = id;
        self.is_sent = false;
        self.send_window = send_window;
        self.receive_window = receive_window;
    }

    fn clear(&mut self) {
        self.request.fields.rest();
        self.head.fields.rest();
        self.trailers.rest();
        self.interim.clear();
        self.interim_bytes = 0;
        self.data.clear();
        if self.data.capacity() > KEPT_BYTES {
            self.data = Vec::new();
        }
        (self.has_head, self.is_received, self.is_cut, self.has_answered) = (false, false, false, false);
        (self.refused, self.announced, self.error, self.waker) = (None, None, None, None);
        (self.is_head, self.bad_trailers) = (false, None);
        (self.held, self.taken, self.waits_for_room, self.wanted) = (0, 0, false, 0);
        self.priority = Priority::default();
    }

    pub(super) fn wait(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    pub(super) fn wait_for_room<T>(&mut self, cx: &Context<'_>, wanted: usize) -> Poll<T> {
        (self.waits_for_room, self.wanted) = (true, wanted);
        self.wait(cx);
        Poll::Pending
    }
}
