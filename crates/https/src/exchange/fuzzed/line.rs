//! A simulated TCP connection: truepeer's end is a [`Connection`], the other end belongs to a party of the
//! schedule.
//!
//! It behaves as Linux does where exchanges depend on it. Bytes from before a reset can still be read. A
//! reset is reported once, to a read or to a write; reads find an orderly end from then on. A close with
//! unread bytes sends a reset.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use truepeer_stream::stream::Connection;

#[derive(Default)]
struct State {
    /// Bytes for truepeer that it has not read.
    arrived: VecDeque<u8>,
    has_ended: bool,
    is_reset: bool,
    /// The reset has not been reported.
    has_error: bool,
    /// As the reactor's: an event came since the last read that found nothing.
    readable: bool,
    reader: Option<Waker>,
    /// All that truepeer has sent.
    sent: Vec<u8>,
    /// How many of these bytes the other end has read.
    taken: usize,
    window: usize,
    /// The most bytes of one read or write.
    most: usize,
    is_refusing: bool,
    /// The last write found no room.
    is_tried: bool,
    writer: Option<Waker>,
    resets: bool,
    ends: Ends,
}

/// How truepeer has ended its direction.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ends {
    /// By a FIN.
    pub(super) in_order: bool,
    /// By a reset.
    pub(super) by_reset: bool,
    /// The descriptor is closed.
    pub(super) is_closed: bool,
}

/// The party's end.
#[derive(Clone, Default)]
pub(super) struct Line(Rc<RefCell<State>>);

/// truepeer's end.
pub(super) struct Near(Rc<RefCell<State>>);

impl Line {
    pub(super) fn new(window: usize, most: usize) -> (Self, Near) {
        let state = Rc::new(RefCell::new(State { window, most, ..State::default() }));
        (Self(Rc::clone(&state)), Near(state))
    }

    /// The party sends. Without [`Self::report`], truepeer gets no event for it.
    pub(super) fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().arrived.extend(bytes);
    }

    /// The party ends its direction.
    pub(super) fn end(&self) {
        self.0.borrow_mut().has_ended = true;
    }

    /// The party resets the connection.
    pub(super) fn reset(&self) {
        let mut state = self.0.borrow_mut();
        (state.is_reset, state.has_error) = (true, true);
    }

    pub(super) fn is_reset(&self) -> bool {
        self.0.borrow().is_reset
    }

    /// Reports what has come, and what can be sent.
    pub(super) fn report(&self) {
        let mut state = self.0.borrow_mut();
        let has_news = !state.arrived.is_empty() || state.has_ended || state.is_reset;
        state.readable |= has_news;
        let reader = state.reader.take_if(|_| has_news);
        let has_room = state.is_reset || state.room() > 0;
        state.is_refusing &= !has_room;
        let writer = state.writer.take_if(|_| has_room);
        drop(state);
        [reader, writer].into_iter().flatten().for_each(Waker::wake);
    }

    /// The party reads at most so many bytes.
    pub(super) fn take(&self, most: usize) {
        let mut state = self.0.borrow_mut();
        state.taken = state.sent.len().min(state.taken.saturating_add(most));
    }

    pub(super) fn resize(&self, window: usize, most: usize) {
        let mut state = self.0.borrow_mut();
        (state.window, state.most) = (window, most);
    }

    /// All that truepeer has sent, also what the party has not read.
    pub(super) fn sent<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&self.0.borrow().sent)
    }

    /// Whether truepeer has tried to send more than there was room for, and has not sent anything since.
    pub(super) fn is_tried(&self) -> bool {
        self.0.borrow().is_tried
    }

    pub(super) fn ends(&self) -> Ends {
        self.0.borrow().ends
    }
}

impl State {
    fn room(&self) -> usize {
        self.window.saturating_sub(self.sent.len() - self.taken)
    }
}

impl Connection for Near {
    fn reset_when_closed(&self) {
        self.0.borrow_mut().resets = true;
    }

    fn look_again(&self) {
        self.0.borrow_mut().readable = true;
    }

    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let mut state = self.0.borrow_mut();
        if !state.readable {
            state.reader = Some(cx.waker().clone());
        }
        !state.readable
    }

    fn is_read_out(&self) -> bool {
        !self.0.borrow().readable
    }

    fn may_be_writable(&self) -> bool {
        !self.0.borrow().is_refusing
    }

    fn unacknowledged(&self) -> usize {
        let state = self.0.borrow();
        state.sent.len() - state.taken
    }
}

impl AsyncRead for Near {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if !state.readable {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = state.most.min(buffer.remaining()).min(state.arrived.len());
        if length > 0 {
            let bytes: Vec<u8> = state.arrived.drain(..length).collect();
            buffer.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        // tcp_recvmsg: SOCK_DONE, which a FIN sets, comes before the error.
        if state.has_ended {
            return Poll::Ready(Ok(()));
        }
        if std::mem::take(&mut state.has_error) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.is_reset {
            return Poll::Ready(Ok(()));
        }
        state.readable = false;
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Near {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        assert!(!state.ends.in_order, "a write after the end");
        if std::mem::take(&mut state.has_error) {
            state.readable = true; // as reactor::TcpStream does
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.is_reset {
            state.readable = true;
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = state.room().min(state.most).min(bytes.len());
        if length == 0 {
            (state.is_refusing, state.is_tried) = (true, true);
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.is_tried = false;
        state.sent.extend_from_slice(&bytes[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if state.is_reset {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        }
        state.ends.in_order = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        let by_reset = state.resets || !state.arrived.is_empty();
        state.ends.is_closed = true;
        state.ends.by_reset |= by_reset;
        state.ends.in_order |= !by_reset && !state.is_reset;
    }
}
