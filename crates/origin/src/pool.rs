//! Idle connections to the origin.
//!
//! LIFO: surplus connections stay unused until they time out. Connections kept in the current turn come last,
//! because the kernel must be asked about them. Nothing should arrive on an idle connection, so any
//! event on one wakes the keeper task, which closes it. If a connection dies at the moment of its reuse, the
//! exchange repeats the request on another one if that is safe.
//!
//! Idle connections count as sessions, and are closed first when sessions run short.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Weak;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use truepeer_session::budget::{Budget, Permit};
use truepeer_stream::reactor::Reactor;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

/// Who may reuse a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeptBy {
    /// All clients: each request names its client.
    Everybody,
    /// One client: the connection has its address.
    Client(IpAddr),
    /// One client connection: the PROXY header names it, or the origin has authenticated the connection.
    Connection(u64),
}

/// A connection to the origin, with bytes that were read and not used.
#[derive(Debug)]
pub struct OriginConnection<S> {
    /// Its stream.
    pub stream: SharedStream<S>,
    /// The bytes.
    pub buffer: Buffer,
    /// Whether it has carried a request before.
    pub is_used: bool,
    /// Whether it must carry the requests of one connection only, because the origin may have authenticated
    /// it.
    pub is_private: bool,
}

#[derive(Debug)]
struct IdleOrigin<S> {
    connection: OriginConnection<S>,
    kept_by: KeptBy,
    since: Instant,
    until: Instant,
    _permit: Permit,
}

/// A worker's idle connections.
#[derive(Debug)]
pub struct Pool<S> {
    idle: RefCell<VecDeque<IdleOrigin<S>>>,
    most: usize,
    keep: Duration,
    sessions: Budget,
    keeper: RefCell<Waker>,
    is_kept: Cell<bool>,
}

impl<S: Connection> Pool<S> {
    /// Keeps at most `most` connections, each for at most `keep`, if `sessions` has room.
    #[must_use]
    pub fn new(most: usize, keep: Duration, sessions: Budget) -> Self {
        Self {
            idle: RefCell::default(),
            most,
            keep,
            sessions,
            keeper: RefCell::new(Waker::noop().clone()),
            is_kept: Cell::new(true),
        }
    }

    /// Returns a connection that is alive. `looked`: when the last events came, if they are enough; a
    /// connection that is kept since then or later is asked for at the kernel all the same, since no
    /// events tell of what came after its last response was read.
    pub fn take(&self, kept_by: KeptBy, looked: Option<Instant>) -> Option<OriginConnection<S>> {
        loop {
            let mut idle = self.idle.borrow_mut();
            let is_usable = |idle: &IdleOrigin<S>| idle.kept_by == kept_by;
            // Prefer a connection for which the kernel need not be asked.
            let told = looked
                .and_then(|looked| idle.iter().rposition(|idle| is_usable(idle) && idle.since < looked));
            let at = told.or_else(|| idle.iter().rposition(is_usable))?;
            let mut found = idle.remove(at)?;
            drop(idle);
            if looked.is_none_or(|looked| found.since >= looked) {
                // It may have died since the last epoll_wait.
                found.connection.stream.look_again();
            }
            // The exchange registers its own waker with its first read.
            if is_alive(&mut found.connection, &mut Context::from_waker(Waker::noop()))
                && found.connection.stream.is_read_out()
            {
                return Some(found.connection);
            }
        }
    }

    /// Keeps a connection for the next request; `hint`: the longest time, from its origin.
    pub fn put(
        &self,
        mut connection: OriginConnection<S>,
        kept_by: KeptBy,
        hint: Option<Duration>,
        now: Instant,
    ) {
        let keep = hint.map_or(self.keep, |hint| hint.min(self.keep));
        if self.most == 0 || keep.is_zero() || !self.is_kept.get() {
            return;
        }
        let permit = if self.is_short() { None } else { self.sessions.take(1) };
        let Some(permit) = permit else { return };
        connection.is_used = true;
        if !is_alive(&mut connection, &mut Context::from_waker(&self.keeper.borrow())) {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let oldest = if idle.len() >= self.most { idle.pop_front() } else { None };
        idle.push_back(IdleOrigin { connection, kept_by, since: now, until: now + keep, _permit: permit });
        drop((idle, oldest));
    }

    /// The number of idle connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes connections that their origins have closed, and those that are too old. Ends when the reactor
    /// drains (and closes all of them), or when the pool has no other owner.
    pub async fn keep(pool: Weak<Self>, reactor: Reactor) {
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        let timer = reactor.timer();
        timer.arm(LOOK_AGAIN);
        poll_fn(|cx| {
            let Some(pool) = pool.upgrade() else { return Poll::Ready(()) };
            if !pool.keeper.borrow().will_wake(cx.waker()) {
                pool.keeper.replace(cx.waker().clone());
            }
            // A drain wakes all tasks.
            if reactor.is_draining() {
                pool.is_kept.set(false);
                pool.close_unless(|_| false);
                return Poll::Ready(());
            }
            while timer.poll_expired(cx).is_ready() {
                timer.arm(LOOK_AGAIN);
            }
            let (now, is_short) = (reactor.now(), pool.is_short());
            pool.close_unless(|idle| !is_short && idle.until > now && is_alive(&mut idle.connection, cx));
            Poll::Pending
        })
        .await;
    }
}

impl<S> Pool<S> {
    /// Whether few sessions are left for clients.
    fn is_short(&self) -> bool {
        !self.sessions.has(self.sessions.limit() / 8 + 1)
    }

    /// Closes the connections that only `kept_by` may use.
    pub fn forget(&self, kept_by: KeptBy) {
        self.close_unless(|idle| idle.kept_by != kept_by);
    }

    fn close_unless(&self, mut stays: impl FnMut(&mut IdleOrigin<S>) -> bool) {
        // Drop them after the borrow ends: dropping a connection may call back into the pool.
        let mut gone = Vec::new();
        let mut idle = self.idle.borrow_mut();
        let mut at = 0;
        while let Some(one) = idle.get_mut(at) {
            if stays(one) {
                at += 1;
            } else {
                gone.extend(idle.remove(at));
            }
        }
        drop(idle);
        drop(gone);
    }
}

/// Nothing may arrive on an idle connection. Bytes would be taken for the response to the next request.
fn is_alive<S: Connection>(connection: &mut OriginConnection<S>, cx: &mut Context<'_>) -> bool {
    connection.buffer.is_empty() && connection.stream.poll_fill(cx, &mut connection.buffer).is_pending()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWrite as _, DuplexStream, duplex};

    use super::*;

    fn connection() -> (OriginConnection<DuplexStream>, DuplexStream) {
        let (stream, origin) = duplex(64);
        let stream = SharedStream::new(stream);
        (OriginConnection { stream, buffer: Buffer::default(), is_used: false, is_private: false }, origin)
    }

    fn pool(most: usize) -> Pool<DuplexStream> {
        Pool::new(most, Duration::from_secs(60), Budget::new(100))
    }

    /// Events tell that an older connection is alive. For one that was kept since then the kernel would have
    /// to be asked.
    #[test]
    fn what_was_kept_in_this_turn_comes_last() {
        let (pool, before) = (pool(8), Instant::now());
        let now = before + Duration::from_millis(1);
        let kept = [before, before, now, now].map(|since| {
            let (ours, origin) = connection();
            pool.put(ours, KeptBy::Everybody, None, since);
            origin
        });
        let at = |pool: &Pool<DuplexStream>| {
            pool.idle.borrow().iter().map(|idle| idle.since == now).collect::<Vec<_>>()
        };
        for left in [&[false, true, true][..], &[true, true], &[true], &[]] {
            assert!(pool.take(KeptBy::Everybody, Some(now)).is_some());
            assert_eq!(at(&pool), left);
        }
        drop(kept);
    }

    #[test]
    fn a_connection_is_reused_only_within_its_scope() {
        let (pool, now) = (pool(8), Instant::now());
        let client = KeptBy::Client("192.0.2.1".parse().unwrap());
        let (ours, _origin) = connection();
        pool.put(ours, client, None, now);
        assert!(pool.take(KeptBy::Everybody, None).is_none());
        assert!(pool.take(KeptBy::Client("192.0.2.2".parse().unwrap()), None).is_none());
        assert!(pool.take(client, None).expect("the same client").is_used);
        assert!(pool.is_empty());
    }

    #[test]
    fn dead_connections_and_unsolicited_bytes_prevent_reuse() {
        let (pool, now) = (pool(8), Instant::now());
        let (closed, origin) = connection();
        pool.put(closed, KeptBy::Everybody, None, now);
        drop(origin);
        assert!(pool.take(KeptBy::Everybody, None).is_none());
        let (talking, mut origin) = connection();
        pool.put(talking, KeptBy::Everybody, None, now);
        let said = std::pin::Pin::new(&mut origin)
            .poll_write(&mut Context::from_waker(Waker::noop()), b"HTTP/1.1 200 OK");
        assert!(said.is_ready());
        assert!(pool.take(KeptBy::Everybody, None).is_none());
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let (pool, now) = (pool(2), Instant::now());
        let mut origins = Vec::new();
        for _ in 0..3 {
            let (ours, origin) = connection();
            pool.put(ours, KeptBy::Everybody, None, now);
            origins.push(origin);
        }
        assert_eq!(pool.len(), 2);
        let none = self::pool(0);
        none.put(connection().0, KeptBy::Everybody, None, now);
        assert!(none.is_empty());
    }

    /// No event has reported it: both happen in one turn of the loop.
    #[test]
    fn bytes_that_just_arrived_prevent_reuse() {
        use std::io::Write as _;

        use truepeer_session::connect_as::Upstream;

        use truepeer_stream::reactor::connect;
        use truepeer_stream::stream::Stream;

        let reactor = Reactor::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream =
            Upstream { source: None, backend: listener.local_addr().unwrap(), mark: 0, path_mtu: None };
        let dialler = reactor.clone();
        reactor
            .block_on(async move {
                let pool = Pool::new(8, Duration::from_secs(60), Budget::new(100));
                for ends in [false, true] {
                    let stream =
                        SharedStream::new(Stream::Plain(connect(&dialler, &upstream).await.unwrap()));
                    let buffer = Buffer::default();
                    let ours = OriginConnection { stream, buffer, is_used: false, is_private: false };
                    let (mut origin, _) = listener.accept().unwrap();
                    pool.put(ours, KeptBy::Everybody, None, dialler.now());
                    let kept = pool.take(KeptBy::Everybody, None).expect("nothing has come");
                    pool.put(kept, KeptBy::Everybody, None, dialler.now());
                    if ends {
                        drop(origin);
                    } else {
                        origin.write_all(b"HTTP/1.1 200 OK").unwrap();
                    }
                    // As in a later turn, whose events don't tell of it.
                    let later = dialler.now() + Duration::from_nanos(1);
                    let kept = pool.take(KeptBy::Everybody, Some(later)).expect("no event tells of it");
                    pool.put(kept, KeptBy::Everybody, None, later);
                    assert!(pool.take(KeptBy::Everybody, Some(later)).is_none(), "it came in this turn");
                }
            })
            .unwrap();
    }

    #[test]
    fn idle_connections_count_as_sessions_and_yield_to_them() {
        let (sessions, now) = (Budget::new(8), Instant::now());
        let pool = Pool::new(8, Duration::from_secs(60), sessions.clone());
        let (ours, _origin) = connection();
        pool.put(ours, KeptBy::Everybody, None, now);
        assert_eq!(sessions.used(), 1);
        let clients = sessions.take(6).expect("6 of 8");
        let (other, _other_origin) = connection();
        pool.put(other, KeptBy::Everybody, None, now);
        assert_eq!((pool.len(), sessions.used()), (1, 7));
        let reactor = Reactor::new().unwrap();
        let pool = std::rc::Rc::new(pool);
        let sleeper = reactor.clone();
        reactor.spawn(Pool::keep(std::rc::Rc::downgrade(&pool), reactor.clone()));
        reactor
            .block_on(async move {
                while !pool.is_empty() {
                    sleeper.sleep(Duration::from_millis(10)).await;
                }
            })
            .unwrap();
        assert_eq!(sessions.used(), 6);
        drop(clients);
    }

    #[test]
    fn the_keeper_closes_what_is_too_old_or_closed() {
        let reactor = Reactor::new().unwrap();
        let pool = std::rc::Rc::new(Pool::new(8, Duration::from_millis(1), Budget::new(100)));
        let (old, _old_origin) = connection();
        pool.put(old, KeptBy::Everybody, None, Instant::now());
        reactor.spawn(Pool::keep(std::rc::Rc::downgrade(&pool), reactor.clone()));
        let (waiting, sleeper) = (std::rc::Rc::clone(&pool), reactor.clone());
        reactor
            .block_on(async move {
                while !waiting.is_empty() {
                    sleeper.sleep(Duration::from_millis(10)).await;
                }
            })
            .unwrap();
    }
}
