//! Timeouts of an exchange, on one timer.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use truepeer_stream::reactor::{Elapsed, Reactor, Timer};
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

/// How often within the timeout the unacknowledged bytes are checked.
const LOOKS: u32 = 4;

/// Why sending timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untaken {
    /// The other end took no bytes.
    All,
    /// It took some, too slowly.
    Most,
}

/// One timer for successive waits: re-arming a timer is cheaper than making one.
#[derive(Debug)]
pub struct TimeLimit {
    reactor: Reactor,
    timer: OnceCell<Timer>,
}

impl TimeLimit {
    /// A timer, made when it is first needed.
    #[must_use]
    pub fn new(reactor: &Reactor) -> Self {
        Self { reactor: reactor.clone(), timer: OnceCell::new() }
    }

    /// Awaits `future` for at most `limit`.
    pub fn limit<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> {
        Limited { time_limit: self, limit, is_armed: false, future }
    }

    /// Awaits `sending` as long as the other end acknowledges at least one byte and `rate` bytes a second
    /// within `limit`. A blocked write alone proves nothing: the kernel reports room only when a third of
    /// its buffer is free, and a slow receiver takes long for that.
    pub fn while_taken<'a, S: Connection, F: Future>(
        &'a self,
        limit: Duration,
        rate: u64,
        stream: &'a SharedStream<S>,
        sending: F,
    ) -> impl Future<Output = Result<F::Output, Untaken>> {
        let sending = Limited { time_limit: self, limit: limit / LOOKS, is_armed: false, future: sending };
        WhileTaken { rate, stream, before: None, taken: 0, looks: 0, sending }
    }

    /// See [`Reactor::now`].
    pub fn now(&self) -> Instant {
        self.reactor.now()
    }

    /// Whether the loop is draining.
    pub fn is_draining(&self) -> bool {
        self.reactor.is_draining()
    }

    /// Disarms the timer.
    pub fn rest(&self) {
        if let Some(timer) = self.timer.get() {
            timer.disarm();
        }
    }
}

pin_project! {
    /// Not an async fn: that would hold the future twice, and each request copies the futures around it.
    struct Limited<'a, F> {
        time_limit: &'a TimeLimit,
        limit: Duration,
        is_armed: bool,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Limited<'_, F> {
    type Output = Result<F::Output, Elapsed>;

    /// After [`Elapsed`] it may be polled for another `limit`.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let time_limit = this.time_limit;
        let timer = time_limit.timer.get_or_init(|| time_limit.reactor.timer());
        if !std::mem::replace(this.is_armed, true) {
            timer.arm(*this.limit);
        }
        ready!(timer.poll_expired(cx));
        *this.is_armed = false;
        Poll::Ready(Err(Elapsed))
    }
}

pin_project! {
    struct WhileTaken<'a, S, F> {
        rate: u64,
        stream: &'a SharedStream<S>,
        before: Option<usize>,
        taken: u64,
        looks: u32,
        #[pin]
        sending: Limited<'a, F>,
    }
}

impl<S: Connection, F: Future> Future for WhileTaken<'_, S, F> {
    type Output = Result<F::Output, Untaken>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Ok(output) = ready!(this.sending.as_mut().poll(cx)) {
                return Poll::Ready(Ok(output));
            }
            let now = this.stream.unacknowledged();
            let more = this.before.replace(now).map_or(0, |before| before.saturating_sub(now)) as u64;
            let enough = u128::from(*this.rate) * this.sending.limit.as_millis() / 1000;
            (*this.taken, *this.looks) = if u128::from(more) >= enough.max(1) {
                (0, 0)
            } else {
                (*this.taken + more, *this.looks + 1)
            };
            if *this.looks == LOOKS {
                return Poll::Ready(Err(if *this.taken == 0 { Untaken::All } else { Untaken::Most }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::io;
    use std::pin::Pin;
    use std::task::Context;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::super::both_ways::{Progress, both};
    use super::super::failure::Failure;
    use super::*;

    /// The unacknowledged bytes that each check finds; the last value repeats.
    struct Looks(Cell<&'static [usize]>, Cell<usize>);

    impl Connection for Looks {
        fn unacknowledged(&self) -> usize {
            self.1.set(self.1.get() + 1);
            match self.0.get() {
                [last] => *last,
                [first, rest @ ..] => {
                    self.0.set(rest);
                    *first
                }
                [] => 0,
            }
        }
    }

    impl AsyncRead for Looks {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Looks {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// Each request moves the futures that it waits for.
    #[test]
    fn a_future_is_held_once() {
        let reactor = Reactor::new().unwrap();
        let (time_limit, progress) = (TimeLimit::new(&reactor), Progress::new(false, false));
        let stream = SharedStream::new(Looks(Cell::new(&[0]), Cell::new(0)));
        let large = || async {
            let held = [1_u8; 1000];
            pending::<()>().await;
            assert_eq!(held, [1; 1000]);
        };
        let size = size_of_val(&large());
        assert!(size_of_val(&time_limit.limit(Duration::MAX, large())) < size + 100);
        assert!(size_of_val(&time_limit.while_taken(Duration::MAX, 0, &stream, large())) < size + 100);
        let up = async {
            large().await;
            Failure::ClientGone
        };
        let down = async {
            large().await;
            Ok(())
        };
        let sizes = size_of_val(&up) + size_of_val(&down);
        assert!(size_of_val(&both(&progress, up, down)) < sizes + 100);
    }

    #[test]
    fn a_receiver_that_makes_progress_is_waited_for() {
        // 1000 bytes a second are ten bytes between two checks.
        const LIMIT: Duration = Duration::from_millis(40);
        for (found, rate, looked, untaken) in [
            (&[0][..], 0, 4, Untaken::All),
            (&[500], 0, 4, Untaken::All),
            (&[500, 499, 498, 498], 0, 7, Untaken::All),
            (&[500, 500, 500, 499, 499], 0, 8, Untaken::All),
            (&[500, 490, 480, 470, 460, 460], 1000, 9, Untaken::All),
            (&[500, 491, 482, 473, 464, 455], 1000, 4, Untaken::Most),
        ] {
            let reactor = Reactor::new().unwrap();
            let stream = SharedStream::new(Looks(Cell::new(found), Cell::new(0)));
            let time_limit = TimeLimit::new(&reactor);
            let outcome = reactor.block_on(async move {
                let outcome = time_limit.while_taken(LIMIT, rate, &stream, pending::<()>()).await;
                (outcome, stream.with(|looks| looks.1.get()))
            });
            assert_eq!(outcome.unwrap(), (Err(untaken), looked), "{found:?}");
        }
    }
}
