//! How long a connection waits for its next request.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use truepeer_origin::Dial;
use truepeer_stream::reactor::Timer;

use crate::downstream::{Idle, IdleList};
use crate::exchange::Service;

/// Why a connection without requests ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestEnd {
    TimedOut,
    /// A new connection needs its descriptor or session.
    IsWanted,
}

/// The keep-alive timeout. Only requests extend it.
pub(super) struct Rest<'a> {
    timer: Timer,
    list: &'a IdleList,
    idle: Option<Idle<'a>>,
    /// The timeout between requests, and the one while draining.
    usual: Duration,
    last: Duration,
    /// The connection accepts no more requests.
    pub(super) is_last: bool,
    /// It will be, with its first request: that one is waited for.
    is_awaited: bool,
    /// A request has come, so the timer must be re-armed.
    is_over: bool,
}

impl<'a> Rest<'a> {
    pub(super) fn new<O: Dial>(service: &'a Service<O>) -> Self {
        let timeouts = &service.settings.timeouts;
        Self {
            timer: service.reactor.timer(),
            list: &service.idle,
            idle: None,
            usual: timeouts.keep_alive,
            last: timeouts.linger,
            is_last: false,
            is_awaited: false,
            is_over: true,
        }
    }

    /// Whether a drain tells the client now. A new connection's first request is on its way, and a client
    /// that gets a GOAWAY before it has sent that may fail it (HAProxy 2.6 answers 502). So it is waited
    /// for, as long as for requests after a GOAWAY.
    pub(super) fn may_drain(&mut self, cx: &mut Context<'_>, begun: u64) -> bool {
        if begun > 0 {
            return true;
        }
        if !std::mem::replace(&mut self.is_awaited, true) {
            self.timer.arm(self.last);
            self.is_over = false;
        }
        self.timer.poll_expired(cx).is_ready()
    }

    /// No request but those on their way comes any more.
    pub(super) fn drain(&mut self) {
        (self.is_last, self.is_over) = (true, true);
    }

    /// Ready when the timeout has passed, or when the connection must be closed for a new one. It is closed
    /// for another one only if it `is_quiet`: all of its responses have left.
    pub(super) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        open: u32,
        is_quiet: bool,
        now: Instant,
    ) -> Poll<RestEnd> {
        if open > 0 {
            self.is_over = true;
            self.idle = None;
            return Poll::Pending;
        }
        if std::mem::take(&mut self.is_over) {
            self.timer.arm(if self.is_last { self.last } else { self.usual });
        }
        if !is_quiet {
            self.idle = None;
        } else if self.idle.is_none() {
            self.idle = Some(self.list.enter(now, cx.waker()));
        }
        // The timeout first: a wanted connection may stay for a while because its client takes nothing.
        let is_wanted = self.idle.as_ref().is_some_and(Idle::shall_end);
        match self.timer.poll_expired(cx) {
            Poll::Ready(()) => Poll::Ready(RestEnd::TimedOut),
            Poll::Pending if is_wanted => Poll::Ready(RestEnd::IsWanted),
            Poll::Pending => Poll::Pending,
        }
    }
}
