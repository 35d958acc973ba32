//! From an accepted connection to a stream with a known client.
//!
//! ```text
//! accept ──▶ Policy::admit ──▶ PROXY header, if the sender's rule has one ──▶ Policy::route ──▶ TLS ──▶ Downstream
//! ```
//! The policy's rule for the sender determines whether a header must come. truepeer connects to the backend only
//! after all of this has succeeded.

mod accepting;
mod clients;
mod header;
mod idle;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use truepeer_policy::{HeaderRule, Origin, Policy, PrefixSet, Route, SenderAddr};
use truepeer_proto::Tlvs;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Shard;
use truepeer_session::registry::SessionStage;
use truepeer_session::settings::ListenerSettings;

pub use self::accepting::{Closing, accept};
pub use self::clients::{ClientConnections, Counted};
pub use self::idle::{Idle, IdleConnections, IdleList};
use crate::close::TlsCloseReason;
use crate::open::OpenConnection;
use crate::reactor::TcpStream;
use crate::stream::Stream;
use crate::tls::{HandshakeError, ServerTls, TlsFacts, TlsStream};

/// The state that the connections of one listener share in one worker.
#[derive(Debug, Clone)]
pub struct WorkerState {
    /// Log and counters of all workers.
    pub journal: Arc<Journal>,
    /// Their counters.
    pub shard: Arc<Shard>,
    /// The limits that all workers share.
    pub budgets: Budgets,
    /// Each client's connections, in all workers.
    pub clients: Arc<ClientConnections>,
    /// Connections that wait for their next request, and may be closed for new ones.
    pub idle: IdleList,
}

impl WorkerState {
    /// The default of --max-per-client: an eighth of all sessions, so that a few clients can't use them up, and
    /// at least as many as some browsers behind one address open.
    #[must_use]
    pub fn usual_most_per_client(&self) -> usize {
        (self.budgets.sessions.limit() / 8).clamp(64, 4096)
    }

    /// Closes the connection that has been idle longest because a resource ran short. Returns whether there was
    /// one.
    pub(crate) fn reclaim(&self, about: IpAddr, now: Instant) -> bool {
        let waited = self.idle.end_longest(now);
        if let Some(waited) = waited {
            self.journal.on_reclaimed(&self.shard, about, waited, now);
        }
        waited.is_some()
    }
}

/// The rules of one listener.
#[derive(Debug, Clone)]
pub struct TlsListener {
    /// Timeouts and limits.
    pub settings: ListenerSettings,
    /// Who may connect, who the client is, and the destination.
    pub policy: Arc<Policy>,
    /// The TLS configuration, if clients use TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// How long a TLS handshake may take, with clients and with backends.
    pub handshake_timeout: Duration,
    /// The limit of connections for one client.
    pub per_client: PerClient,
}

/// The limit of connections for one client.
#[derive(Debug, Clone, Default)]
pub struct PerClient {
    /// `None`: [`WorkerState::usual_most_per_client`]; 0: any number.
    pub most: Option<usize>,
    /// Addresses that many clients share, such as a proxy's. They are not limited.
    pub shared: PrefixSet,
}

impl PerClient {
    /// Whether the client of `route` is identified individually.
    ///
    /// A sender that may name clients but has not (LOCAL, UNKNOWN, an optional header) stands for many clients, or
    /// connects for its own health checks. The same holds for a program on this machine, such as another proxy or
    /// an ssh tunnel.
    fn counts(&self, route: &Route, rule: HeaderRule) -> bool {
        let client = route.client.ip();
        let is_one = match route.origin {
            Origin::Header => true,
            Origin::NoHeader => rule == HeaderRule::Forbid && !client.is_loopback(),
            Origin::Local | Origin::Unknown => false,
        };
        is_one && !self.shared.contains(client)
    }
}

/// A connection whose client is known.
#[derive(Debug)]
pub struct Downstream {
    /// The sender.
    pub sender: SenderAddr,
    /// The client, and the destination.
    pub route: Route,
    /// The TLVs of the sender's header, unchanged.
    pub tlvs: Box<[u8]>,
    /// The result of the TLS handshake.
    pub tls: Option<TlsFacts>,
    /// The connection itself.
    pub stream: Stream,
    /// Bytes of the stream that were read with the header. Always empty with TLS.
    pub first: Vec<u8>,
    /// Counts the connection for its client while it is held.
    pub counted: Option<Counted>,
}

impl Downstream {
    /// Reads the header, finds the client, counts the connection for it, and completes the TLS handshake.
    ///
    /// # Errors
    /// One of these steps failed. The connection is closed.
    pub async fn open(
        listening: &TlsListener,
        worker: &WorkerState,
        tcp: TcpStream,
        sender: SenderAddr,
        open: &OpenConnection,
    ) -> Result<Self, TlsCloseReason> {
        let reactor = tcp.reactor().clone();
        let began = reactor.now();
        let opening = header::read(listening, worker, &tcp, sender).await?;
        let route = opening.route;
        let waited = reactor.now().saturating_duration_since(began);
        worker.journal.on_route(&worker.shard, &route, opening.version, waited);
        open.set_route(&route, &opening.tlvs);
        open.set_stage(SessionStage::Handshake);
        if let Some(range) = route.special {
            worker.journal.on_special_claim(&route, sender, range, reactor.now());
        }
        let counted = count(listening, worker, &route, sender)?;
        let mut downstream = Self {
            sender,
            route,
            tlvs: opening.tlvs,
            tls: None,
            stream: Stream::Plain(tcp),
            first: opening.rest,
            counted,
        };
        if let Some(tls) = &listening.tls {
            downstream = downstream.encrypt(tls, listening.handshake_timeout).await?;
        }
        Ok(downstream)
    }

    async fn encrypt(self, tls: &ServerTls, limit: Duration) -> Result<Self, TlsCloseReason> {
        let Stream::Plain(tcp) = self.stream else { return Ok(self) };
        let reactor = tcp.reactor().clone();
        let handshake = TlsStream::accept(tcp, tls.config(), &self.first);
        let stream = match reactor.timeout(limit, handshake).await {
            Ok(shaken) => shaken.map_err(TlsCloseReason::Downstream)?,
            Err(_) => {
                return Err(TlsCloseReason::Downstream(HandshakeError::TimedOut { waited: limit }));
            }
        };
        let facts = Some(stream.facts());
        Ok(Self { tls: facts, stream: Stream::Tls(Box::new(stream)), first: Vec::new(), ..self })
    }

    /// Keeps the connection and frees the rest (TLVs, certificate), because a connection may be open for a long
    /// time.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The TLVs of the sender's header.
    #[must_use]
    pub fn tlvs(&self) -> Tlvs<'_> {
        Tlvs::parse(&self.tlvs).unwrap_or(Tlvs::EMPTY)
    }

    /// The address that the sender connected to.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.stream.tcp().local_address().ok()
    }
}

/// Counts the connection for its client before the cost of a handshake.
fn count(
    listening: &TlsListener,
    worker: &WorkerState,
    route: &Route,
    sender: SenderAddr,
) -> Result<Option<Counted>, TlsCloseReason> {
    let most = listening.per_client.most.unwrap_or_else(|| worker.usual_most_per_client());
    let rule = listening.policy.senders.rule(sender);
    if most == 0 || !listening.per_client.counts(route, rule) {
        return Ok(None);
    }
    let client = route.client.ip();
    let counted = worker.clients.count(client, most);
    counted.map(Some).ok_or(TlsCloseReason::TooManyOfClient { client, most })
}

#[cfg(test)]
mod tests {
    use truepeer_policy::{BackendAddr, ClientAddr, OnConflict};

    use super::*;

    fn route(client: &str, origin: Origin) -> Route {
        Route {
            client: ClientAddr::new(SocketAddr::new(client.parse().unwrap(), 5000)),
            origin,
            backend: BackendAddr::new("192.0.2.1:80".parse().unwrap()),
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: None,
            destination: None,
            special: None,
        }
    }

    #[test]
    fn clients_are_counted_only_where_they_are_identified() {
        let per_client = PerClient { most: None, shared: "10.0.0.0/8".parse().unwrap() };
        for (client, origin, rule, counts) in [
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Forbid, true),
            ("203.0.113.7", Origin::Header, HeaderRule::Require, true),
            ("127.0.0.2", Origin::Header, HeaderRule::Require, true),
            // A sender that may name clients but has named none.
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Optional, false),
            ("203.0.113.7", Origin::Local, HeaderRule::Require, false),
            ("203.0.113.7", Origin::Unknown, HeaderRule::Require, false),
            // Another proxy: on this machine, or trusted to name its clients in each request.
            ("127.0.0.1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("::1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::Header, HeaderRule::Require, false),
        ] {
            assert_eq!(
                per_client.counts(&route(client, origin), rule),
                counts,
                "{client} {origin:?} {rule:?}"
            );
        }
    }
}
