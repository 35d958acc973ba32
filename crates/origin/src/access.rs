//! A client connection's access to the pool.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use truepeer_stream::stream::Connection;

use super::dial::{Dial, Offer};
use super::origins::Origins;
use super::pool::{KeptBy, OriginConnection, Pool};
use crate::http2::{Http2Pool, Lease};

/// A connection for one request.
#[derive(Debug)]
pub enum Upstream<S> {
    /// By HTTP/1.1.
    Http1(OriginConnection<S>),
    /// A stream of HTTP/2.
    Http2(Lease),
}

impl<S> Upstream<S> {
    /// Whether it has never carried a response.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        match self {
            Self::Http1(origin) => !origin.is_used,
            Self::Http2(lease) => lease.is_fresh(),
        }
    }
}

/// A client connection as the pool knows it. Dropping it closes the connections that were kept for it alone.
#[derive(Debug)]
pub struct Access<S> {
    pool: Rc<Pool<S>>,
    http2: Rc<Http2Pool>,
    shared: KeptBy,
    own: KeptBy,
    has_own: Cell<bool>,
    /// The origin has asked for HTTP/1.1 (HTTP_1_1_REQUIRED), or the client has authenticated a connection,
    /// which only HTTP/1.1 can.
    pub wants_http1: Cell<bool>,
}

impl<S> Access<S> {
    /// `number` is unique among connections; `shared` is the scope that it normally uses.
    pub fn new(pool: &Rc<Pool<S>>, http2: &Rc<Http2Pool>, shared: KeptBy, number: u64) -> Self {
        let own = KeptBy::Connection(number);
        let (pool, http2) = (Rc::clone(pool), Rc::clone(http2));
        Self { pool, http2, shared, own, has_own: Cell::new(shared == own), wants_http1: Cell::new(false) }
    }

    /// Returns a stream of an HTTP/2 connection.
    pub fn lease(&self) -> Option<Lease> {
        self.http2.lease(self.shared)
    }

    /// The scope of a new HTTP/2 connection.
    pub fn scope(&self) -> KeptBy {
        self.shared
    }
}

impl<S: Connection> Access<S> {
    /// A connection that is open already.
    pub fn take_for(&self, offer: Offer, looked: impl FnOnce() -> Option<Instant>) -> Option<Upstream<S>> {
        let http2 = if offer == Offer::Http1 { None } else { self.lease() };
        match http2 {
            Some(lease) => Some(Upstream::Http2(lease)),
            None if offer == Offer::Http2 => None,
            None => self.take(looked()).map(Upstream::Http1),
        }
    }

    /// Returns a connection kept for this one alone, or another that it may use; `looked` as in
    /// [`Pool::take`].
    pub fn take(&self, looked: Option<Instant>) -> Option<OriginConnection<S>> {
        let own = if self.has_own.get() { self.pool.take(self.own, looked) } else { None };
        own.or_else(|| self.pool.take(self.shared, looked))
    }

    /// Keeps a connection for those that may use it; `hint` as in [`Pool::put`].
    pub fn put(&self, connection: OriginConnection<S>, hint: Option<Duration>, now: Instant) {
        let kept_by = if connection.is_private { self.own } else { self.shared };
        if connection.is_private {
            self.has_own.set(true);
            // The client's later requests belong to that connection, with or without credentials.
            self.wants_http1.set(true);
        }
        self.pool.put(connection, kept_by, hint, now);
    }
}

impl<S> Drop for Access<S> {
    fn drop(&mut self) {
        if self.has_own.get() {
            self.pool.forget(self.own);
            self.http2.forget(self.own);
        }
    }
}

/// A client connection's access to each origin's connections.
#[derive(Debug)]
pub struct Accesses<S> {
    first: Access<S>,
    /// One for each further origin, made at the first request to it.
    others: Vec<OnceCell<Box<Access<S>>>>,
    shared: KeptBy,
    number: u64,
}

impl<S> Accesses<S> {
    /// As for [`Access::new`].
    pub fn new<O: Dial<Stream = S>>(origins: &Origins<O>, shared: KeptBy, number: u64) -> Self {
        let first = origins.at(0);
        let others = (1..origins.count()).map(|_| OnceCell::new()).collect();
        Self { first: Access::new(&first.pool, &first.http2, shared, number), others, shared, number }
    }

    /// The access to the origin with this number.
    pub fn to<O: Dial<Stream = S>>(&self, number: usize, origins: &Origins<O>) -> &Access<S> {
        let other = number.checked_sub(1).and_then(|other| self.others.get(other));
        let Some(other) = other else { return &self.first };
        other.get_or_init(|| {
            let origin = origins.at(number);
            Box::new(Access::new(&origin.pool, &origin.http2, self.shared, self.number))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use truepeer_session::budget::Budget;

    use super::*;
    use truepeer_stream::reactor::Reactor;
    use truepeer_stream::read_buffer::Buffer;
    use truepeer_stream::shared_stream::SharedStream;

    fn http2() -> Rc<Http2Pool> {
        Http2Pool::new(&Reactor::new().unwrap(), 8, Duration::from_secs(60), Budget::new(100))
    }

    fn connection(is_private: bool) -> (OriginConnection<DuplexStream>, DuplexStream) {
        let (stream, origin) = duplex(64);
        let stream = SharedStream::new(stream);
        (OriginConnection { stream, buffer: Buffer::default(), is_used: false, is_private }, origin)
    }

    #[test]
    fn a_private_connection_serves_one_client_connection_and_ends_with_it() {
        let (pool, now) = (Rc::new(Pool::new(8, Duration::from_secs(60), Budget::new(100))), Instant::now());
        let (one, other) = (
            Access::new(&pool, &http2(), KeptBy::Everybody, 1),
            Access::new(&pool, &http2(), KeptBy::Everybody, 2),
        );
        let ((private, _first), (shared, _second)) = (connection(true), connection(false));
        one.put(private, None, now);
        assert!(other.take(None).is_none());
        one.put(shared, None, now);
        let mine = one.take(None).expect("its own");
        assert!(mine.is_private);
        assert!(!one.take(None).expect("everybody's").is_private);
        one.put(mine, None, now);
        drop(one);
        assert!(pool.is_empty());
    }

    #[test]
    fn connections_that_name_one_client_end_with_it_too() {
        let pool = Rc::new(Pool::new(8, Duration::from_secs(60), Budget::new(100)));
        let access = Access::new(&pool, &http2(), KeptBy::Connection(7), 7);
        let (ours, _origin) = connection(false);
        access.put(ours, None, Instant::now());
        assert_eq!(pool.len(), 1);
        drop(access);
        assert!(pool.is_empty());
    }
}
