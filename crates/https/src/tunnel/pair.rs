//! Both connections of a session, and how each of their ends ends it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite as _;
use truepeer_session::budget::Budget;

use super::half::{Fault, Half};
use crate::close::CloseReason;
use crate::reactor::{Reactor, Timer};
use crate::stream::Stream;

/// How long a reset waits for the bytes before it to be taken by the other end.
const RESET_GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether they were: no event tells.
const RESET_CHECK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Downstream,
    Upstream,
}

/// The two connections, and the bytes between them. Dropped before its end, it resets both: an orderly end would say
/// that what came is all.
#[derive(Debug)]
pub(super) struct Pair {
    downstream: Stream,
    upstream: Stream,
    up: Half,
    down: Half,
    /// What slow ends of all sessions may make us hold.
    backlog: Budget,
    finished: bool,
}

impl Pair {
    /// `first` is for the backend, before all else.
    pub(super) fn new(downstream: Stream, upstream: Stream, first: Vec<u8>, backlog: Budget) -> Self {
        Self {
            downstream,
            upstream,
            up: Half::beginning_with(first),
            down: Half::beginning_with(Vec::new()),
            backlog,
            finished: false,
        }
    }

    /// Bytes delivered: up, down.
    pub(super) fn delivered(&self) -> (u64, u64) {
        (self.up.bytes(), self.down.bytes())
    }

    /// Relays until both halves have ended, one is broken, or both are silent for `idle`.
    pub(super) async fn relay(&mut self, reactor: &Reactor, idle: Option<Duration>) -> CloseReason {
        let timer = idle.map(|idle| (reactor.timer(), idle));
        let mut moved = None;
        let broken = poll_fn(|cx| {
            if let Poll::Ready(done) = self.poll_halves(cx) {
                return Poll::Ready(Some(done));
            }
            let Some((timer, idle)) = &timer else { return Poll::Pending };
            self.poll_idle(cx, timer, *idle, &mut moved).map(|()| None)
        })
        .await;
        match broken {
            None => truepeer_session::CloseReason::Idle.into(),
            Some(Ok(())) => {
                self.finished = true;
                truepeer_session::CloseReason::Finished.into()
            }
            Some(Err((side, error))) => {
                // What its owner sent before the break is delivered first, as it would have been without us.
                let _ = reactor.timeout(RESET_GRACE, self.deliver(reactor, side)).await;
                reason(side, &error)
            }
        }
    }

    fn poll_idle(
        &self,
        cx: &mut Context<'_>,
        timer: &Timer,
        idle: Duration,
        moved: &mut Option<(u64, u64)>,
    ) -> Poll<()> {
        let delivered = Some(self.delivered());
        if std::mem::replace(moved, delivered) != delivered {
            timer.arm(idle);
        }
        timer.poll_expired(cx)
    }

    fn poll_halves(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), (Side, io::Error)>> {
        let Self { downstream, upstream, up, down, backlog, .. } = self;
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
    }

    /// Delivers what came from the broken `side`, to the other end's kernel.
    async fn deliver(&mut self, reactor: &Reactor, side: Side) {
        let Self { downstream, upstream, up, down, backlog, .. } = self;
        let (half, source, sink) = match side {
            Side::Downstream => (up, downstream, upstream),
            Side::Upstream => (down, upstream, downstream),
        };
        half.on_broken_source();
        let _ = poll_fn(|cx| half.poll(cx, source, sink, backlog)).await;
        let _ = poll_fn(|cx| Pin::new(&mut *sink).poll_flush(cx)).await;
        while sink.tcp().unacknowledged() > 0 {
            reactor.sleep(RESET_CHECK).await;
        }
    }
}

fn reason(side: Side, error: &io::Error) -> CloseReason {
    match (side, error.kind()) {
        (Side::Downstream, io::ErrorKind::UnexpectedEof) => CloseReason::TruncatedByClient,
        (Side::Upstream, io::ErrorKind::UnexpectedEof) => CloseReason::TruncatedByBackend,
        (Side::Downstream, _) => truepeer_session::CloseReason::ResetByClient.into(),
        (Side::Upstream, _) => truepeer_session::CloseReason::ResetByBackend.into(),
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.finished {
            self.downstream.tcp().reset_when_closed();
            self.upstream.tcp().reset_when_closed();
        }
    }
}
