//! After 101: bytes both ways, whatever they mean, until both ends have closed.
//!
//! An end is passed on as what it was: in order as an end, everything else (a reset, an end that TLS does not vouch for,
//! silence, our own end) as a reset, so that nobody takes what came for all of it.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::buffer::Buffer;
use super::settings::Timeouts;
use super::shared::Shared;
use crate::reactor::Reactor;
use crate::stream::Connection;

/// How long a reset waits for the bytes before it to be taken by the other end.
const RESET_GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether they were: no event tells.
const RESET_CHECK: Duration = Duration::from_millis(20);

/// How a tunnel has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tunnelled {
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Both directions have been ended by who sends in them. If not, closing both connections is a reset.
    pub(crate) is_in_order: bool,
}

/// Where a direction broke.
enum Fault {
    /// Where it is read from; everything that came before has been handed on.
    Source,
    /// Where it is written to.
    Sink,
}

/// What ended both directions.
#[derive(Clone, Copy)]
enum End {
    InOrder,
    /// The client's connection, or the origin's, can't be read any more.
    ClientBroken,
    OriginBroken,
    /// One of them takes nothing any more, or nothing came from either for too long.
    Lost,
}

/// Passes bytes on in both directions, first those that the buffers have already. An end of one direction is passed on;
/// an error ends both, and so does silence. Dropped before its end, it makes both ends resets.
pub(crate) async fn tunnel<A: Connection, B: Connection>(
    reactor: &Reactor,
    timeouts: &Timeouts,
    client: (&Shared<A>, &mut Buffer),
    origin: (&Shared<B>, &mut Buffer),
) -> Tunnelled {
    let (client, client_buffer) = client;
    let (origin, origin_buffer) = origin;
    let mut abort = Abort { client, origin, is_due: true };
    let (bytes_up, bytes_down) = (Cell::new(0), Cell::new(0));
    let end = {
        let mut up = pin!(pass_on(client, client_buffer, origin, &bytes_up));
        let mut down = pin!(pass_on(origin, origin_buffer, client, &bytes_down));
        let (mut is_up_done, mut is_down_done) = (false, false);
        let (timer, mut before) = (reactor.timer(), None);
        // Who takes nothing any more may have sent something before, which is still handed on.
        let mut torn: Option<End> = None;
        poll_fn(|cx| {
            match poll_half(&mut is_up_done, || up.as_mut().poll(cx)) {
                Err(Fault::Source) => return Poll::Ready(torn.unwrap_or(End::ClientBroken)),
                Err(Fault::Sink) if torn.is_some() => return Poll::Ready(End::Lost),
                Err(Fault::Sink) => {
                    torn = Some(End::OriginBroken);
                    timer.arm(RESET_GRACE);
                }
                Ok(()) => {}
            }
            match poll_half(&mut is_down_done, || down.as_mut().poll(cx)) {
                Err(Fault::Source) => return Poll::Ready(torn.unwrap_or(End::OriginBroken)),
                Err(Fault::Sink) if torn.is_some() => return Poll::Ready(End::Lost),
                Err(Fault::Sink) => {
                    torn = Some(End::ClientBroken);
                    timer.arm(RESET_GRACE);
                    // What the client has sent before may be at hand, and `up` was polled before this was known.
                    cx.waker().wake_by_ref();
                }
                Ok(()) => {}
            }
            if is_up_done && is_down_done {
                return Poll::Ready(torn.unwrap_or(End::InOrder));
            }
            if let Some(end) = torn {
                return timer.poll_expired(cx).map(|()| end);
            }
            let now = Some((bytes_up.get(), bytes_down.get(), is_up_done, is_down_done));
            if std::mem::replace(&mut before, now) != now {
                let is_half = is_up_done || is_down_done;
                timer.arm(if is_half { timeouts.half_tunnel } else { timeouts.tunnel });
            }
            timer.poll_expired(cx).map(|()| End::Lost)
        })
        .await
    };
    match end {
        End::InOrder => abort.is_due = false,
        End::ClientBroken => until_taken(reactor, origin).await,
        End::OriginBroken => until_taken(reactor, client).await,
        End::Lost => {}
    }
    Tunnelled {
        bytes_up: bytes_up.get(),
        bytes_down: bytes_down.get(),
        is_in_order: matches!(end, End::InOrder),
    }
}

/// Makes closing both connections a reset, unless the tunnel has ended in order.
struct Abort<'a, A: Connection, B: Connection> {
    client: &'a Shared<A>,
    origin: &'a Shared<B>,
    is_due: bool,
}

impl<A: Connection, B: Connection> Drop for Abort<'_, A, B> {
    fn drop(&mut self) {
        if self.is_due {
            self.client.reset_when_closed();
            self.origin.reset_when_closed();
        }
    }
}

/// A reset overtakes what has been sent before it: that is given some time to arrive.
async fn until_taken<S: Connection>(reactor: &Reactor, stream: &Shared<S>) {
    let taken = async {
        while stream.unacknowledged() > 0 {
            reactor.sleep(RESET_CHECK).await;
        }
    };
    let _ = reactor.timeout(RESET_GRACE, taken).await;
}

fn poll_half(is_done: &mut bool, poll: impl FnOnce() -> Poll<Result<(), Fault>>) -> Result<(), Fault> {
    if !*is_done && let Poll::Ready(done) = poll() {
        *is_done = true;
        return done;
    }
    Ok(())
}

async fn pass_on<A, B>(
    from: &Shared<A>,
    buffer: &mut Buffer,
    to: &Shared<B>,
    passed: &Cell<u64>,
) -> Result<(), Fault>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let source = |_: io::Error| Fault::Source;
    let sink = |_: io::Error| Fault::Sink;
    let mut out = Vec::new();
    loop {
        if buffer.is_empty() && from.fill(buffer).await.map_err(source)? == 0 {
            return to.shutdown().await.map_err(sink);
        }
        out.extend_from_slice(buffer.data());
        passed.set(passed.get() + out.len() as u64);
        buffer.consume(out.len());
        to.send(&mut out).await.map_err(sink)?;
    }
}
