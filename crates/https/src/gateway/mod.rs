//! The HTTPS reverse proxy of one worker. It serves open connections as exchanges and tells the origin who
//! the client is.

mod dialler;
mod health;

use std::rc::Rc;
use std::time::Duration;

use truepeer_policy::{Backends, SenderAddr};
use truepeer_session::Ended;
use truepeer_session::registry::SessionStage;

use self::dialler::Dialler;
use crate::client_info::ClientInfo;
use crate::downstream::{Counted, Downstream, TlsListener, WorkerState};
use crate::exchange::{HttpSettings, RequestJournal, Service, Sharing, serve_http1};
use crate::http2::serve_http2;
use crate::open::{Listed, OpenConnection};
use crate::origin::{Dial, Origin, OriginHealth, OriginProtocol, Origins, Pool, Serves};
use crate::origin_h2::Http2Pool;
use crate::reactor::{Reactor, TcpStream};
use crate::stream::Stream;
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

/// A listener's exchanges in one worker.
#[derive(Debug)]
pub(crate) struct Gateway {
    reactor: Reactor,
    listening: Rc<TlsListener>,
    worker: Rc<WorkerState>,
    client_address: ClientAddress,
    service: Rc<Service<Dialler>>,
}

impl Gateway {
    /// Creates it and starts the task that closes idle connections to the origin.
    pub(crate) fn new(
        reactor: &Reactor,
        options: HttpOptions,
        origin: Option<OriginTls>,
        listening: &Rc<TlsListener>,
        worker: &Rc<WorkerState>,
    ) -> Rc<Self> {
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
        let mut settings = options.settings;
        settings.tells_the_client = options.client_address == ClientAddress::Forwarded;
        let service = Service {
            reactor: reactor.clone(),
            settings,
            origins,
            sessions,
            backlog: worker.budgets.backlog_bytes.clone(),
            sharing: match options.client_address {
                ClientAddress::Forwarded => Sharing::All,
                ClientAddress::Transparent => Sharing::ByClient,
                ClientAddress::Proxy => Sharing::ByConnection,
            },
            retry_timeout: options.origin_retry_timeout,
            idle: worker.idle.clone(),
            journal: RequestJournal::new(worker.journal.clone(), worker.shard.clone(), access_log),
        };
        let service = Rc::new(service);
        health::watch_all(&service, listening);
        Rc::new(Self {
            reactor: reactor.clone(),
            listening: Rc::clone(listening),
            worker: Rc::clone(worker),
            client_address: options.client_address,
            service,
        })
    }

    /// The settings of its connections.
    pub(crate) fn listening(&self) -> &TlsListener {
        &self.listening
    }

    /// Serves one connection. `held` is dropped at its end.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps each argument twice, and each idle connection would be larger by that"
    )]
    pub(crate) fn serve(
        self: Rc<Self>,
        tcp: TcpStream,
        sender: SenderAddr,
        listed: Listed,
        held: impl Sized + 'static,
    ) -> impl Future<Output = ()> {
        async move {
            // Boxed: a handshake needs memory that the connection must not keep.
            if let Some(opened) = Box::pin(self.open(tcp, sender, listed.connection())).await {
                let Opened { stream, first, client_info, counted, speaks_http2 } = opened;
                let service = Rc::clone(&self.service);
                if speaks_http2 {
                    // Boxed: the future is three times as large as HTTP/1's, and would make every connection
                    // as large.
                    Box::pin(serve_http2(stream, client_info, service)).await;
                } else {
                    serve_http1(stream, first, client_info, service).await;
                }
                drop(counted);
            }
            drop((held, listed));
        }
    }

    /// `None`: the connection was refused, and that is logged.
    async fn open(&self, tcp: TcpStream, sender: SenderAddr, open: &Rc<OpenConnection>) -> Option<Opened> {
        let began = self.reactor.now();
        let opened = async {
            let downstream = Downstream::open(&self.listening, &self.worker, tcp, sender, open).await?;
            downstream.await_late_bytes(self.listening.handshake_timeout).await.map(|()| downstream)
        };
        match opened.await {
            Ok(mut downstream) => {
                let speaks_http2 = speaks_http2(&downstream);
                open.set_stage(SessionStage::Idle);
                let client_info = self.client_info(&downstream, open);
                let counted = downstream.counted.take();
                let (stream, first) = downstream.into_stream();
                Some(Opened { stream, first, client_info, counted, speaks_http2 })
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
