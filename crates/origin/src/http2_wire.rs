//! The bytes of an HTTP/2 connection: reads frames, and sends what its streams have written.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use truepeer_http::HttpLimits;
use truepeer_http::http2::{Connection as Http2State, Fault, Role};
use truepeer_stream::reactor::Reactor;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::stream::Connection;

/// The state of a connection.
pub type SharedState = Rc<RefCell<Http2State>>;

/// A connection and its state, which its streams share.
pub struct Http2Wire<S> {
    /// The connection.
    pub stream: S,
    /// Its state.
    pub state: SharedState,
    input: Buffer,
    /// Bytes received so far.
    pub received: u64,
    /// The last [`Self::poll_send`] has sent everything.
    pub is_sent: bool,
    reactor: Reactor,
    since: Instant,
}

impl<S: Connection> Http2Wire<S> {
    /// Begins one.
    pub fn new(stream: S, role: Role, limits: &HttpLimits, reactor: &Reactor) -> Self {
        let state = Rc::new(RefCell::new(Http2State::new(role, limits)));
        let (input, since) = (Buffer::default(), reactor.now());
        Self { stream, state, input, received: 0, is_sent: true, reactor: reactor.clone(), since }
    }

    /// Reads as long as there is something and the other end takes its answers; `on_read` follows each read.
    /// `None`: the connection has ended; a fault: the other end violates the protocol.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, mut on_read: impl FnMut()) -> Poll<Option<Fault>> {
        while !self.state.borrow().is_owed_too_much() {
            if self.stream.poll_quiet(cx) {
                self.input.rest();
                return Poll::Pending;
            }
            let Ok(length @ 1..) = ready!(self.input.poll_fill(cx, &mut self.stream)) else {
                return Poll::Ready(None);
            };
            self.received += length as u64;
            let now = self.reactor.now().saturating_duration_since(self.since);
            match self.state.borrow_mut().receive(self.input.data(), now) {
                Ok(taken) => self.input.consume(taken),
                Err(fault) => return Poll::Ready(Some(fault)),
            }
            on_read();
        }
        Poll::Pending
    }

    /// Sends what waits to be sent.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_sent = false;
        let mut state = self.state.borrow_mut();
        let mut stream = Pin::new(&mut self.stream);
        while !state.unsent().is_empty() {
            let taken = ready!(stream.as_mut().poll_write(cx, state.unsent()));
            // A failed write by TLS may have sent a record.
            state.on_taken(*taken.as_ref().unwrap_or(&0));
            if taken? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        // TLS may hold a part of an earlier send.
        let flushed = ready!(stream.poll_flush(cx));
        self.is_sent = true;
        Poll::Ready(flushed)
    }

    /// Nothing can be sent any more. Before the other end closed the connection, it may have answered.
    pub fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.state.borrow_mut().discard_out();
            match self.poll_receive(cx, || {}) {
                // Reading stopped because `out` is full of answers, which nobody takes: drop them.
                Poll::Pending if self.state.borrow().is_owed_too_much() => {}
                // Reading stopped at this turn's allowance. The next turn reads on, up to the end.
                Poll::Pending if !self.stream.is_read_out() => return Poll::Pending,
                _ => return Poll::Ready(()),
            }
        }
    }
}
