//! Accepting, which never ends for want of anything.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use truepeer_policy::SenderAddr;
use truepeer_session::budget::Permit;
use truepeer_session::counters::Counter;

use super::{House, Listening};
use crate::reactor::{Listener, Reactor, TcpStream, concerns_one_connection};

/// How long connections stay in the kernel's queue when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that was told to end is given for it.
const RECLAIMING: Duration = Duration::from_millis(2);
/// Descriptors that are asked for at once when the system has none.
const RECLAIMED_AT_ONCE: usize = 8;
/// Connections that are still taken once the loop drains: the kernel has completed them, and would reset them with the
/// listener.
const LAST_CONNECTIONS: usize = 4096;

/// Accepts connections until the loop is drained; `serve` makes a task of each that the policy admits.
pub async fn accept<Serve, Served>(
    reactor: Reactor,
    listener: Listener,
    listening: Rc<Listening>,
    house: Rc<House>,
    serve: Serve,
) where
    Serve: Fn(TcpStream, SenderAddr, Permit) -> Served,
    Served: Future<Output = ()> + 'static,
{
    let mut last = LAST_CONNECTIONS;
    loop {
        if reactor.is_draining() {
            match last.checked_sub(1) {
                Some(left) => last = left,
                None => return,
            }
        }
        let about = listening.settings.address.ip();
        if !house.budgets.sessions.has(spare(&house)) {
            let is_reclaimed = house.reclaim(about, reactor.now());
            if !house.budgets.sessions.has(1) {
                if reactor.is_draining() {
                    return;
                }
                if is_reclaimed {
                    reactor.sleep(RECLAIMING).await;
                } else {
                    pause(&reactor, &listening, &house, None).await;
                }
                continue;
            }
        }
        let Some(accepted) = next(&reactor, &listener).await else { return };
        match accepted {
            Ok((stream, sender)) => {
                house.shard.count(Counter::Accepted);
                let sender = SenderAddr::new(sender);
                match listening.policy.admit(sender) {
                    Ok(_) => reactor.spawn(serve(stream, sender, house.budgets.sessions.take_anyway(1))),
                    Err(refusal) => {
                        house.journal.on_refused_sender(&house.shard, sender, &refusal, reactor.now());
                    }
                }
            }
            // This one was gone before we came; the next one may be well.
            Err(error) if concerns_one_connection(&error) => {}
            Err(_) if reactor.is_draining() => return,
            Err(error) => {
                let reclaimed = (0..RECLAIMED_AT_ONCE).take_while(|_| house.reclaim(about, reactor.now()));
                if reclaimed.count() > 0 {
                    reactor.sleep(RECLAIMING).await;
                } else {
                    pause(&reactor, &listening, &house, Some(&error)).await;
                }
            }
        }
    }
}

/// When fewer sessions than this are left, each new one ends an idle one. So new connections rarely have to wait.
fn spare(house: &House) -> usize {
    house.budgets.sessions.limit() / 32 + 1
}

/// The next connection; `None`: there shall be none any more, and none is waiting.
async fn next(
    reactor: &Reactor,
    listener: &Listener,
) -> Option<io::Result<(TcpStream, std::net::SocketAddr)>> {
    let mut accepting = std::pin::pin!(listener.accept());
    let mut drained = std::pin::pin!(reactor.drained());
    std::future::poll_fn(|cx| {
        // The word to drain may come before the kernel's that connections wait: the queue itself is asked.
        if reactor.is_draining() {
            listener.assume_readable();
        }
        match accepting.as_mut().poll(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            // It was only this turn's share that has been used up.
            Poll::Pending if listener.may_be_readable() => Poll::Pending,
            Poll::Pending => drained.as_mut().poll(cx).map(|()| None),
        }
    })
    .await
}

async fn pause(reactor: &Reactor, listening: &Listening, house: &House, lacking: Option<&io::Error>) {
    let listener = listening.settings.address.ip();
    let lacking = lacking.map(|error| error as &dyn std::fmt::Display);
    house.journal.on_accept_pause(&house.shard, listener, lacking, reactor.now());
    reactor.sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use truepeer_session::listening::{ListenOptions, listen};

    use super::*;

    /// Whom the kernel has taken before the word to drain, though it has not told us yet.
    #[test]
    fn who_came_just_before_the_end_is_taken() {
        let reactor = Reactor::new().unwrap();
        let door = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::new(&reactor, listen(door, ListenOptions::default()).unwrap()).unwrap();
        let address = listener.local_address().unwrap();
        let other = reactor.clone();
        let taken = reactor.block_on(async move {
            assert!(other.timeout(Duration::ZERO, listener.accept()).await.is_err(), "nobody has come yet");
            let clients =
                [(); 2].map(|()| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(60)));
            other.remote().drain();
            let mut taken = 0;
            while let Some(accepted) = next(&other, &listener).await {
                accepted.unwrap();
                taken += 1;
            }
            drop(clients);
            taken
        });
        assert_eq!(taken.unwrap(), 2);
    }
}
