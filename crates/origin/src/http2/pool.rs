//! A worker's HTTP/2 connections to the origin, and who may use them.
//!
//! An idle connection counts as a session, is closed when sessions run short, and ends after a time, as those
//! of HTTP/1.1 do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};
use std::time::Duration;

use truepeer_policy::BackendAddr;
use truepeer_session::budget::Budget;
use truepeer_stream::reactor::Reactor;
use truepeer_stream::stream::Connection;

use super::attempt::{ConnectAttempt, Dialling};
use super::connection::{Http2Connection, Lease, establish};
use crate::dial::DialError;
use crate::pool::KeptBy;
use crate::settings::HttpSettings;

/// Attempts with both the same can be joined. Of a host's two addresses, one may refuse connections.
type Destination = (KeptBy, BackendAddr);

/// The connections of one listener in one worker.
#[derive(Debug)]
pub struct Http2Pool {
    connections: RefCell<HashMap<KeptBy, Vec<Rc<Http2Connection>>>>,
    /// Connections without open streams, the longest idle first.
    idle: RefCell<BTreeMap<u64, Rc<Http2Connection>>>,
    next_idle: Cell<u64>,
    attempts: RefCell<HashMap<Destination, Vec<Rc<ConnectAttempt>>>>,
    reactor: Reactor,
    most_idle: usize,
    keep: Duration,
    sessions: Budget,
    /// The last connection chose HTTP/1.1, so requests don't wait for each other's dialling.
    chose_http1: Cell<bool>,
    /// The streams that the last connection could have at a time.
    streams: Cell<usize>,
    /// `false` while the reactor drains: nothing is kept.
    is_kept: Cell<bool>,
}

/// Whether a request dials, or waits for another one that does.
#[derive(Debug)]
pub enum Joined {
    /// It dials, for all that wait.
    Dials(Dialling),
    /// It waits.
    Waits(Rc<ConnectAttempt>),
}

impl Http2Pool {
    /// Keeps at most `most_idle` idle connections, each for at most `keep`.
    #[must_use]
    pub fn new(reactor: &Reactor, most_idle: usize, keep: Duration, sessions: Budget) -> Rc<Self> {
        Rc::new(Self {
            connections: RefCell::default(),
            idle: RefCell::default(),
            next_idle: Cell::new(0),
            attempts: RefCell::default(),
            reactor: reactor.clone(),
            most_idle,
            keep,
            sessions,
            chose_http1: Cell::new(false),
            streams: Cell::new(usize::MAX),
            is_kept: Cell::new(true),
        })
    }

    pub(super) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// A stream of a connection that `kept_by` may use. The oldest connection with room is used first, so
    /// that surplus ones become idle.
    pub fn lease(&self, kept_by: KeptBy) -> Option<Lease> {
        let connections = self.connections.borrow();
        let usable = connections.get(&kept_by)?.iter().find(|one| one.has_room())?;
        if let Some((_, place)) = usable.idle.take() {
            self.idle.borrow_mut().remove(&place);
        }
        Some(Lease::new(usable))
    }

    /// Joins a connection attempt for `kept_by`, to this address, that is expected to have room, or begins
    /// one.
    pub fn join(&self, kept_by: KeptBy, backend: BackendAddr) -> Joined {
        let mut attempts = self.attempts.borrow_mut();
        attempts.retain(|_, attempts| {
            attempts.retain(|attempt| !attempt.has_ended());
            !attempts.is_empty()
        });
        let attempts = attempts.entry((kept_by, backend)).or_default();
        if let Some(attempt) = attempts.iter().find(|attempt| attempt.take_place()) {
            return Joined::Waits(Rc::clone(attempt));
        }
        let attempt = ConnectAttempt::new(self.streams.get());
        attempt.take_place();
        let dialling = Dialling::new(&attempt);
        attempts.push(attempt);
        Joined::Dials(dialling)
    }

    /// Whether the origin chose HTTP/1.1 for the last connection.
    pub fn chose_http1(&self) -> bool {
        self.chose_http1.get()
    }

    /// Notes which version the origin has chosen.
    pub fn note_choice(&self, speaks_http2: bool) {
        self.chose_http1.set(!speaks_http2);
    }

    /// Begins HTTP/2 on a new connection, and returns its first stream.
    ///
    /// # Errors
    /// The other end does not speak HTTP/2.
    pub async fn add<S>(
        self: &Rc<Self>,
        stream: S,
        kept_by: KeptBy,
        settings: &HttpSettings,
    ) -> Result<Lease, DialError>
    where
        S: Connection + 'static,
    {
        let permit = self.sessions.take(1);
        let connection = establish(stream, kept_by, settings, self, permit).await?;
        self.streams.set(connection.most_streams().max(1));
        let lease = Lease::new(&connection);
        self.connections.borrow_mut().entry(kept_by).or_default().push(connection);
        Ok(lease)
    }

    /// A request of `connection` has ended.
    pub(super) fn on_request_end(&self, connection: &Rc<Http2Connection>) {
        if !connection.is_idle() {
            return;
        }
        let may_rest = self.is_kept.get() && !self.keep.is_zero() && connection.permit.is_some();
        if connection.is_over() || !may_rest {
            return self.remove(connection);
        }
        let place = self.next_idle.replace(self.next_idle.get() + 1);
        connection.idle.set(Some((self.reactor.now(), place)));
        self.idle.borrow_mut().insert(place, Rc::clone(connection));
        self.close_idle(|_, count| count <= self.most_idle);
    }

    /// The number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.borrow().values().map(Vec::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the connections that only `kept_by` may use, when their requests have ended.
    pub fn forget(&self, kept_by: KeptBy) {
        // Drop them after the borrow ends, here and below: that may call back into the pool.
        let gone = self.connections.borrow_mut().remove(&kept_by);
        for (_, place) in gone.iter().flatten().filter_map(|one| one.idle.take()) {
            let removed = self.idle.borrow_mut().remove(&place);
            drop(removed);
        }
    }

    /// Ends connections that are idle for too long or have been closed by the origin. Ends when the reactor
    /// drains (and closes all that are idle), or with the pool.
    pub async fn keep(pool: Weak<Self>, reactor: Reactor) {
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        while let Some(pool) = pool.upgrade() {
            pool.is_kept.set(!reactor.is_draining());
            let is_short = !pool.sessions.has(pool.sessions.limit() / 8 + 1);
            let (now, rests) = (reactor.now(), pool.is_kept.get() && !is_short);
            pool.close_idle(|one, _| {
                let since = one.idle.get().map_or(now, |(since, _)| since);
                rests && now.saturating_duration_since(since) < pool.keep
            });
            pool.close_ended();
            if !pool.is_kept.get() {
                return;
            }
            drop(pool);
            let _ = reactor.timeout(LOOK_AGAIN, reactor.drained()).await;
        }
    }

    /// Closes idle connections, the longest idle first, up to the first one that `stays`. It is asked with
    /// the number of idle ones.
    fn close_idle(&self, stays: impl Fn(&Http2Connection, usize) -> bool) {
        loop {
            let idle = self.idle.borrow();
            let Some(longest) = idle.values().next().filter(|one| !stays(one, idle.len())).cloned() else {
                return;
            };
            drop(idle);
            self.remove(&longest);
        }
    }

    /// Closes idle connections that the origin has ended.
    fn close_ended(&self) {
        let ended: Vec<_> = self.idle.borrow().values().filter(|one| one.is_over()).cloned().collect();
        ended.iter().for_each(|one| self.remove(one));
    }

    /// Removes a connection. It ends with its last request: nobody else has it.
    fn remove(&self, connection: &Rc<Http2Connection>) {
        let place = connection.idle.take();
        let resting = place.and_then(|(_, place)| self.idle.borrow_mut().remove(&place));
        let mut connections = self.connections.borrow_mut();
        if let Some(list) = connections.get_mut(&connection.kept_by) {
            list.retain(|one| !Rc::ptr_eq(one, connection));
            if list.is_empty() {
                connections.remove(&connection.kept_by);
            }
        }
        drop(connections);
        drop(resting);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    fn client(number: u8) -> KeptBy {
        KeptBy::Client([192, 0, 2, number].into())
    }

    /// A connection for the client with this number, and the origin's end of it.
    async fn connection(pool: &Rc<Http2Pool>, number: u8) -> (Lease, DuplexStream) {
        let (ours, mut origin) = duplex(1 << 16);
        origin.write_all(&SETTINGS).await.unwrap();
        (pool.add(ours, client(number), &HttpSettings::default()).await.unwrap(), origin)
    }

    fn run(most_idle: usize, sessions: &Budget, test: impl AsyncFnOnce(Reactor, Rc<Http2Pool>) + 'static) {
        let reactor = Reactor::new().unwrap();
        let pool = Http2Pool::new(&reactor, most_idle, Duration::from_secs(60), sessions.clone());
        let own = reactor.clone();
        reactor.block_on(async move { test(own, pool).await }).unwrap();
    }

    #[test]
    fn the_longest_idle_goes_when_there_are_too_many() {
        run(2, &Budget::new(100), async |_, pool| {
            let (mut leases, mut origins) = (Vec::new(), Vec::new());
            for number in 1..=3 {
                let (lease, origin) = connection(&pool, number).await;
                leases.push(lease);
                origins.push(origin);
            }
            leases.clear();
            let rests = |number| pool.lease(client(number)).is_some();
            assert_eq!([1, 2, 3].map(rests), [false, true, true]);
            // Used again: now the third has been idle longest.
            drop(pool.lease(client(2)));
            let (lease, _origin) = connection(&pool, 4).await;
            drop(lease);
            assert_eq!([2, 3, 4].map(rests), [true, false, true]);
            assert_eq!(pool.len(), 2);
        });
    }

    #[test]
    fn a_connection_that_does_not_count_as_a_session_is_not_kept() {
        let sessions = Budget::new(1);
        run(8, &sessions, async |_, pool| {
            let ((counted, _one), (other, _two)) = (connection(&pool, 1).await, connection(&pool, 2).await);
            drop((counted, other));
            assert_eq!(pool.len(), 1);
            pool.forget(client(1));
            assert!(pool.is_empty() && pool.idle.borrow().is_empty());
        });
    }

    #[test]
    fn a_drain_closes_what_is_idle_and_keeps_nothing() {
        run(8, &Budget::new(100), async |reactor, pool| {
            let ((idle, _one), (busy, _two)) = (connection(&pool, 1).await, connection(&pool, 2).await);
            drop(idle);
            reactor.spawn(Http2Pool::keep(Rc::downgrade(&pool), reactor.clone()));
            reactor.sleep(Duration::from_millis(1)).await;
            assert_eq!(pool.len(), 2);
            reactor.remote().drain();
            reactor.sleep(Duration::from_millis(1)).await;
            assert_eq!(pool.len(), 1);
            drop(busy);
            assert!(pool.is_empty());
        });
    }
}
