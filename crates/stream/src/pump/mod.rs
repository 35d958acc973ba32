//! Moves bytes between two connections, for tunnels and for connections after 101 (WebSockets).
//!
//! ```text
//! downstream ──▶ Half up ──▶ upstream       an orderly end is passed on as one; anything else
//!            ◀── Half down ◀──              (a reset, TLS without close_notify, silence) resets both
//! ```

mod half;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use truepeer_session::budget::Budget;
use truepeer_session::counters::Shard;

use self::half::{Fault, PumpHalf};
use crate::open::OpenConnection;
use crate::reactor::Reactor;
use crate::shared_stream::SharedStream;
use crate::stream::Connection;

/// How long a reset waits for the other end to acknowledge the bytes before it.
const RESET_GRACE: Duration = Duration::from_secs(1);
/// No event reports the acknowledgement, so the kernel is asked this often.
const RESET_CHECK: Duration = Duration::from_millis(20);

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The sender's.
    Downstream,
    /// The backend's.
    Upstream,
}

/// How it ended.
#[derive(Debug)]
pub enum PumpEnd {
    /// Both directions ended in order.
    Finished,
    /// No bytes came for too long.
    Idle,
    /// The connection of this side broke.
    Broken(Side, io::Error),
}

/// How long no bytes may come; `None`: unlimited.
#[derive(Debug, Clone, Copy)]
pub struct IdleTimeouts {
    /// While both directions are open.
    pub both: Option<Duration>,
    /// Once one direction has ended.
    pub half: Option<Duration>,
}

/// The bytes on their way in both directions.
#[derive(Debug)]
pub struct Pump {
    up: PumpHalf,
    down: PumpHalf,
    /// The limit of bytes held for the slow ends of all connections together.
    backlog: Budget,
    counted: ByteCounts,
    /// Bytes that are counted there: up, down.
    bytes: (u64, u64),
}

/// Where delivered bytes are counted.
#[derive(Debug)]
pub struct ByteCounts {
    /// The listener's counters.
    pub shard: Arc<Shard>,
    /// The connection, as the operator sees it.
    pub open: Option<Rc<OpenConnection>>,
}

impl Pump {
    /// `up` and `down` were already read and are sent first. Delivered bytes are counted at once,
    /// because a connection may last for days.
    pub fn new(up: Vec<u8>, down: Vec<u8>, backlog: Budget, counted: ByteCounts) -> Self {
        let [up, down] = [up, down].map(PumpHalf::beginning_with);
        Self { up, down, backlog, counted, bytes: (0, 0) }
    }

    /// Bytes delivered: up, down.
    pub fn delivered(&self) -> (u64, u64) {
        (self.up.bytes(), self.down.bytes())
    }

    /// Moves bytes until both directions have ended, one connection breaks, or no bytes come for too long.
    /// Unless both have ended in order, closing the connections resets them; the same holds if this
    /// future is dropped.
    pub async fn run<A: Connection, B: Connection>(
        &mut self,
        reactor: &Reactor,
        timeouts: IdleTimeouts,
        downstream: &SharedStream<A>,
        upstream: &SharedStream<B>,
    ) -> PumpEnd {
        let mut reset = ResetUnlessFinished { downstream, upstream, has_finished: false };
        let timer = reactor.timer();
        let mut before = None;
        let end = poll_fn(|cx| {
            let moved = self.poll_halves(cx, downstream, upstream);
            self.count();
            match moved {
                Poll::Ready(Ok(())) => return Poll::Ready(PumpEnd::Finished),
                Poll::Ready(Err((side, error))) => return Poll::Ready(PumpEnd::Broken(side, error)),
                Poll::Pending => {}
            }
            let is_half = self.up.has_ended() || self.down.has_ended();
            let Some(limit) = (if is_half { timeouts.half } else { timeouts.both }) else {
                return Poll::Pending;
            };
            let now = Some((self.delivered(), is_half));
            if std::mem::replace(&mut before, now) != now {
                timer.arm(limit);
            }
            timer.poll_expired(cx).map(|()| PumpEnd::Idle)
        })
        .await;
        match &end {
            PumpEnd::Finished => reset.has_finished = true,
            PumpEnd::Idle => {}
            // Bytes sent before the break are delivered first, as they would be without truepeer.
            PumpEnd::Broken(Side::Downstream, _) => {
                let rest = deliver(reactor, &mut self.up, downstream, upstream, &self.backlog);
                let _ = reactor.timeout(RESET_GRACE, rest).await;
            }
            PumpEnd::Broken(Side::Upstream, _) => {
                let rest = deliver(reactor, &mut self.down, upstream, downstream, &self.backlog);
                let _ = reactor.timeout(RESET_GRACE, rest).await;
            }
        }
        self.count();
        end
    }

    fn count(&mut self) {
        let (before, now) = (self.bytes, self.delivered());
        let (up, down) = (now.0 - before.0, now.1 - before.1);
        self.counted.shard.add_bytes(up, down);
        if let Some(open) = &self.counted.open {
            open.add_bytes(up, down);
        }
        self.bytes = now;
    }

    fn poll_halves<A: Connection, B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        downstream: &SharedStream<A>,
        upstream: &SharedStream<B>,
    ) -> Poll<Result<(), (Side, io::Error)>> {
        let Self { up, down, backlog, .. } = self;
        downstream.with(|downstream| {
            upstream.with(|upstream| {
                let (downstream, upstream) = (downstream.get_mut(), upstream.get_mut());
                if let Poll::Ready(Err(fault)) = up.poll(cx, downstream, upstream, backlog) {
                    return Poll::Ready(Err(match fault {
                        Fault::Source(error) => (Side::Downstream, error),
                        Fault::Sink(error) => (Side::Upstream, error),
                    }));
                }
                if let Poll::Ready(Err(fault)) = down.poll(cx, upstream, downstream, backlog) {
                    return Poll::Ready(Err(match fault {
                        Fault::Source(error) => (Side::Upstream, error),
                        Fault::Sink(error) => (Side::Downstream, error),
                    }));
                }
                if up.has_ended() && down.has_ended() { Poll::Ready(Ok(())) } else { Poll::Pending }
            })
        })
    }
}

/// Passes on the remaining bytes of the broken `source`, and waits until the other end of `sink` has
/// acknowledged them.
async fn deliver<A: Connection, B: Connection>(
    reactor: &Reactor,
    half: &mut PumpHalf,
    source: &SharedStream<A>,
    sink: &SharedStream<B>,
    backlog: &Budget,
) {
    half.on_broken_source();
    let _ = poll_fn(|cx| {
        source.with(|source| sink.with(|sink| half.poll(cx, source.get_mut(), sink.get_mut(), backlog)))
    })
    .await;
    let _ = poll_fn(|cx| sink.with(|sink| Pin::new(sink.get_mut()).poll_flush(cx))).await;
    while sink.unacknowledged() > 0 {
        reactor.sleep(RESET_CHECK).await;
    }
}

/// An orderly end would claim that the data is complete.
struct ResetUnlessFinished<'a, A: Connection, B: Connection> {
    downstream: &'a SharedStream<A>,
    upstream: &'a SharedStream<B>,
    has_finished: bool,
}

impl<A: Connection, B: Connection> Drop for ResetUnlessFinished<'_, A, B> {
    fn drop(&mut self) {
        if !self.has_finished {
            // A reset could overtake the alert.
            if !self.downstream.is_broken() {
                self.downstream.reset_when_closed();
            }
            self.upstream.reset_when_closed();
        }
    }
}
