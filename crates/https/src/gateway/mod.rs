//! The HTTPS reverse proxy of one worker: connections that are open become exchanges, and the origin learns the client.

mod dialler;

use std::rc::Rc;
use std::time::Duration;

use truepeer_policy::SenderAddr;
use truepeer_session::Ended;
use truepeer_session::budget::Permit;

use self::dialler::Dialler;
use crate::downstream::{Downstream, House, Listening};
use crate::exchange::{Journal, Service, Settings, Sharing, Visit, serve_http1};
use crate::http2::serve_http2;
use crate::origin::{Dial, Pool};
use crate::reactor::{Reactor, TcpStream};
use crate::tunnel::{Origin, tlvs};

/// How the origin learns who the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAddress {
    /// By `Forwarded` and `X-Forwarded-For` in each request.
    #[default]
    Forwarded,
    /// By the connection's own source address.
    Transparent,
    /// By a PROXY v2 header in front of each connection, which then serves one client's connection only.
    Proxy,
}

/// What HTTP adds to a listener.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// What is allowed, and for how long.
    pub settings: Settings,
    /// How the origin learns the client.
    pub client_address: ClientAddress,
    /// Idle connections to the origin that each worker keeps.
    pub origin_keepalive: usize,
    /// For how long.
    pub origin_idle: Duration,
    /// How long a request waits for an origin that refuses connections.
    pub origin_patience: Duration,
}

/// A listener's exchanges, in one worker.
#[derive(Debug)]
pub(crate) struct Gateway {
    reactor: Reactor,
    listening: Rc<Listening>,
    house: Rc<House>,
    client_address: ClientAddress,
    service: Rc<Service<Dialler>>,
}

impl Gateway {
    /// Begins to keep connections to the origin.
    pub(crate) fn new(
        reactor: &Reactor,
        options: HttpOptions,
        origin: Option<Origin>,
        listening: &Rc<Listening>,
        house: &Rc<House>,
    ) -> Rc<Self> {
        let dialler = Dialler::new(reactor.clone(), Rc::clone(house), Rc::clone(listening), origin);
        let sessions = house.budgets.sessions.clone();
        let pool = Rc::new(Pool::<<Dialler as Dial>::Stream>::new(
            options.origin_keepalive,
            options.origin_idle,
            sessions.clone(),
        ));
        reactor.spawn(Pool::keep(Rc::downgrade(&pool), reactor.clone()));
        let access_log = options.settings.access_log;
        let mut settings = options.settings;
        settings.tells_the_client = options.client_address == ClientAddress::Forwarded;
        let service = Service {
            reactor: reactor.clone(),
            settings,
            dialler,
            pool,
            sessions,
            backlog: house.budgets.backlog_bytes.clone(),
            sharing: match options.client_address {
                ClientAddress::Forwarded => Sharing::All,
                ClientAddress::Transparent => Sharing::ByClient,
                ClientAddress::Proxy => Sharing::ByConnection,
            },
            patience: options.origin_patience,
            idle: house.idle.clone(),
            journal: Journal::new(house.journal.clone(), house.shard.clone(), access_log),
        };
        Rc::new(Self {
            reactor: reactor.clone(),
            listening: Rc::clone(listening),
            house: Rc::clone(house),
            client_address: options.client_address,
            service: Rc::new(service),
        })
    }

    /// What its connections follow.
    pub(crate) fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Serves one connection.
    pub(crate) async fn serve(self: Rc<Self>, tcp: TcpStream, sender: SenderAddr, _permit: Permit) {
        let began = self.reactor.now();
        // Opening needs much memory for a moment: a handshake's.
        let opened = Box::pin(Downstream::open(&self.listening, &self.house, tcp, sender)).await;
        match opened {
            Ok(mut downstream) => {
                let speaks_http2 = speaks_http2(&mut downstream);
                let visit = self.visit(&downstream);
                let service = Rc::clone(&self.service);
                let _counted = downstream.counted.take();
                let stream = downstream.into_stream();
                if speaks_http2 {
                    // Three times as large as HTTP/1's, which would have to hold as much.
                    Box::pin(serve_http2(stream, visit, service)).await;
                } else {
                    serve_http1(stream, visit, service).await;
                }
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
                };
                let now = self.reactor.now();
                self.house.journal.on_close(&self.house.shard, &ended, &reason, now);
            }
        }
    }

    fn visit(&self, downstream: &Downstream) -> Visit {
        let mut route = downstream.route;
        // A client's requests share connections, whatever port each came from.
        if let Some(source) = &mut route.source {
            source.set_port(0);
        }
        let tls = downstream.tls.as_ref();
        Visit {
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
        }
    }
}

/// Whether the client has chosen HTTP/2. The origin is spoken to in HTTP/1.1 all the same, and a PROXY header in front of
/// that must not say otherwise.
fn speaks_http2(downstream: &mut Downstream) -> bool {
    let alpn = downstream.tls.as_mut().and_then(|facts| facts.alpn.as_mut());
    match alpn {
        Some(alpn) if alpn == b"h2" => {
            *alpn = b"http/1.1".to_vec();
            true
        }
        _ => false,
    }
}
