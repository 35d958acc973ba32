//! A worker's HTTP/2 connections to the origin, and who may use them.
//!
//! An idle connection counts as a session, is closed when sessions run short, and ends after a time, as those of HTTP/1.1 do.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use truepeer_session::budget::Budget;

use super::connection::{Http2Connection, Lease, establish};
use super::flight::{Flight, Pilot};
use crate::exchange::HttpSettings;
use crate::origin::{DialError, KeptBy};
use crate::reactor::Reactor;

/// The connections of one listener in one worker.
#[derive(Debug)]
pub struct Http2Pool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    flights: RefCell<Vec<(KeptBy, Rc<Flight>)>>,
    reactor: Reactor,
    most_idle: usize,
    keep: Duration,
    sessions: Budget,
    /// The last connection chose HTTP/1.1, so requests don't wait for each other's dialling.
    chose_http1: Cell<bool>,
}

/// Whether a request dials, or waits for another one that does.
#[derive(Debug)]
pub(crate) enum Joined {
    Pilot(Pilot),
    Passenger(Rc<Flight>),
}

impl Http2Pool {
    /// Keeps at most `most_idle` idle connections, each for at most `keep`.
    #[must_use]
    pub fn new(reactor: &Reactor, most_idle: usize, keep: Duration, sessions: Budget) -> Rc<Self> {
        Rc::new(Self {
            connections: RefCell::default(),
            flights: RefCell::default(),
            reactor: reactor.clone(),
            most_idle,
            keep,
            sessions,
            chose_http1: Cell::new(false),
        })
    }

    pub(super) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// A stream of a connection that `kept_by` may use. The oldest connection with room is used first, so that surplus ones
    /// become idle.
    pub(crate) fn lease(&self, kept_by: KeptBy) -> Option<Lease> {
        let connections = self.connections.borrow();
        let mut usable = connections.iter().filter(|one| one.kept_by == kept_by && one.has_room());
        usable.next().map(Lease::new)
    }

    /// Joins the connection attempt for `kept_by`, or begins one.
    pub(crate) fn join(&self, kept_by: KeptBy) -> Joined {
        let mut flights = self.flights.borrow_mut();
        flights.retain(|(_, flight)| !flight.has_landed());
        if let Some((_, flight)) = flights.iter().find(|(whose, _)| *whose == kept_by) {
            return Joined::Passenger(Rc::clone(flight));
        }
        let flight = Rc::default();
        let pilot = Pilot::new(&flight);
        flights.push((kept_by, flight));
        Joined::Pilot(pilot)
    }

    /// Whether the origin chose HTTP/1.1 for the last connection.
    pub(crate) fn chose_http1(&self) -> bool {
        self.chose_http1.get()
    }

    /// Notes which version the origin has chosen.
    pub(crate) fn note_choice(&self, speaks_http2: bool) {
        self.chose_http1.set(!speaks_http2);
    }

    /// Begins HTTP/2 on a new connection, and returns its first stream.
    ///
    /// # Errors
    /// The other end does not speak HTTP/2.
    pub(crate) async fn add<S>(
        self: &Rc<Self>,
        stream: S,
        kept_by: KeptBy,
        settings: &HttpSettings,
    ) -> Result<Lease, DialError>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let permit = self.sessions.take(1);
        let connection = establish(stream, kept_by, settings, self, permit).await?;
        let lease = Lease::new(&connection);
        self.connections.borrow_mut().push(connection);
        Ok(lease)
    }

    /// A request of `connection` has ended.
    pub(super) fn on_request_end(&self, connection: &Rc<Http2Connection>) {
        if !connection.is_idle() {
            return;
        }
        connection.idle_since.set(self.reactor.now());
        let idle = self.connections.borrow().iter().filter(|one| one.is_idle()).count();
        if connection.is_over() || self.keep.is_zero() || idle > self.most_idle {
            self.remove_unless(|one| !Rc::ptr_eq(one, connection));
        }
    }

    /// The number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the connections that only `kept_by` may use, when their requests have ended.
    pub(crate) fn forget(&self, kept_by: KeptBy) {
        self.remove_unless(|one| one.kept_by != kept_by);
    }

    /// Ends connections that are idle for too long or have been closed by the origin. Ends when the reactor drains, or with the pool.
    pub async fn keep(pool: Weak<Self>, reactor: Reactor) {
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        while let Some(pool) = pool.upgrade().filter(|_| !reactor.is_draining()) {
            let (now, is_short) = (reactor.now(), !pool.sessions.has(pool.sessions.limit() / 8 + 1));
            pool.remove_unless(|one| {
                let may_rest = !is_short && now.saturating_duration_since(one.idle_since.get()) < pool.keep;
                !one.is_over() && (!one.is_idle() || may_rest)
            });
            drop(pool);
            let _ = reactor.timeout(LOOK_AGAIN, reactor.drained()).await;
        }
    }

    /// Removes connections. They end with their last request: nobody else has them.
    fn remove_unless(&self, stays: impl Fn(&Rc<Http2Connection>) -> bool) {
        // Drop them after the borrow ends: that may call back into the pool.
        let mut gone = Vec::new();
        self.connections.borrow_mut().retain(|one| {
            let stays = stays(one);
            if !stays {
                gone.push(Rc::clone(one));
            }
            stays
        });
    }
}
