//! Two connections and the bytes between them, whatever the bytes mean: tunnels, and connections after 101 (WebSockets).
//!
//! ```text
//! downstream ──▶ Half up ──▶ upstream       each end is passed on as what it was: an orderly end as one, everything else
//!            ◀── Half down ◀──              (a reset, TLS without close_notify, silence) as a reset of both
//! ```

mod half;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use truepeer_session::budget::Budget;

use self::half::{Fault, PumpHalf};
use crate::exchange::SharedStream;
use crate::reactor::Reactor;
use crate::stream::Connection;

/// How long a reset waits for the bytes before it to be taken by the other end.
const RESET_GRACE: Duration = Duration::from_secs(1);
/// No event tells when they are, so the kernel is asked this often.
const RESET_CHECK: Duration = Duration::from_millis(20);

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Downstream,
    Upstream,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum PumpEnd {
    /// Both directions ended in order.
    Finished,
    /// Nothing came for too long.
    Idle,
    /// The connection of this side broke.
    Broken(Side, io::Error),
}

/// How long nothing may come; `None`: for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleTimeouts {
    /// While both directions are open.
    pub(crate) both: Option<Duration>,
    /// Once one has ended.
    pub(crate) half: Option<Duration>,
}

/// The bytes on their way in both directions.
#[derive(Debug)]
pub(crate) struct Pump {
    up: PumpHalf,
    down: PumpHalf,
    /// What slow ends of all connections together may make us hold.
    backlog: Budget,
}

impl Pump {
    /// `up` and `down` were read already: they go first.
    pub(crate) fn new(up: Vec<u8>, down: Vec<u8>, backlog: Budget) -> Self {
        Self { up: PumpHalf::beginning_with(up), down: PumpHalf::beginning_with(down), backlog }
    }

    /// Bytes delivered: up, down.
    pub(crate) fn delivered(&self) -> (u64, u64) {
        (self.up.bytes(), self.down.bytes())
    }

    /// Moves bytes until both directions have ended, one connection breaks, or nothing comes for too long. Unless they have
    /// ended in order, closing the connections resets them, also if this future is dropped.
    pub(crate) async fn run<A: Connection, B: Connection>(
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
            match self.poll_halves(cx, downstream, upstream) {
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
            // What was sent before the break is delivered first, as it would have been without us.
            PumpEnd::Broken(Side::Downstream, _) => {
                let rest = deliver(reactor, &mut self.up, downstream, upstream, &self.backlog);
                let _ = reactor.timeout(RESET_GRACE, rest).await;
            }
            PumpEnd::Broken(Side::Upstream, _) => {
                let rest = deliver(reactor, &mut self.down, upstream, downstream, &self.backlog);
                let _ = reactor.timeout(RESET_GRACE, rest).await;
            }
        }
        end
    }

    fn poll_halves<A: Connection, B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        downstream: &SharedStream<A>,
        upstream: &SharedStream<B>,
    ) -> Poll<Result<(), (Side, io::Error)>> {
        let Self { up, down, backlog } = self;
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

/// Hands on what the broken `source` still gives, and waits until `sink`'s other end has it.
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

/// An orderly end would say that what came is all.
struct ResetUnlessFinished<'a, A: Connection, B: Connection> {
    downstream: &'a SharedStream<A>,
    upstream: &'a SharedStream<B>,
    has_finished: bool,
}

impl<A: Connection, B: Connection> Drop for ResetUnlessFinished<'_, A, B> {
    fn drop(&mut self) {
        if !self.has_finished {
            self.downstream.reset_when_closed();
            self.upstream.reset_when_closed();
        }
    }
}
