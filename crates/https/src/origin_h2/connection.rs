//! One connection to the origin and its task.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite};
use truepeer_http1::HttpLimits;
use truepeer_session::budget::Permit;

use super::gathering::{GatheringStream, Preface};
use super::pool::Http2Pool;
use crate::exchange::HttpSettings;
use crate::origin::{DialError, KeptBy};
use crate::reactor::{Reactor, Timer};

/// Streams at a time over one connection. More requests use another connection.
const MOST_STREAMS: u32 = 128;
/// Bytes of a response that truepeer holds for a slow client. The connection's window has room for all streams', so
/// that such a client stops no others.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS;
/// Frames for a stream that truepeer has reset are ignored for this long, for this many streams (RFC 9113 section 5.1).
const PASSED_OVER_FOR: Duration = Duration::from_secs(30);
const PASSED_OVER: usize = 1024;
/// How much `h2` may need to hold small DATA frames that no client has taken. An origin that needs more is disconnected.
const SMALL_FRAMES_BUDGET: usize = 1 << 20;
/// A connection ends before its stream numbers (2^30 of the client's) are used up.
const MOST_REQUESTS: u32 = 1 << 29;

/// A connection that requests can use.
#[derive(Debug)]
pub(super) struct Http2Connection {
    sender: SendRequest<Bytes>,
    pub(super) kept_by: KeptBy,
    pub(super) health: Rc<Health>,
    pool: Weak<Http2Pool>,
    /// Since when no stream is open.
    pub(super) idle_since: Cell<Instant>,
    /// It counts as a session.
    _permit: Option<Permit>,
}

/// What requests and the connection's task tell each other.
#[derive(Debug, Default)]
pub(super) struct Health {
    open: Cell<u32>,
    begun: Cell<u32>,
    /// It accepts no further request.
    is_over: Cell<bool>,
    /// It has carried a response.
    is_used: Cell<bool>,
}

impl Http2Connection {
    /// Whether another request can use it.
    pub(super) fn has_room(&self) -> bool {
        let most = self.sender.current_max_send_streams().min(MOST_STREAMS as usize);
        !self.health.is_over.get() && (self.health.open.get() as usize) < most
    }

    pub(super) fn is_over(&self) -> bool {
        self.health.is_over.get()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.health.open.get() == 0
    }
}

/// One request's part of a connection.
#[derive(Debug)]
pub(crate) struct Lease(Rc<Http2Connection>);

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

    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.0.sender.clone()
    }

    /// The connection takes no further request.
    pub(super) fn give_up(&self) {
        self.0.health.is_over.set(true);
    }

    /// The connection has carried a response.
    pub(super) fn note_response(&self) {
        self.0.health.is_used.set(true);
    }

    /// Whether the connection has never carried a response.
    pub(crate) fn is_fresh(&self) -> bool {
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

/// Speaks the connection's first words and waits for the origin's: they say how many streams it takes. Then starts
/// the connection's task.
pub(super) async fn establish<S>(
    stream: S,
    kept_by: KeptBy,
    settings: &HttpSettings,
    pool: &Rc<Http2Pool>,
    permit: Option<Permit>,
) -> Result<Rc<Http2Connection>, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    const NO_SETTINGS: DialError = DialError::NotHttp2("its first bytes are no SETTINGS frame");
    let reactor = pool.reactor();
    let gathering = GatheringStream::new(stream);
    let shaken = builder(&settings.limits).handshake(gathering.clone()).await;
    let (sender, connection) = shaken.map_err(|_| NO_SETTINGS)?;
    let mut task = Task::new(connection, gathering, reactor, settings.timeouts.ping);
    poll_fn(|cx| {
        let ended = task.poll(cx);
        match task.gathering.preface() {
            Preface::Other => Poll::Ready(Err(NO_SETTINGS)),
            Preface::Settings if ended.is_pending() => Poll::Ready(Ok(())),
            _ => ended.map(|()| Err(DialError::NotHttp2("it ended the connection at its start"))),
        }
    })
    .await?;
    let connection = Rc::new(Http2Connection {
        sender,
        kept_by,
        health: Rc::clone(&task.health),
        pool: Rc::downgrade(pool),
        idle_since: Cell::new(reactor.now()),
        _permit: permit,
    });
    // A drained loop doesn't wait for it: requests have their own tasks.
    reactor.spawn_attendant(async move { poll_fn(|cx| task.poll(cx)).await });
    Ok(connection)
}

fn builder(limits: &HttpLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_reset_streams(PASSED_OVER)
        .reset_stream_duration(PASSED_OVER_FOR)
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        // Faulty responses of one connection may be many over its life. Each ends its own request alone.
        .max_local_error_reset_streams(None);
    builder
}

/// Drives `h2` and sends what it has written. Ends with the connection, which lasts as long as the pool or a request has it.
struct Task<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<GatheringStream<S>, Bytes>,
    gathering: GatheringStream<S>,
    health: Rc<Health>,
    pulse: Pulse,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Task<S> {
    fn new(
        mut connection: Connection<GatheringStream<S>, Bytes>,
        gathering: GatheringStream<S>,
        reactor: &Reactor,
        silent_for: Duration,
    ) -> Self {
        let pulse = Pulse::new(connection.ping_pong(), reactor, silent_for);
        Self { connection, gathering, health: Rc::default(), pulse }
    }

    /// Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_alive = self.pulse.poll(cx, self.health.open.get() > 0, self.gathering.received());
        let ended = Pin::new(&mut self.connection).poll(cx).is_ready();
        let sent = self.gathering.poll_send(cx);
        if ended || !is_alive || matches!(sent, Poll::Ready(Err(_))) {
            self.health.is_over.set(true);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// Asks a silent origin for a sign of life (PING) while requests are open.
struct Pulse {
    pings: Option<PingPong>,
    timer: Timer,
    silent_for: Duration,
    /// The bytes received when the timer was armed; `None`: nothing is waited for.
    before: Option<u64>,
    has_asked: bool,
}

impl Pulse {
    fn new(pings: Option<PingPong>, reactor: &Reactor, silent_for: Duration) -> Self {
        Self { pings, timer: reactor.timer(), silent_for, before: None, has_asked: false }
    }

    /// `false`: the origin has not answered in time.
    fn poll(&mut self, cx: &mut Context<'_>, is_waiting: bool, received: u64) -> bool {
        if !is_waiting {
            if self.before.take().is_some() {
                self.timer.disarm();
            }
            return true;
        }
        if self.before.replace(received) != Some(received) {
            self.timer.arm(self.silent_for);
            self.has_asked = false;
        }
        if self.timer.poll_expired(cx).is_pending() {
            return true;
        }
        let Some(pings) = self.pings.as_mut().filter(|_| !self.has_asked) else { return false };
        // The last answer was counted as received bytes already.
        let _ = pings.poll_pong(cx);
        let _ = pings.send_ping(Ping::opaque());
        self.has_asked = true;
        self.timer.arm(self.silent_for);
        // Store the waker for the new deadline.
        self.timer.poll_expired(cx).is_pending()
    }
}
