//! Serves one request, independent of the client's HTTP version, with the state that all requests of a
//! listener share.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use truepeer_http::fields::auth::binds_the_connection;
use truepeer_http::fields::forwarded::Forwarding;
use truepeer_http::fields::{Field, FieldName};
use truepeer_http::http2::encode;
use truepeer_http::{BodyLength, Expectation, RequestHead, ResponseHead, write};
use truepeer_origin::http1::{OriginLink, run};
use truepeer_origin::http2::{self, Joined, StreamLink};
use truepeer_origin::{
    Access, Accesses, Answered, BodyStart, ClientInfo, Dial, DialError, Dialled, Failure, HttpSettings,
    Incoming, KeptBody, KeptBy, Offer, Origin, OriginConnection, Origins, Outgoing, TimeLimit, Upstream,
    left,
};
use truepeer_policy::{BackendAddr, ClientAddr};
use truepeer_session::budget::Budget;
use truepeer_stream::buffers::OutBuffer;
use truepeer_stream::reactor::Reactor;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;

use super::journal::{RequestJournal, Served};
use super::redirect::{answer_text, redirect};
use crate::challenges::Challenges;
use crate::downstream::IdleList;
use crate::sites::OwnSite;

/// The first pause between attempts to reach an origin that restarts. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Events that are not older than this tell whether a kept connection is open: about as long as a request
/// takes to reach the origin.
const RECENT: Duration = Duration::from_micros(50);

/// So many connections of its own an idempotent request gets after one by HTTP/2 has ended under it.
const MOST_CLOSED: u32 = 2;

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
    /// Answers to an ACME authority, which come before everything else.
    pub challenges: Option<Arc<Challenges>>,
    /// The origins, and which requests go to which.
    pub origins: Origins<O>,
    /// The session limit of the whole process.
    pub sessions: Budget,
    /// The backlog limit of the whole process, used by connections after 101.
    pub backlog: Budget,
    /// Who may reuse a connection to the origin.
    pub sharing: Sharing,
    /// The site that it is, if several share the listener.
    pub site: Option<OwnSite>,
    /// How long a request waits for a descriptor, or for an origin that refuses connections, as it does
    /// while it restarts.
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

/// The client of a request, and the connections to origins that it may use.
pub(crate) struct Requester<'a, S> {
    pub(crate) client_info: &'a ClientInfo,
    pub(crate) access: &'a Accesses<S>,
}

/// The origin of a request, and the connections to it that the client may use.
pub(super) struct Target<'a, O: Dial> {
    pub(super) client_info: &'a ClientInfo,
    pub(super) origin: &'a Origin<O>,
    pub(super) access: &'a Access<O::Stream>,
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
    pub(crate) fn access(&self, client_info: &ClientInfo) -> Accesses<O::Stream> {
        let number = next_number();
        Accesses::new(&self.origins, self.sharing.kept_by(client_info.route.client, number), number)
    }

    /// Creates a scope that shares connections with nobody.
    pub(super) fn private_access(&self, origin: &Origin<O>) -> Access<O::Stream> {
        let number = next_number();
        Access::new(&origin.pool, &origin.http2, KeptBy::Connection(number), number)
    }

    /// Refuses a request that the settings don't allow.
    pub(crate) fn check(&self, request: &RequestHead) -> Result<(), Failure> {
        if self.site.as_ref().is_some_and(|site| site.names.misdirects(site.number, request.host())) {
            return Err(Failure::Misdirected);
        }
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

    /// Answers the request, mostly as its origin does.
    pub(crate) async fn serve<I: Incoming, P: Outgoing>(
        &self,
        requester: &Requester<'_, O::Stream>,
        request: &RequestHead,
        response: &mut ResponseHead,
        time_limit: &(TimeLimit, TimeLimit),
        incoming: &mut I,
        outgoing: &mut P,
    ) -> Result<ServeEnd<O::Stream>, Failure> {
        let challenges = self.challenges.as_ref();
        if let Some(text) = challenges.and_then(|challenges| challenges.text(request.target())) {
            answer_text(request, &text, response, outgoing).await?;
            return Ok(ServeEnd::Answered);
        }
        if let Some(port) = self.settings.redirect {
            redirect(request, port, response, outgoing).await?;
            return Ok(ServeEnd::Answered);
        }
        self.check(request)?;
        let number = self.origins.pick(request.host(), request.target());
        let target = Target {
            client_info: requester.client_info,
            origin: self.origins.at(number),
            access: requester.access.to(number, &self.origins),
        };
        if target.origin.health.is_down(requester.client_info.route.client) {
            return Err(Failure::OriginDown);
        }
        self.exchange(&target, request, response, time_limit, incoming, outgoing).await
    }

    /// Sends the request to its origin and passes the response on. Sends it again if the origin says that it
    /// has not processed it, or if the connection turns out to be dead and the request is idempotent.
    pub(super) async fn exchange<I: Incoming, P: Outgoing>(
        &self,
        target: &Target<'_, O>,
        request: &RequestHead,
        response: &mut ResponseHead,
        time_limit: &(TimeLimit, TimeLimit),
        incoming: &mut I,
        outgoing: &mut P,
    ) -> Result<ServeEnd<O::Stream>, Failure> {
        let mut out = OutBuffer::take();
        let mut attempts = Attempts::new(self.reactor.now());
        let mut offer = self.offer(target, request);
        let start = BodyStart::new(offer != Offer::Http1);
        let mut body = KeptBody::new(incoming, &start);
        let (mut own, mut closed) = (None::<Box<Access<O::Stream>>>, 0);
        loop {
            let access = own.as_deref().unwrap_or(target.access);
            let upstream = match access.take_for(offer, || self.last_look(request)) {
                Some(upstream) => upstream,
                None => {
                    let target = &Target { access, ..*target };
                    self.connect_for(target, offer, &time_limit.0, &mut body).await?
                }
            };
            let is_fresh = upstream.is_fresh();
            let by_http2 = matches!(upstream, Upstream::Http2(_));
            let failure = match upstream {
                Upstream::Http1(mut origin) => {
                    start.keep_no_more();
                    out.clear();
                    let forwarding = self.forwarding(target.client_info, request);
                    write::request(&mut out, request, &forwarding, request.length);
                    // Await at once: a future in a variable would be copied once more.
                    match self
                        .ask(&mut origin, request, &mut out, response, time_limit, &mut body, outgoing)
                        .await
                    {
                        Ok(Answered::Switched) => return Ok(ServeEnd::Switched(origin)),
                        Ok(Answered::Whole { reusable }) => {
                            if reusable {
                                self.keep(origin, access, request, response);
                            }
                            return Ok(ServeEnd::Answered);
                        }
                        // Judge only what comes instead of a head: a body may begin with any bytes.
                        Err(
                            Failure::BadResponse(_) | Failure::OriginTruncated | Failure::OriginTimeout(_),
                        ) if http2::is_spoken(origin.buffer.data()) => Failure::OriginNotHttp1,
                        Err(failure) => failure,
                    }
                }
                Upstream::Http2(lease) => {
                    let link = StreamLink {
                        lease: &lease,
                        forwarding: self.forwarding(target.client_info, request),
                        uses_tls: target.origin.dialler.uses_tls(),
                        settings: &self.settings,
                        time_limit,
                        start: &start,
                    };
                    // Boxed: requests by HTTP/1.1 need none of its memory.
                    match Box::pin(http2::run(link, request, response, &mut body, outgoing)).await {
                        Ok(_) => return Ok(ServeEnd::Answered),
                        Err(failure) => failure,
                    }
                }
            };
            let is_unprocessed = matches!(failure, Failure::OriginRefused | Failure::OriginWantsHttp1);
            let may_repeat = match failure {
                // It may itself be what makes the origin end connections, and with them other clients'
                // requests.
                Failure::OriginClosed if by_http2 && closed == MOST_CLOSED => false,
                Failure::OriginRefused | Failure::OriginWantsHttp1 => start.is_whole(),
                // RFC 9110 9.2.2: "A proxy MUST NOT automatically retry non-idempotent requests."
                Failure::OriginClosed => request.is_idempotent() && start.is_whole(),
                _ => false,
            };
            if !may_repeat {
                return Err(failure);
            }
            if by_http2 && failure == Failure::OriginClosed {
                closed += 1;
            }
            if failure == Failure::OriginWantsHttp1 {
                target.access.wants_http1.set(true);
                offer = Offer::Http1;
            }
            // The origin accepts connections and closes them at once, or refuses every stream: it is shutting
            // down.
            let is_one_of_many = by_http2 && attempts.are_many();
            let is_in_vain = (is_fresh && !is_unprocessed) || is_one_of_many;
            // An origin may answer only the first request of each connection: don't compete for that with
            // other requests.
            if is_one_of_many || closed > 0 {
                own.get_or_insert_with(|| Box::new(self.private_access(target.origin)));
            }
            if is_in_vain && (target.client_info.is_own || !self.may_wait(attempts.began)) {
                return Err(failure);
            }
            self.journal.on_retry();
            body.rewind();
            if is_in_vain {
                self.reactor.sleep(attempts.next_pause()).await;
            }
        }
    }

    /// When the last events came, if they are enough to take a kept connection for open: the kernel need not
    /// be asked. If the origin closes it after them, the request meets the close, and an idempotent
    /// request without a body is sent again.
    pub(super) fn last_look(&self, request: &RequestHead) -> Option<Instant> {
        let can_be_repeated = request.is_idempotent() && request.length == BodyLength::None;
        (can_be_repeated && self.reactor.has_all_events_of(RECENT)).then(|| self.reactor.now())
    }

    /// Keeps a connection for the next request.
    fn keep(
        &self,
        mut origin: OriginConnection<O::Stream>,
        access: &Access<O::Stream>,
        request: &RequestHead,
        response: &ResponseHead,
    ) {
        origin.is_private |= binds_the_connection(&request.fields) || binds_the_connection(&response.fields);
        access.put(origin, keep_alive_hint(response), self.reactor.now());
    }

    /// The versions of HTTP that the request can use.
    fn offer(&self, target: &Target<'_, O>, request: &RequestHead) -> Offer {
        match target.origin.protocol.offer() {
            Offer::Http1 => Offer::Http1,
            _ if target.access.wants_http1.get() => Offer::Http1,
            _ if !encode::fits(request, target.origin.dialler.uses_tls()) => Offer::Http1,
            // NTLM and Negotiate authenticate a whole connection, but in HTTP/2 several clients share one.
            _ if binds_the_connection(&request.fields) => Offer::Http1,
            offer => offer,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an exchange involves this many parties")]
    fn ask<'a, I: Incoming, P: Outgoing>(
        &'a self,
        origin: &'a mut OriginConnection<O::Stream>,
        request: &'a RequestHead,
        out: &'a mut Vec<u8>,
        response: &'a mut ResponseHead,
        time_limit: &'a (TimeLimit, TimeLimit),
        incoming: &'a mut I,
        outgoing: &'a mut P,
    ) -> impl Future<Output = Result<Answered, Failure>> {
        let link = OriginLink {
            stream: &origin.stream,
            buffer: &mut origin.buffer,
            settings: &self.settings,
            time_limit,
        };
        run(link, request, out, response, incoming, outgoing)
    }

    /// Connects; gives up if the client leaves.
    async fn connect_for<I: Incoming>(
        &self,
        target: &Target<'_, O>,
        offer: Offer,
        time_limit: &TimeLimit,
        incoming: &mut I,
    ) -> Result<Upstream<O::Stream>, Failure> {
        let has_begun = Cell::new(false);
        // Boxed: connecting is rare, and its large future must not be part of every exchange.
        let mut dialled = Box::pin(self.connect(target, offer));
        let mut left = pin!(left(incoming, time_limit, &self.settings, &has_begun));
        poll_fn(|cx| match dialled.as_mut().poll(cx) {
            Poll::Pending => left.as_mut().poll(cx).map(Err),
            dialled => dialled,
        })
        .await
    }

    /// Connects, or waits for another request's connection that this one can share. Tries again for up to
    /// `retry_timeout`, as [`Self::dial`] does.
    async fn connect(&self, target: &Target<'_, O>, offer: Offer) -> Result<Upstream<O::Stream>, Failure> {
        let (began, scope) = (self.reactor.now(), target.access.scope());
        let backend = target.origin.dialler.backend(target.client_info);
        loop {
            // Ask again after each attempt: it may have shown that the origin speaks HTTP/1.1.
            let may_share = match offer {
                Offer::Http1 => false,
                Offer::Http2 => true,
                Offer::Either => !target.origin.http2.chose_http1(),
            };
            if !may_share {
                return self.dial(target, offer, scope, began).await;
            }
            match target.origin.http2.join(scope, backend) {
                Joined::Dials(dialling) => {
                    let dialled = self.dial(target, offer, scope, began).await;
                    if let Err(failure) = &dialled {
                        dialling.fail(failure);
                    }
                    return dialled;
                }
                Joined::Waits(attempt) => match attempt.ended().await {
                    // The other request's time is over, not this one's.
                    Err(Failure::Dial(error)) if self.may_dial_again(&error, target, began) => {}
                    ended => ended?,
                },
            }
            if let Some(upstream) = target.access.take_for(offer, || None) {
                return Ok(upstream);
            }
        }
    }

    /// Connects. Tries again for up to `retry_timeout` while the origin refuses connections or closes them at
    /// once, or while no descriptor is free.
    async fn dial(
        &self,
        target: &Target<'_, O>,
        offer: Offer,
        scope: KeptBy,
        began: Instant,
    ) -> Result<Upstream<O::Stream>, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.dial_once(target, offer, scope).await {
                Ok(upstream) => return Ok(upstream),
                Err(error) if self.may_dial_again(&error, target, began) => {
                    if error.is_ours() {
                        self.reclaim(target.client_info);
                    }
                    self.reactor.sleep(pause).await;
                }
                Err(error) => return Err(error.into()),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether a request that began to connect at `began` tries again after this error.
    fn may_dial_again(&self, error: &DialError, target: &Target<'_, O>, began: Instant) -> bool {
        // A check neither waits nor takes a descriptor from a client.
        error.may_pass() && self.may_wait(began) && !target.client_info.is_own
    }

    async fn dial_once(
        &self,
        target: &Target<'_, O>,
        offer: Offer,
        scope: KeptBy,
    ) -> Result<Upstream<O::Stream>, DialError> {
        let Dialled { stream, speaks_http2 } = target.origin.dialler.dial(target.client_info, offer).await?;
        if offer != Offer::Http1 {
            target.origin.http2.note_choice(speaks_http2);
        }
        if speaks_http2 {
            return self.begin_http2(target, stream, scope).await;
        }
        Ok(Upstream::Http1(OriginConnection {
            stream: SharedStream::new(stream),
            buffer: Buffer::default(),
            is_used: false,
            is_private: false,
        }))
    }

    async fn begin_http2(
        &self,
        target: &Target<'_, O>,
        stream: O::Stream,
        scope: KeptBy,
    ) -> Result<Upstream<O::Stream>, DialError> {
        let limit = self.settings.timeouts.settings;
        let begun = self.reactor.timeout(limit, target.origin.http2.add(stream, scope, &self.settings)).await;
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
            tells_the_client: self.settings.tells_the_client && !client_info.is_own,
        }
    }

    /// Where the request belongs.
    pub(crate) fn origin_of(&self, client_info: &ClientInfo, request: &RequestHead) -> BackendAddr {
        let number = self.origins.pick(request.host(), request.target());
        self.origins.at(number).dialler.backend(client_info)
    }

    /// Counts the request and writes its log lines.
    pub(crate) fn note(&self, served: &Served<'_>) {
        self.journal.on_request(served);
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

/// `Keep-Alive: timeout=5`: the origin closes idle connections after 5 s. One second less, for the time on
/// the way.
fn keep_alive_hint(response: &ResponseHead) -> Option<Duration> {
    let is_hint = |field: &Field<'_>| {
        field.name == FieldName::OneHop && field.spelt.eq_ignore_ascii_case(b"keep-alive")
    };
    let field = response.fields.iter().find(is_hint)?;
    let seconds = field.value.split(|&byte| byte == b',').find_map(|parameter| {
        let text = std::str::from_utf8(parameter).ok()?.trim();
        text.strip_prefix("timeout=")?.parse().ok()
    })?;
    Some(Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)))
}
