//! The HTTPS reverse proxy of one worker. It serves open connections as exchanges and tells the origin who
//! the client is.

mod dialler;
mod health;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use truepeer_origin::http2::Http2Pool;
use truepeer_origin::{
    ClientInfo, Dial, HttpSettings, Origin, OriginHealth, OriginProtocol, Origins, Pool, Serves,
};
use truepeer_policy::{Backends, SenderAddr};
use truepeer_session::clients::Counted;
use truepeer_session::counters::Shard;
use truepeer_session::registry::SessionStage;
use truepeer_session::{CloseReason, Ended, ListenerId};
use truepeer_stream::open::{Listed, OpenConnection, OpenGuard};
use truepeer_stream::reactor::{Reactor, TcpStream};
use truepeer_stream::stream::Stream;

use self::dialler::Dialler;
use crate::challenges::Challenges;
use crate::close::TlsCloseReason;
use crate::downstream::{Downstream, TlsListener, WorkerState};
use crate::exchange::{RequestJournal, Service, Sharing, serve_http1};
use crate::http2::serve_http2;
use crate::sites::{OwnSite, SiteNames};
use crate::tunnel::{OriginTls, tlvs};

/// How the origin learns the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAddress {
    /// From `Forwarded` and `X-Forwarded-For` in each request.
    #[default]
    Forwarded,
    /// From the connection's source address.
    Transparent,
    /// From a PROXY v2 header at the start of each connection, which then serves one client connection only.
    Proxy,
}

/// The HTTP part of a listener's rules.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Limits and timeouts.
    pub settings: HttpSettings,
    /// How the origin learns the client's address.
    pub client_address: ClientAddress,
    /// The version of HTTP to speak with the origin.
    pub origin_protocol: OriginProtocol,
    /// How many idle connections to the origin each worker keeps.
    pub origin_keepalive: usize,
    /// How long they are kept.
    pub origin_idle: Duration,
    /// How long a request waits for an origin that refuses connections.
    pub origin_retry_timeout: Duration,
    /// The health of the default origin.
    pub health: OriginHealth,
    /// Origins for some hosts and paths. The default origin gets all other requests.
    pub others: Vec<OtherOrigin>,
}

/// The upstream side of requests.
#[derive(Debug, Clone)]
pub struct RequestRules {
    /// The TLS configuration towards the default origin, if used.
    pub origin: Option<OriginTls>,
    /// The HTTP configuration.
    pub http: HttpOptions,
    /// Answers to an ACME authority, which come before everything else.
    pub challenges: Option<Arc<Challenges>>,
}

/// An origin for some hosts and paths.
#[derive(Debug, Clone)]
pub struct OtherOrigin {
    /// The requests that it gets.
    pub serves: Serves,
    /// Its addresses, by the client's family.
    pub backends: Backends,
    /// TLS with it, if used.
    pub tls: Option<OriginTls>,
    /// The health of its addresses.
    pub health: OriginHealth,
}

/// A listener's exchanges in one worker, of one site or several.
#[derive(Debug)]
pub(crate) struct Gateway {
    reactor: Reactor,
    listening: Rc<TlsListener>,
    worker: Rc<WorkerState>,
    first: Rc<Site>,
    /// Further sites, by the name that clients ask for.
    others: Option<(Arc<SiteNames>, Vec<Rc<Site>>)>,
}

/// What serves the requests of one site.
#[derive(Debug)]
pub(crate) struct Site {
    /// Its own counters, and its rules, if it shares the listener.
    shared: Option<Shared>,
    client_address: ClientAddress,
    service: Rc<Service<Dialler>>,
}

/// The part of a site that differs from its listener's.
#[derive(Debug)]
struct Shared {
    id: ListenerId,
    listening: Rc<TlsListener>,
    shard: Arc<Shard>,
}

impl Site {
    /// Creates it and starts the task that closes idle connections to the origin. `own`: its counters and
    /// place, if several share the listener.
    pub(crate) fn new(
        reactor: &Reactor,
        rules: RequestRules,
        listening: &Rc<TlsListener>,
        worker: &Rc<WorkerState>,
        own: Option<(ListenerId, OwnSite)>,
    ) -> Rc<Self> {
        let RequestRules { origin, http: options, challenges } = rules;
        let sessions = worker.budgets.sessions.clone();
        let (most, keep) = (options.origin_keepalive, options.origin_idle);
        let make = |tls, backends, health| {
            let dialler =
                Dialler::new(reactor.clone(), Rc::clone(worker), Rc::clone(listening), tls, backends);
            let pool = Rc::new(Pool::<<Dialler as Dial>::Stream>::new(most, keep, sessions.clone()));
            reactor.spawn(Pool::keep(Rc::downgrade(&pool), reactor.clone()));
            let http2 = Http2Pool::new(reactor, most, keep, sessions.clone());
            let protocol = dialler.protocol(options.origin_protocol);
            if protocol != OriginProtocol::Http1 {
                reactor.spawn(Http2Pool::keep(Rc::downgrade(&http2), reactor.clone()));
            }
            Origin { dialler, protocol, pool, http2, health }
        };
        let default = make(origin, None, options.health);
        let others = options.others.into_iter().map(|other| {
            let OtherOrigin { serves, backends, tls, health } = other;
            (serves, make(tls, Some(backends), health))
        });
        let origins = Origins::new(default, others.collect());
        let access_log = options.settings.access_log;
        let (id, place) = own.unzip();
        let shared = |id| Shared { id, listening: Rc::clone(listening), shard: Arc::clone(&worker.shard) };
        let mut settings = options.settings;
        settings.tells_the_client = options.client_address == ClientAddress::Forwarded;
        let service = Service {
            reactor: reactor.clone(),
            settings,
            challenges,
            origins,
            sessions,
            backlog: worker.budgets.backlog_bytes.clone(),
            sharing: match options.client_address {
                ClientAddress::Forwarded => Sharing::All,
                ClientAddress::Transparent => Sharing::ByClient,
                ClientAddress::Proxy => Sharing::ByConnection,
            },
            site: place,
            retry_timeout: options.origin_retry_timeout,
            idle: worker.idle.clone(),
            journal: RequestJournal::new(worker.journal.clone(), worker.shard.clone(), access_log),
        };
        let service = Rc::new(service);
        health::watch_all(&service, listening);
        Rc::new(Self { shared: id.map(shared), client_address: options.client_address, service })
    }
}

impl Gateway {
    /// All connections are of one site.
    pub(crate) fn of_one(
        reactor: &Reactor,
        first: Rc<Site>,
        listening: &Rc<TlsListener>,
        worker: &Rc<WorkerState>,
    ) -> Rc<Self> {
        let (listening, worker) = (Rc::clone(listening), Rc::clone(worker));
        Rc::new(Self { reactor: reactor.clone(), listening, worker, first, others: None })
    }

    /// `names`: of the sites, `first` before the others.
    pub(crate) fn of_sites(
        reactor: &Reactor,
        (first, others): (Rc<Site>, Vec<Rc<Site>>),
        names: &Arc<SiteNames>,
        listening: &Rc<TlsListener>,
        worker: &Rc<WorkerState>,
    ) -> Rc<Self> {
        let (listening, worker) = (Rc::clone(listening), Rc::clone(worker));
        let others = Some((Arc::clone(names), others));
        Rc::new(Self { reactor: reactor.clone(), listening, worker, first, others })
    }

    /// The settings of its connections.
    pub(crate) fn listening(&self) -> &TlsListener {
        &self.listening
    }

    /// Serves one connection. `counted` and `held` are dropped at its end.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps each argument twice, and each idle connection would be larger by that"
    )]
    pub(crate) fn serve(
        self: Rc<Self>,
        tcp: TcpStream,
        sender: SenderAddr,
        listed: Listed,
        mut open: OpenGuard,
        held: impl Sized + 'static,
    ) -> impl Future<Output = ()> {
        async move {
            // Boxed: a handshake needs memory that the connection must not keep.
            if let Some(opened) = Box::pin(self.open(tcp, sender, listed.connection(), &mut open)).await {
                let Opened { service, stream, first, client_info, counted, speaks_http2 } = opened;
                if speaks_http2 {
                    let (limit, sessions) = (&self.listening.settings.per_client, service.sessions.limit());
                    let share = counted.as_ref().map(|counted| limit.streams(counted, sessions));
                    // Boxed: the future is three times as large as HTTP/1's, and would make every connection
                    // as large.
                    Box::pin(serve_http2(stream, client_info, service, share)).await;
                } else {
                    serve_http1(stream, first, client_info, service).await;
                }
                drop(counted);
            }
            drop((held, listed, open));
        }
    }

    /// `None`: the connection was refused, and that is logged.
    async fn open(
        &self,
        tcp: TcpStream,
        sender: SenderAddr,
        open: &Rc<OpenConnection>,
        guard: &mut OpenGuard,
    ) -> Option<Opened> {
        let began = self.reactor.now();
        let opened = async {
            let downstream = Downstream::open(&self.listening, &self.worker, tcp, sender, open).await?;
            downstream.await_late_bytes(self.listening.handshake_timeout).await?;
            self.assign(downstream, open, guard)
        };
        match opened.await {
            Ok((mut downstream, site)) => {
                if let Some(facts) = &downstream.tls {
                    open.set_tls(facts, &self.listening.policy, &tlvs::for_backend(&downstream));
                }
                let speaks_http2 = speaks_http2(&downstream);
                open.set_stage(SessionStage::Idle);
                let client_info = site.client_info(&downstream, open);
                let counted = downstream.counted.take();
                let (stream, first) = downstream.into_stream();
                let service = Rc::clone(&site.service);
                Some(Opened { service, stream, first, client_info, counted, speaks_http2 })
            }
            Err(reason) => {
                let ended = Ended {
                    sender,
                    route: None,
                    listener: self.listening.settings.address,
                    bytes_up: 0,
                    bytes_down: 0,
                    began,
                    tls: None,
                    tags: None,
                };
                let now = self.reactor.now();
                self.worker.journal.on_close(&self.worker.shard, &ended, &reason, now);
                None
            }
        }
    }

    /// Finds the site that the client has asked for, which then counts the connection, and where its requests
    /// go from there.
    fn assign(
        &self,
        mut downstream: Downstream,
        open: &OpenConnection,
        guard: &mut OpenGuard,
    ) -> Result<(Downstream, &Rc<Site>), TlsCloseReason> {
        let Some((names, others)) = &self.others else { return Ok((downstream, &self.first)) };
        let name = downstream.tls.as_ref().and_then(|facts| facts.sni.as_deref());
        // The handshake has found the same one.
        let number = names.site(name).unwrap_or_default();
        let site = number.checked_sub(1).and_then(|other| others.get(other)).unwrap_or(&self.first);
        if let Some(Shared { id, listening, shard }) = &site.shared {
            let delivery = &listening.policy.delivery;
            downstream.route =
                delivery.route(downstream.route.to_client(), || None).map_err(CloseReason::from)?;
            open.set_route(&downstream.route, &listening.policy, &downstream.tlvs);
            open.set_listener(*id);
            guard.move_to(shard);
        }
        Ok((downstream, site))
    }
}

impl Site {
    fn client_info(&self, downstream: &Downstream, open: &Rc<OpenConnection>) -> ClientInfo {
        let mut route = downstream.route;
        // The client's address without its port: requests of one client share connections to the origin.
        if let Some(source) = &mut route.source {
            source.set_port(0);
        }
        let tls = downstream.tls.as_ref();
        ClientInfo {
            sender: downstream.sender,
            route,
            local: downstream.local_address(),
            scheme: if tls.is_some() { "https" } else { "http" },
            tlvs: if self.client_address == ClientAddress::Proxy {
                tlvs::for_backend(downstream)
            } else {
                Vec::new()
            },
            client_subject: tls.and_then(|facts| Some(facts.client.as_ref()?.subject.clone())),
            open: Some(Rc::clone(open)),
            is_own: false,
        }
    }
}

/// A connection that can be served.
struct Opened {
    service: Rc<Service<Dialler>>,
    stream: Stream,
    /// Bytes of the stream that were read with the PROXY header. Always empty with TLS.
    first: Vec<u8>,
    client_info: ClientInfo,
    /// Counts it for its client.
    counted: Option<Counted>,
    speaks_http2: bool,
}

/// Whether the client has chosen HTTP/2.
fn speaks_http2(downstream: &Downstream) -> bool {
    downstream.tls.as_ref().is_some_and(|facts| facts.alpn.as_deref() == Some(b"h2"))
}
