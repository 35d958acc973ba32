//! Serves one request, independent of the client's HTTP version, with the state that all requests of a listener
//! share.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use truepeer_http1::fields::auth::binds_the_connection;
use truepeer_http1::fields::forwarded::Forwarding;
use truepeer_http1::{BodyLength, Expectation, RequestHead, ResponseHead, write};
use truepeer_policy::ClientAddr;
use truepeer_session::budget::Budget;

use super::failure::Failure;
use super::journal::{RequestJournal, Served};
use super::parties::{Incoming, Outgoing, left};
use super::run::{Answered, OriginLink, run};
use super::settings::HttpSettings;
use super::time_limit::TimeLimit;
use crate::client_info::ClientInfo;
use crate::downstream::IdleList;
use crate::origin::{
    Access, Dial, DialError, Dialled, KeptBy, Offer, OriginConnection, OriginProtocol, Pool,
};
use crate::origin_h2::{self, Exchange, Http2Pool, Joined, Lease};
use crate::reactor::Reactor;
use crate::read_buffer::Buffer;
use crate::shared_stream::SharedStream;
use crate::stream::Connection;

/// The first pause between attempts to reach an origin that restarts. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

thread_local! {
    static CONNECTIONS: Cell<u64> = const { Cell::new(0) };
}

/// A number that is unique among the connections of this worker.
fn next_number() -> u64 {
    CONNECTIONS.replace(CONNECTIONS.get() + 1)
}

/// The state for serving a listener's clients in one worker.
#[derive(Debug)]
pub struct Service<O: Dial> {
    /// The event loop.
    pub reactor: Reactor,
    /// Limits and timeouts.
    pub settings: HttpSettings,
    /// Makes connections to the origin.
    pub dialler: O,
    /// The version of HTTP to speak with the origin.
    pub origin_protocol: OriginProtocol,
    /// Keeps idle connections to the origin (HTTP/1.1).
    pub pool: Rc<Pool<O::Stream>>,
    /// The HTTP/2 connections to the origin.
    pub http2: Rc<Http2Pool>,
    /// The session limit of the whole process.
    pub sessions: Budget,
    /// The backlog limit of the whole process, used by connections after 101.
    pub backlog: Budget,
    /// Who may reuse a connection to the origin.
    pub sharing: Sharing,
    /// How long a request waits for a descriptor, or for an origin that refuses connections, as it does while it
    /// restarts.
    pub retry_timeout: Duration,
    /// Client connections that wait for their next request.
    pub idle: IdleList,
    /// Log and counters.
    pub journal: RequestJournal,
}

/// Who may use a connection to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All clients.
    All,
    /// One client, on all its connections.
    ByClient,
    /// One connection of a client.
    ByConnection,
}

impl Sharing {
    /// The scope for the connection with this number, of this client.
    fn kept_by(self, client: ClientAddr, number: u64) -> KeptBy {
        match self {
            Self::All => KeptBy::Everybody,
            Self::ByClient => KeptBy::Client(client.ip()),
            Self::ByConnection => KeptBy::Connection(number),
        }
    }
}

/// The client of a request, and the connections to the origin that it may use.
pub(crate) struct Requester<'a, S> {
    pub(crate) client_info: &'a ClientInfo,
    pub(crate) access: &'a Access<S>,
}

/// How a request ended, from the viewpoint of its connections.
pub(crate) enum ServeEnd<S> {
    /// With a response that was passed on.
    Answered,
    /// With a change to another protocol: the 101 is in `response` and not passed on yet.
    Switched(OriginConnection<S>),
}

impl<O: Dial> Service<O> {
    /// Creates the scope for a client's new connection.
    pub(crate) fn access(&self, client_info: &ClientInfo) -> Access<O::Stream> {
        let number = next_number();
        Access::new(&self.pool, &self.http2, self.sharing.kept_by(client_info.route.client, number), number)
    }

    /// Refuses a request that the settings don't allow.
    pub(crate) fn check(&self, request: &RequestHead) -> Result<(), Failure> {
        if !self.settings.allows(request.method()) {
            return Err(Failure::MethodNotAllowed);
        }
        if request.expectation == Expectation::Unknown {
            return Err(Failure::Expectation);
        }
        match (request.length, self.settings.max_body) {
            (BodyLength::Known(length), Some(most)) if length > most => Err(Failure::BodyTooLarge),
            _ => Ok(()),
        }
    }

    /// Sends the request to the origin and passes the response on. If the connection turns out to be dead, an idempotent request is
    /// repeated on another one.
    pub(crate) async fn serve<I: Incoming, P: Outgoing>(
        &self,
        requester: &Requester<'_, O::Stream>,
        request: &RequestHead,
        response: &mut ResponseHead,
        time_limit: &(TimeLimit, TimeLimit),
        incoming: &mut I,
        outgoing: &mut P,
    ) -> Result<ServeEnd<O::Stream>, Failure> {
        self.check(request)?;
        let mut out = Vec::with_capacity(1024);
        let mut attempts = Attempts::new(self.reactor.now());
        let has_taken_body = Cell::new(false);
        let mut wish = self.wish(request);
        loop {
            let upstream = match requester.access.take_for(&wish) {
                Some(upstream) => upstream,
                None => self.connect_for(requester, &wish, &time_limit.0, incoming).await?,
            };
            let is_fresh = upstream.is_fresh();
            let by_http2 = matches!(upstream, Upstream::Http2(_));
            let failure = match upstream {
                Upstream::Http1(mut origin) => {
                    out.clear();
                    let forwarding = self.forwarding(requester.client_info, request);
                    write::request(&mut out, request, &forwarding, request.length);
                    let asked =
                        self.ask(&mut origin, request, &mut out, response, time_limit, incoming, outgoing);
                    match asked.await {
                        Ok(Answered::Switched) => return Ok(ServeEnd::Switched(origin)),
                        Ok(Answered::Whole { reusable }) => {
                            if reusable {
                                self.keep(origin, requester, request, response);
                            }
                            return Ok(ServeEnd::Answered);
                        }
                        Err(failure) => failure,
                    }
                }
                Upstream::Http2(lease) => {
                    let exchange = Exchange {
                        lease: &lease,
                        forwarding: self.forwarding(requester.client_info, request),
                        uses_tls: self.dialler.uses_tls(),
                        settings: &self.settings,
                        time_limit,
                        has_taken_body: &has_taken_body,
                    };
                    // Boxed: requests by HTTP/1.1 need none of its memory.
                    match Box::pin(origin_h2::run(exchange, request, response, incoming, outgoing)).await {
                        Ok(()) => return Ok(ServeEnd::Answered),
                        Err(failure) => failure,
                    }
                }
            };
            let is_unprocessed = matches!(failure, Failure::OriginRefused | Failure::OriginWantsHttp1);
            let may_repeat = match failure {
                Failure::OriginRefused | Failure::OriginWantsHttp1 => !has_taken_body.get(),
                // RFC 9110 9.2.2: "A proxy MUST NOT automatically retry non-idempotent requests."
                Failure::OriginClosed => is_repeatable(request),
                _ => false,
            };
            if !may_repeat {
                return Err(failure);
            }
            if failure == Failure::OriginWantsHttp1 {
                wish = Wish { offer: Offer::Http1, ..wish };
            }
            // The origin accepts connections and closes them at once, or refuses every stream: it is shutting down.
            let is_in_vain = (is_fresh && !is_unprocessed) || (by_http2 && attempts.are_many());
            if is_in_vain && !self.may_wait(attempts.began) {
                return Err(failure);
            }
            self.journal.on_retry();
            if is_in_vain {
                self.reactor.sleep(attempts.next_pause()).await;
            }
        }
    }

    /// Keeps a connection for the next request.
    fn keep(
        &self,
        mut origin: OriginConnection<O::Stream>,
        requester: &Requester<'_, O::Stream>,
        request: &RequestHead,
        response: &ResponseHead,
    ) {
        origin.is_private |= binds_the_connection(&request.fields) || binds_the_connection(&response.fields);
        requester.access.put(origin, keep_alive_hint(response), self.reactor.now());
    }

    /// The connection that the request may use.
    fn wish(&self, request: &RequestHead) -> Wish {
        let offer = match self.origin_protocol {
            OriginProtocol::Http1 => Offer::Http1,
            _ if !origin_h2::fits(request, self.dialler.uses_tls()) => Offer::Http1,
            OriginProtocol::Http2 => Offer::Http2,
            OriginProtocol::Auto => Offer::Either,
        };
        Wish { offer, binds: offer != Offer::Http1 && binds_the_connection(&request.fields) }
    }

    #[expect(clippy::too_many_arguments, reason = "an exchange involves this many parties")]
    async fn ask<I: Incoming, P: Outgoing>(
        &self,
        origin: &mut OriginConnection<O::Stream>,
        request: &RequestHead,
        out: &mut Vec<u8>,
        response: &mut ResponseHead,
        time_limit: &(TimeLimit, TimeLimit),
        incoming: &mut I,
        outgoing: &mut P,
    ) -> Result<Answered, Failure> {
        let link = OriginLink {
            stream: &origin.stream,
            buffer: &mut origin.buffer,
            settings: &self.settings,
            time_limit,
        };
        run(link, request, out, response, incoming, outgoing).await
    }

    /// Connects; gives up if the client leaves.
    async fn connect_for<I: Incoming>(
        &self,
        requester: &Requester<'_, O::Stream>,
        wish: &Wish,
        time_limit: &TimeLimit,
        incoming: &mut I,
    ) -> Result<Upstream<O::Stream>, Failure> {
        let has_begun = Cell::new(false);
        // Boxed: connecting is rare, and its large future must not be part of every exchange.
        let mut dialled = Box::pin(self.connect(requester, wish));
        let mut left = pin!(left(incoming, time_limit, &self.settings, &has_begun));
        poll_fn(|cx| match dialled.as_mut().poll(cx) {
            Poll::Pending => left.as_mut().poll(cx).map(Err),
            dialled => dialled,
        })
        .await
    }

    /// Connects, or waits for another request's connection that this one can share.
    async fn connect(
        &self,
        requester: &Requester<'_, O::Stream>,
        wish: &Wish,
    ) -> Result<Upstream<O::Stream>, Failure> {
        let client_info = requester.client_info;
        let may_share = match wish.offer {
            Offer::Http1 => false,
            Offer::Http2 => true,
            Offer::Either => !self.http2.chose_http1(),
        };
        if !may_share {
            return self.dial(client_info, wish.offer, requester.access.http2_scope(wish.binds)).await;
        }
        let scope = requester.access.http2_scope(wish.binds);
        loop {
            match self.http2.join(scope) {
                Joined::Pilot(pilot) => {
                    let dialled = self.dial(client_info, wish.offer, scope).await;
                    if let Err(failure) = &dialled {
                        pilot.fail(failure);
                    }
                    return dialled;
                }
                Joined::Passenger(flight) => flight.landed().await?,
            }
            if let Some(upstream) = requester.access.take_for(wish) {
                return Ok(upstream);
            }
        }
    }

    /// Connects. Tries again for up to `retry_timeout` while the origin refuses connections or descriptors have
    /// run out.
    async fn dial(
        &self,
        client_info: &ClientInfo,
        offer: Offer,
        scope: KeptBy,
    ) -> Result<Upstream<O::Stream>, Failure> {
        let (began, mut pause) = (self.reactor.now(), FIRST_PAUSE);
        loop {
            match self.dialler.dial(client_info, offer).await {
                Ok(Dialled { stream, speaks_http2 }) => {
                    if offer != Offer::Http1 {
                        self.http2.note_choice(speaks_http2);
                    }
                    if speaks_http2 {
                        return self.begin_http2(stream, scope).await;
                    }
                    return Ok(Upstream::Http1(OriginConnection {
                        stream: SharedStream::new(stream),
                        buffer: Buffer::default(),
                        is_used: false,
                        is_private: false,
                    }));
                }
                Err(error) if error.may_pass() && self.may_wait(began) => {
                    if error.is_ours() {
                        self.reclaim(client_info);
                    }
                    self.reactor.sleep(pause).await;
                }
                Err(error) => return Err(error.into()),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn begin_http2(&self, stream: O::Stream, scope: KeptBy) -> Result<Upstream<O::Stream>, Failure> {
        let limit = self.settings.timeouts.settings;
        let begun = self.reactor.timeout(limit, self.http2.add(stream, scope, &self.settings)).await;
        let lease = begun.unwrap_or(Err(DialError::Timeout(limit)))?;
        Ok(Upstream::Http2(lease))
    }

    /// Closes the client connection that has been idle longest, because a request needs its descriptor.
    fn reclaim(&self, client_info: &ClientInfo) {
        let now = self.reactor.now();
        if let Some(waited) = self.idle.end_longest(now) {
            self.journal.on_reclaimed(client_info.route.backend.ip(), waited, now);
        }
    }

    fn may_wait(&self, began: Instant) -> bool {
        self.reactor.now().saturating_duration_since(began) < self.retry_timeout
    }

    fn forwarding<'a>(&self, client_info: &'a ClientInfo, request: &'a RequestHead) -> Forwarding<'a> {
        Forwarding {
            client: client_info.route.client.ip(),
            proto: client_info.scheme,
            host: request.host(),
            client_subject: client_info.client_subject.as_deref(),
            is_trusted: self.settings.trusted.contains(client_info.sender.ip()),
            tells_the_client: self.settings.tells_the_client,
        }
    }

    /// Counts the request and writes its log lines.
    pub(crate) fn note(&self, served: &Served<'_>) {
        self.journal.on_request(served, Instant::now());
    }
}

/// The connection that a request may use.
#[derive(Debug, Clone, Copy)]
struct Wish {
    offer: Offer,
    /// The request authenticates its connection.
    binds: bool,
}

/// A connection for one request.
enum Upstream<S> {
    Http1(OriginConnection<S>),
    Http2(Lease),
}

impl<S> Upstream<S> {
    /// Whether it has never carried a response.
    fn is_fresh(&self) -> bool {
        match self {
            Self::Http1(origin) => !origin.is_used,
            Self::Http2(lease) => lease.is_fresh(),
        }
    }
}

impl<S: Connection> Access<S> {
    /// A connection that is open already.
    fn take_for(&self, wish: &Wish) -> Option<Upstream<S>> {
        let http2 = if wish.offer == Offer::Http1 { None } else { self.lease(wish.binds) };
        match http2 {
            Some(lease) => Some(Upstream::Http2(lease)),
            None if wish.offer == Offer::Http2 => None,
            None => self.take().map(Upstream::Http1),
        }
    }
}

/// The attempts of one request.
struct Attempts {
    began: Instant,
    repeated: u32,
    pause: Duration,
}

impl Attempts {
    /// So many attempts follow each other at once.
    const AT_ONCE: u32 = 4;

    fn new(began: Instant) -> Self {
        Self { began, repeated: 0, pause: FIRST_PAUSE }
    }

    /// Counts a failed attempt. Whether the next one must wait.
    fn are_many(&mut self) -> bool {
        self.repeated += 1;
        self.repeated > Self::AT_ONCE
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// Whether a request can be sent a second time: it is idempotent, and has no body that was already consumed.
fn is_repeatable(request: &RequestHead) -> bool {
    request.is_idempotent() && matches!(request.length, BodyLength::None | BodyLength::Known(0))
}

/// `Keep-Alive: timeout=5`: the origin closes idle connections after 5 s. One second less, for the time on the way.
fn keep_alive_hint(response: &ResponseHead) -> Option<Duration> {
    let field = response.fields.iter().find(|field| field.spelt.eq_ignore_ascii_case(b"keep-alive"))?;
    let seconds = field.value.split(|&byte| byte == b',').find_map(|parameter| {
        let text = std::str::from_utf8(parameter).ok()?.trim();
        text.strip_prefix("timeout=")?.parse().ok()
    })?;
    Some(Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)))
}
