//! Both directions of one request at once, and the state that they share.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::failure::Failure;

/// How far a request and its response are. Both directions belong to one task, so each poll sees the other's
/// last change.
#[derive(Debug)]
pub struct Progress {
    /// The body may be sent.
    pub may_send_body: Cell<bool>,
    /// The request has been sent whole.
    pub is_sent: Cell<bool>,
    /// The response has started.
    pub has_begun: Cell<bool>,
    /// A write to the origin has failed. The kernel reports a reset once: a read finds an orderly end after
    /// it.
    pub is_broken: Cell<bool>,
    /// The request is still being sent, so the response timeout does not run yet.
    pub is_sending: Cell<bool>,
}

impl Progress {
    /// `waits`: the client holds its body back until truepeer says 100 (Expect). `is_sent`: there is nothing
    /// more to send.
    pub fn new(waits: bool, is_sent: bool) -> Self {
        Self {
            may_send_body: Cell::new(!waits),
            is_sent: Cell::new(is_sent),
            has_begun: Cell::new(false),
            is_broken: Cell::new(false),
            is_sending: Cell::new(!is_sent),
        }
    }

    /// Waits until the body may be sent.
    pub async fn proceeds(&self) {
        // No waker is stored: `both` polls this again.
        poll_fn(|_| if self.may_send_body.get() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// Runs both directions. `down` decides when the exchange is over: an origin may respond before it has
/// received the whole request. `up` returns only if the client fails.
pub fn both<T>(
    progress: &Progress,
    up: impl Future<Output = Failure>,
    down: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, Failure>> {
    Both { progress, up, down }
}

pin_project! {
    /// Not an async fn: that would hold both directions twice.
    struct Both<'a, U, D> {
        progress: &'a Progress,
        #[pin]
        up: U,
        #[pin]
        down: D,
    }
}

impl<T, U, D> Future for Both<'_, U, D>
where
    U: Future<Output = Failure>,
    D: Future<Output = Result<T, Failure>>,
{
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Poll::Ready(failure) = this.up.as_mut().poll(cx) {
                return Poll::Ready(Err(failure));
            }
            let might_before = this.progress.may_send_body.get();
            if let Poll::Ready(answered) = this.down.as_mut().poll(cx) {
                return Poll::Ready(answered);
            }
            if this.progress.may_send_body.get() == might_before {
                return Poll::Pending;
            }
        }
    }
}
