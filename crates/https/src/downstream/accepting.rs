//! Accepting connections. A lack of descriptors, memory or sessions pauses it and never ends it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use truepeer_session::listening::concerns_one_connection;
use truepeer_stream::reactor::{Reactor, TcpListener, TcpStream};

use super::worker_state::WorkerState;

/// How long connections stay in the kernel's queue when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause after telling idle connections to end, so that they can close.
const RECLAIMING: Duration = Duration::from_millis(2);
/// Idle connections that are ended at once when the system has no descriptor left.
const RECLAIMED_AT_ONCE: usize = 8;
/// How many connections are still accepted once the loop drains. The kernel has completed them and would
/// reset them when the listener closes.
const LAST_CONNECTIONS: usize = 4096;

/// Whether a listener must close while the loop continues.
#[derive(Debug, Default)]
pub struct Closing {
    is_closing: Cell<bool>,
    acceptor: RefCell<Option<Waker>>,
    /// Dropped when the listener's socket has been closed.
    waiting: RefCell<Vec<Sender<()>>>,
}

impl Closing {
    /// Accepts no more connections than those already waiting. `done` is dropped when the socket has been
    /// closed.
    pub fn close(&self, done: Sender<()>) {
        self.is_closing.set(true);
        self.waiting.borrow_mut().push(done);
        if let Some(acceptor) = self.acceptor.borrow().as_ref() {
            acceptor.wake_by_ref();
        }
    }

    /// The socket has been closed.
    pub fn on_closed(&self) {
        self.waiting.borrow_mut().clear();
    }

    fn is_over(&self, reactor: &Reactor) -> bool {
        self.is_closing.get() || reactor.is_draining()
    }
}

/// Accepts connections and calls `begin` for each, until the loop drains or the listener closes. Then closes
/// the socket.
pub async fn accept(
    reactor: Reactor,
    listener: Rc<TcpListener>,
    address: IpAddr,
    worker: Rc<WorkerState>,
    closing: &Closing,
    begin: impl Fn(TcpStream, SocketAddr),
) {
    let mut last = LAST_CONNECTIONS;
    loop {
        let is_over = closing.is_over(&reactor);
        if is_over {
            match last.checked_sub(1) {
                Some(left) => last = left,
                None => return,
            }
        }
        if !worker.budgets.sessions.has(spare(&worker)) {
            let is_reclaimed = worker.reclaim(address, reactor.now());
            if !worker.budgets.sessions.has(1) {
                if is_over {
                    return;
                }
                if is_reclaimed {
                    reactor.sleep(RECLAIMING).await;
                } else {
                    pause(&reactor, address, &worker, None).await;
                }
                continue;
            }
        }
        let Some(accepted) = next(&reactor, &listener, closing).await else { return };
        match accepted {
            Ok((stream, sender)) => begin(stream, sender),
            // The client reset this connection before accept(). The next one may be fine.
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) if is_over => return,
            Err(error) => {
                let reclaimed = (0..RECLAIMED_AT_ONCE).take_while(|_| worker.reclaim(address, reactor.now()));
                if reclaimed.count() > 0 {
                    reactor.sleep(RECLAIMING).await;
                } else {
                    pause(&reactor, address, &worker, Some(&error)).await;
                }
            }
        }
    }
}

/// When fewer sessions than this are left, each new connection ends an idle one. The reserve lets new
/// connections in without a pause.
fn spare(worker: &WorkerState) -> usize {
    worker.budgets.sessions.limit() / 32 + 1
}

fn is_of_one_connection(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(concerns_one_connection)
}

/// The next connection. `None`: the loop drains, and the kernel's queue is empty.
async fn next(
    reactor: &Reactor,
    listener: &TcpListener,
    closing: &Closing,
) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    let mut accepting = std::pin::pin!(listener.accept());
    std::future::poll_fn(|cx| {
        // The order to end may come before the kernel's event for waiting connections, so ask the queue
        // itself.
        if closing.is_over(reactor) {
            listener.assume_readable();
        }
        match accepting.as_mut().poll(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            // Only this turn's allowance is used up.
            Poll::Pending if listener.may_be_readable() => Poll::Pending,
            Poll::Pending if closing.is_over(reactor) => Poll::Ready(None),
            // A drain wakes all tasks.
            Poll::Pending => {
                closing.acceptor.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    })
    .await
}

async fn pause(reactor: &Reactor, address: IpAddr, worker: &WorkerState, lacking: Option<&io::Error>) {
    let lacking = lacking.map(|error| error as &dyn std::fmt::Display);
    worker.journal.on_accept_pause(&worker.shard, address, lacking, reactor.now());
    reactor.sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use truepeer_session::listening::{ListenOptions, listen};

    use super::*;

    /// The kernel completes the connections before the order to drain and reports them after it.
    #[test]
    fn connections_completed_just_before_the_drain_are_accepted() {
        let reactor = Reactor::new().unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::new(&reactor, listen(any, ListenOptions::default()).unwrap()).unwrap();
        let address = listener.local_address().unwrap();
        let other = reactor.clone();
        let taken = reactor.block_on(async move {
            assert!(
                other.timeout(Duration::ZERO, listener.accept()).await.is_err(),
                "no connection is waiting"
            );
            let clients =
                [(); 2].map(|()| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(60)));
            other.remote().drain();
            let mut taken = 0;
            while let Some(accepted) = next(&other, &listener, &Closing::default()).await {
                accepted.unwrap();
                taken += 1;
            }
            drop(clients);
            taken
        });
        assert_eq!(taken.unwrap(), 2);
    }
}
