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
use crate::origin::{Access, Dial, KeptBy, OriginConnection, Pool};
use crate::reactor::Reactor;
use crate::read_buffer::Buffer;
use crate::shared_stream::SharedStream;

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
    /// Keeps idle connections to the origin.
    pub pool: Rc<Pool<O::Stream>>,
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
        Access::new(&self.pool, self.sharing.kept_by(client_info.route.client, number), number)
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
        let (began, mut pause) = (self.reactor.now(), FIRST_PAUSE);
        loop {
            let mut origin = match requester.access.take() {
                Some(origin) => origin,
                None => self.dial_for(requester.client_info, &time_limit.0, incoming).await?,
            };
            let is_fresh = !origin.is_used;
            out.clear();
            write::request(
                &mut out,
                request,
                &self.forwarding(requester.client_info, request),
                request.length,
            );
            let asked =
                self.ask(&mut origin, request, &mut out, response, time_limit, incoming, outgoing).await;
            match asked {
                Ok(Answered::Switched) => return Ok(ServeEnd::Switched(origin)),
                Ok(Answered::Whole { reusable }) => {
                    if reusable {
                        origin.is_private |=
                            binds_the_connection(&request.fields) || binds_the_connection(&response.fields);
                        requester.access.put(origin, keep_alive_hint(response), self.reactor.now());
                    }
                    return Ok(ServeEnd::Answered);
                }
                // RFC 9110 9.2.2: "A proxy MUST NOT automatically retry non-idempotent requests."
                Err(Failure::OriginClosed)
                    if is_repeatable(request) && (!is_fresh || self.may_wait(began)) =>
                {
                    self.journal.on_retry();
                    if is_fresh {
                        // The origin accepts connections and closes them at once: it is shutting down.
                        self.reactor.sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
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
    async fn dial_for<I: Incoming>(
        &self,
        client_info: &ClientInfo,
        time_limit: &TimeLimit,
        incoming: &mut I,
    ) -> Result<OriginConnection<O::Stream>, Failure> {
        let has_begun = Cell::new(false);
        let mut dialled = pin!(self.dial(client_info));
        let mut left = pin!(left(incoming, time_limit, &self.settings, &has_begun));
        poll_fn(|cx| match dialled.as_mut().poll(cx) {
            Poll::Pending => left.as_mut().poll(cx).map(Err),
            dialled => dialled,
        })
        .await
    }

    /// Connects. Tries again for up to `retry_timeout` while the origin refuses connections or descriptors have
    /// run out.
    async fn dial(&self, client_info: &ClientInfo) -> Result<OriginConnection<O::Stream>, Failure> {
        let (began, mut pause) = (self.reactor.now(), FIRST_PAUSE);
        loop {
            // Boxed: connecting is rare, and its large future must not be part of every exchange.
            match Box::pin(self.dialler.dial(client_info)).await {
                Ok(stream) => {
                    return Ok(OriginConnection {
                        stream: SharedStream::new(stream),
                        buffer: Buffer::default(),
                        is_used: false,
                        is_private: false,
                    });
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
