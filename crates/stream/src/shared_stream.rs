//! One stream that two futures of one task use, one reading and the other writing.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::read_buffer::Buffer;
use crate::stream::Connection;

/// A stream that is borrowed only during a poll. Both futures must belong to one task, because a stream
/// stores one waker for each direction and a wake polls both futures.
#[derive(Debug)]
pub struct SharedStream<S>(RefCell<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> SharedStream<S> {
    /// Shares a stream.
    pub fn new(stream: S) -> Self {
        Self(RefCell::new(stream))
    }

    /// Writes and flushes all of `bytes`, and clears it.
    pub fn send(&self, bytes: &mut Vec<u8>) -> impl Future<Output = io::Result<()>> {
        let mut sent = 0;
        poll_fn(move |cx| {
            let mut stream = self.0.borrow_mut();
            let mut stream = Pin::new(&mut *stream);
            while sent < bytes.len() {
                match ready!(stream.as_mut().poll_write(cx, &bytes[sent..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    len => sent += len,
                }
            }
            ready!(stream.poll_flush(cx))?;
            bytes.clear();
            Poll::Ready(Ok(()))
        })
    }

    /// Gives direct access to the stream.
    pub fn with<T>(&self, work: impl FnOnce(Pin<&mut S>) -> T) -> T {
        work(Pin::new(&mut *self.0.borrow_mut()))
    }

    /// The stream.
    pub fn into_inner(self) -> S {
        self.0.into_inner()
    }

    /// Ends the sending direction.
    pub fn shutdown(&self) -> impl Future<Output = io::Result<()>> {
        poll_fn(|cx| Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx))
    }
}

impl<S: Connection> SharedStream<S> {
    /// Reads some bytes; 0 is the end of the stream.
    pub fn fill(&self, buffer: &mut Buffer) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_fill(cx, buffer))
    }

    /// See [`Self::fill`].
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_fill(&self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        let mut stream = self.0.borrow_mut();
        // Each poll of an exchange asks whether its client has left. Take no buffer for that: mostly nothing
        // has come.
        if stream.poll_quiet(cx) {
            buffer.rest();
            return Poll::Pending;
        }
        buffer.poll_fill(cx, &mut *stream)
    }

    /// See [`Connection::reset_when_closed`].
    pub fn reset_when_closed(&self) {
        self.0.borrow().reset_when_closed();
    }

    /// See [`Connection::unacknowledged`].
    pub fn unacknowledged(&self) -> usize {
        self.0.borrow().unacknowledged()
    }

    /// See [`Connection::is_broken`].
    pub fn is_broken(&self) -> bool {
        self.0.borrow().is_broken()
    }

    /// See [`Connection::discard`].
    pub fn discard(&self) {
        self.0.borrow_mut().discard();
    }

    /// See [`Connection::look_again`].
    pub fn look_again(&self) {
        self.0.borrow().look_again();
    }

    /// See [`Connection::is_read_out`].
    pub fn is_read_out(&self) -> bool {
        self.0.borrow().is_read_out()
    }
}
