//! One connection to the origin and its task.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use truepeer_http::HeadError;
use truepeer_http::http2::{Connection as Http2State, NotBegun, Preface, Reason, Role, StreamHandle};
use truepeer_session::budget::Permit;
use truepeer_stream::reactor::{Reactor, Timer};
use truepeer_stream::stream::Connection;

use super::ping_watch::PingWatch;
use super::pool::Http2Pool;
use crate::dial::DialError;
use crate::http2_wire::Http2Wire;
use crate::pool::KeptBy;
use crate::settings::HttpSettings;

/// After so many resets a connection takes no further request. Clients that leave cause resets, and servers
/// end connections that have many (nghttp2 and Node allow 1000, and 33 a second), with all other clients'
/// requests.
const MOST_RESETS: u32 = 200;
/// A connection ends before its stream numbers (2^30 of the client's) are used up.
const MOST_REQUESTS: u32 = 1 << 29;

/// A connection that requests can use.
#[derive(Debug)]
pub(super) struct Http2Connection {
    state: Rc<RefCell<Http2State>>,
    pub(super) kept_by: KeptBy,
    pub(super) health: Rc<Health>,
    pool: Weak<Http2Pool>,
    /// When the last stream ended, and the connection's place among the idle ones.
    pub(super) idle: Cell<Option<(Instant, u64)>>,
    /// The connection counts as a session. `None`: no session was left.
    pub(super) permit: Option<Permit>,
}

/// What requests and the connection's task tell each other.
#[derive(Debug, Default)]
pub(super) struct Health {
    open: Cell<u32>,
    begun: Cell<u32>,
    /// Streams that truepeer has reset.
    reset: Cell<u32>,
    /// It accepts no further request.
    is_over: Cell<bool>,
    /// It has carried a response.
    is_used: Cell<bool>,
}

impl Http2Connection {
    /// Whether another request can use it.
    pub(super) fn has_room(&self) -> bool {
        !self.health.is_over.get() && self.state.borrow().has_room(self.health.open.get())
    }

    /// The streams that it can have at a time.
    pub(super) fn most_streams(&self) -> usize {
        self.state.borrow().most_streams() as usize
    }

    pub(super) fn is_over(&self) -> bool {
        self.health.is_over.get() || self.state.borrow().is_over()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.health.open.get() == 0
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.state.borrow_mut().let_go();
    }
}

/// One request's part of a connection.
#[derive(Debug)]
pub struct Lease(Rc<Http2Connection>);

impl Lease {
    pub(super) fn new(connection: &Rc<Http2Connection>) -> Self {
        let health = &connection.health;
        health.open.set(health.open.get() + 1);
        health.begun.set(health.begun.get() + 1);
        if health.begun.get() >= MOST_REQUESTS {
            health.is_over.set(true);
        }
        Self(Rc::clone(connection))
    }

    /// Begins the request; `write` appends its head's fields. `is_whole`: it has no body.
    pub(super) fn begin(
        &self,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), HeadError>,
    ) -> Result<StreamHandle, NotBegun> {
        StreamHandle::begin(&self.0.state, is_whole, write)
    }

    /// The connection takes no further request.
    pub(super) fn give_up(&self) {
        self.0.health.is_over.set(true);
    }

    /// A stream was reset before its request and its response were complete.
    pub(super) fn note_reset(&self) {
        let health = &self.0.health;
        health.reset.set(health.reset.get() + 1);
        if health.reset.get() >= MOST_RESETS {
            health.is_over.set(true);
        }
    }

    /// The connection has carried a response.
    pub(super) fn note_response(&self) {
        self.0.health.is_used.set(true);
    }

    /// Whether the connection has never carried a response.
    pub fn is_fresh(&self) -> bool {
        !self.0.health.is_used.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let health = &self.0.health;
        health.open.set(health.open.get() - 1);
        if let Some(pool) = self.0.pool.upgrade() {
            pool.on_request_end(&self.0);
        }
    }
}

/// Speaks the connection's first words and waits for the origin's: they say how many streams it takes. Then
/// starts the connection's task.
pub(super) async fn establish<S>(
    stream: S,
    kept_by: KeptBy,
    settings: &HttpSettings,
    pool: &Rc<Http2Pool>,
    permit: Option<Permit>,
) -> Result<Rc<Http2Connection>, DialError>
where
    S: Connection + 'static,
{
    const NO_SETTINGS: DialError = DialError::NotHttp2("its first bytes are no SETTINGS frame");
    let reactor = pool.reactor();
    let wire = Http2Wire::new(stream, Role::Client, &settings.limits, reactor);
    let state = Rc::clone(&wire.state);
    let mut task = Task::new(wire, reactor, settings.timeouts.ping);
    poll_fn(|cx| {
        let ended = task.poll(cx);
        let preface = state.borrow().preface();
        match preface {
            Preface::Other => Poll::Ready(Err(NO_SETTINGS)),
            Preface::Settings if ended.is_pending() && state.borrow().most_streams() == 0 => {
                Poll::Ready(Err(DialError::NoStreams))
            }
            Preface::Settings if ended.is_pending() => Poll::Ready(Ok(())),
            _ => ended.map(|()| Err(DialError::ClosedAtStart("before its SETTINGS; does it speak HTTP/2?"))),
        }
    })
    .await?;
    let connection = Rc::new(Http2Connection {
        state,
        kept_by,
        health: Rc::clone(&task.health),
        pool: Rc::downgrade(pool),
        idle: Cell::new(None),
        permit,
    });
    // A drained loop doesn't wait for it: requests have their own tasks.
    reactor.spawn_attendant(async move { poll_fn(|cx| task.poll(cx)).await });
    Ok(connection)
}

/// Reads what the origin sends, and sends what the requests have written. Ends with the connection, which
/// lasts as long as the pool or a request has it.
struct Task<S> {
    wire: Http2Wire<S>,
    /// Set once the last frame was written: the origin has until this timer expires to take it.
    closing: Option<Timer>,
    reactor: Reactor,
    health: Rc<Health>,
    ping_watch: PingWatch,
}

impl<S: Connection> Task<S> {
    fn new(wire: Http2Wire<S>, reactor: &Reactor, silent_for: Duration) -> Self {
        let ping_watch = PingWatch::new(reactor, silent_for);
        Self { wire, closing: None, reactor: reactor.clone(), health: Rc::default(), ping_watch }
    }

    /// Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wire.state.borrow_mut().set_task(cx.waker());
        loop {
            let received =
                if self.closing.is_some() { Poll::Pending } else { self.wire.poll_receive(cx, || {}) };
            match received {
                Poll::Ready(None) => return self.ended(),
                Poll::Ready(Some(fault)) => self.close(fault.reason()),
                Poll::Pending if self.wire.state.borrow().is_done() => self.close(Reason::NO_ERROR),
                Poll::Pending => {}
            }
            if self.is_silent(cx) {
                return self.ended();
            }
            let was_full = self.wire.state.borrow().is_owed_too_much();
            match self.wire.poll_send(cx) {
                Poll::Ready(Ok(())) if self.closing.is_some() => {
                    let _ = ready!(Pin::new(&mut self.wire.stream).poll_shutdown(cx));
                    return self.ended();
                }
                Poll::Ready(Err(_)) => {
                    if self.closing.is_none() {
                        ready!(self.wire.poll_last_words(cx));
                    }
                    return self.ended();
                }
                // `out` was full, so nothing was read: read on, because there is room for answers again.
                Poll::Ready(Ok(())) if was_full => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Whether the origin has not answered a PING, or not taken the last frame, in time.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(closing) = &self.closing {
            return closing.poll_expired(cx).is_ready();
        }
        let (begun, open) = (self.health.begun.get(), self.health.open.get());
        let (state, received) = (&self.wire.state, self.wire.received);
        !self.ping_watch.poll(cx, begun, open, received, || state.borrow_mut().ping())
    }

    /// Ends the connection with GOAWAY.
    fn close(&mut self, reason: Reason) {
        if self.closing.is_none() {
            let timer = self.closing.insert(self.reactor.timer());
            timer.arm(self.ping_watch.silent_for());
            self.health.is_over.set(true);
            self.wire.state.borrow_mut().go_away(reason);
        }
    }

    fn ended(&self) -> Poll<()> {
        self.health.is_over.set(true);
        self.wire.state.borrow_mut().end();
        Poll::Ready(())
    }
}
