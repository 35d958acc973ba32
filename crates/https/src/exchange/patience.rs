//! How long something may take.

use std::cell::OnceCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::reactor::{Elapsed, Reactor, Timer};

/// One timer for all that a future waits for in turn: putting a timer off is cheaper than making one.
#[derive(Debug)]
pub(crate) struct Patience {
    reactor: Reactor,
    timer: OnceCell<Timer>,
}

impl Patience {
    pub(crate) fn new(reactor: &Reactor) -> Self {
        Self { reactor: reactor.clone(), timer: OnceCell::new() }
    }

    /// What `future` gives, if it does within `limit`.
    pub(crate) async fn limit<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let mut future = pin!(future);
        let mut is_armed = false;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let timer = self.timer.get_or_init(|| self.reactor.timer());
            if !std::mem::replace(&mut is_armed, true) {
                timer.arm(limit);
            }
            timer.poll_expired(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// As [`Reactor::now`].
    pub(crate) fn now(&self) -> Instant {
        self.reactor.now()
    }

    /// Whether no more requests are wanted.
    pub(crate) fn is_draining(&self) -> bool {
        self.reactor.is_draining()
    }

    /// Nothing is waited for.
    pub(crate) fn rest(&self) {
        if let Some(timer) = self.timer.get() {
            timer.disarm();
        }
    }
}
