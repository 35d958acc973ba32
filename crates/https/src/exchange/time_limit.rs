//! Timeouts of an exchange, on one timer.

use std::cell::OnceCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::reactor::{Elapsed, Reactor, Timer};
use crate::shared_stream::SharedStream;
use crate::stream::Connection;

/// How often within the timeout the unacknowledged bytes are checked.
const LOOKS: u32 = 4;

/// Why sending timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untaken {
    /// The other end took no bytes.
    All,
    /// It took some, too slowly.
    Most,
}

/// One timer for successive waits: re-arming a timer is cheaper than making one.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    reactor: Reactor,
    timer: OnceCell<Timer>,
}

impl TimeLimit {
    pub(crate) fn new(reactor: &Reactor) -> Self {
        Self { reactor: reactor.clone(), timer: OnceCell::new() }
    }

    /// Awaits `future` for at most `limit`.
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

    /// Awaits `sending` as long as the other end acknowledges at least one byte and `rate` bytes a second within
    /// `limit`. A blocked write alone proves nothing: the kernel reports room only when a third of its buffer is
    /// free, and a slow receiver takes long for that.
    pub(crate) async fn while_taken<S: Connection, T>(
        &self,
        limit: Duration,
        rate: u64,
        stream: &SharedStream<S>,
        sending: impl Future<Output = T>,
    ) -> Result<T, Untaken> {
        let mut sending = pin!(sending);
        let (mut before, mut taken, mut looks) = (None, 0, 0);
        loop {
            if let Ok(output) = self.limit(limit / LOOKS, sending.as_mut()).await {
                return Ok(output);
            }
            let now = stream.unacknowledged();
            let more = before.replace(now).map_or(0, |before: usize| before.saturating_sub(now)) as u64;
            let enough = u128::from(rate) * (limit / LOOKS).as_millis() / 1000;
            (taken, looks) =
                if u128::from(more) >= enough.max(1) { (0, 0) } else { (taken + more, looks + 1) };
            if looks == LOOKS {
                return Err(if taken == 0 { Untaken::All } else { Untaken::Most });
            }
        }
    }

    /// See [`Reactor::now`].
    pub(crate) fn now(&self) -> Instant {
        self.reactor.now()
    }

    /// Whether the loop is draining.
    pub(crate) fn is_draining(&self) -> bool {
        self.reactor.is_draining()
    }

    /// Disarms the timer.
    pub(crate) fn rest(&self) {
        if let Some(timer) = self.timer.get() {
            timer.disarm();
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
