//! One direction of a session.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite as _;
use truepeer_relay::budget::{Budget, Permit};

use crate::buffers::{self, BUFFER_BYTES};
use crate::stream::Stream;
use crate::tls::OUTGOING_BYTES;

/// What a sink that takes nothing makes us hold at most: what was read for it, and what was encrypted for it before.
const SLOW_BYTES: usize = BUFFER_BYTES + OUTGOING_BYTES;
/// What is read at once when all slow sinks together have reached their bound.
const SMALL_PIECE_BYTES: usize = 2 << 10;

/// Where a half's stream broke.
#[derive(Debug)]
pub(super) enum Fault {
    /// Where it is read from; everything that came before has been handed on.
    Source(io::Error),
    /// Where it is written to.
    Sink(io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Flowing,
    /// The source is broken: what it still gives is handed on, its end is not. The kernel reports a reset once, and an
    /// orderly end from then on.
    Broken,
    /// The source has ended; the sink is to be told.
    Ending,
    Ended,
}

/// Bytes on their way. Nothing is read while any are held, and no buffer is held while there are none.
///
/// All slow sinks together may hold so much ([`truepeer_relay::budget::Budgets::backlog_bytes`]). Beyond that, bytes stay
/// with the kernel until the sink has taken everything that came before, and then come in small pieces.
#[derive(Debug)]
pub(super) struct Half {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    stage: Stage,
    bytes: u64,
    /// For as long as the sink has not taken everything.
    slow: Option<Permit>,
}

impl Half {
    /// A half that begins with bytes that were read already.
    pub(super) fn beginning_with(first: Vec<u8>) -> Self {
        let to = first.len();
        Self { buffer: first, from: 0, to, stage: Stage::Flowing, bytes: 0, slow: None }
    }

    /// Bytes taken by the sink.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The source has been found broken, in this direction or in the other: see [`Half::poll`].
    pub(super) fn on_broken_source(&mut self) {
        if self.stage == Stage::Flowing {
            self.stage = Stage::Broken;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Moves what can be moved; ready when the end has been handed on, or a broken source gives no more.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        loop {
            ready!(self.poll_write(cx, sink, backlog))?;
            match self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                Stage::Ending => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(Fault::Sink)?;
                    self.stage = Stage::Ended;
                    self.slow = None;
                }
                Stage::Flowing => ready!(self.poll_read(cx, source, sink, backlog))?,
                Stage::Broken => {
                    ready!(self.poll_read(cx, source, sink, backlog))?;
                    if self.from == self.to {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }

    /// Hands on what is held.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Stream,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        while self.from < self.to {
            let rest = &self.buffer[self.from..self.to];
            let Poll::Ready(sent) = Pin::new(&mut *sink).poll_write(cx, rest) else {
                self.note_slow(backlog);
                return Poll::Pending;
            };
            let sent = sent.map_err(Fault::Sink)?;
            if sent == 0 {
                return Poll::Ready(Err(Fault::Sink(io::ErrorKind::WriteZero.into())));
            }
            self.from += sent;
            self.bytes += sent as u64;
        }
        buffers::give_back(std::mem::take(&mut self.buffer));
        Poll::Ready(Ok(()))
    }

    fn note_slow(&mut self, backlog: &Budget) {
        self.slow.get_or_insert_with(|| backlog.take_anyway(SLOW_BYTES));
    }

    /// Sees that what TLS has encrypted leaves.
    fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Stream,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        match Pin::new(sink).poll_flush(cx) {
            Poll::Ready(flushed) => {
                self.slow = None;
                Poll::Ready(flushed.map_err(Fault::Sink))
            }
            Poll::Pending => {
                self.note_slow(backlog);
                Poll::Pending
            }
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        let is_pressed = !backlog.has(SLOW_BYTES);
        if is_pressed {
            ready!(self.poll_flush(cx, sink, backlog))?;
        }
        let mut buffer = buffers::take();
        let most = if is_pressed { SMALL_PIECE_BYTES } else { buffer.len() };
        let read = source.poll_read_into(cx, &mut buffer[..most]);
        match read {
            Poll::Ready(Ok(length)) if length > 0 => {
                (self.buffer, self.from, self.to) = (buffer, 0, length);
                return Poll::Ready(Ok(()));
            }
            _ => buffers::give_back(buffer),
        }
        match read {
            Poll::Ready(Ok(_)) => {
                if self.stage == Stage::Flowing {
                    self.stage = Stage::Ending;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                self.on_broken_source();
                Poll::Ready(Err(Fault::Source(error)))
            }
            // What TLS has encrypted must not wait for more to come.
            Poll::Pending => match self.poll_flush(cx, sink, backlog) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        buffers::give_back(std::mem::take(&mut self.buffer));
    }
}
