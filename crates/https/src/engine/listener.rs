//! A listener in one worker: its connections and how it closes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use truepeer_policy::SenderAddr;
use truepeer_session::ListenerId;
use truepeer_session::counters::{Counter, Shard};
use truepeer_stream::open::{OpenConnections, OpenGuard};
use truepeer_stream::reactor::{Reactor, TcpStream};

use crate::downstream::{TlsListener, WorkerState};
use crate::gateway::{Gateway, RequestRules, Site};
use crate::sites::{OwnSite, SiteNames};
use crate::tunnel::{self, OriginTls};

/// The rules for a listener's sessions, and for TLS and HTTP towards its backends.
#[derive(Debug, Clone)]
pub struct HttpsRules {
    /// The downstream side.
    pub listening: TlsListener,
    /// What becomes of its connections.
    pub sessions: SessionRules,
}

/// What becomes of connections.
#[derive(Debug, Clone)]
pub enum SessionRules {
    /// Bytes are passed on, by TLS if there is a configuration for it.
    Tunnels(Option<OriginTls>),
    /// Requests are passed on one by one.
    Requests(Box<RequestRules>),
    /// As requests, by one of several sites.
    Sites(Box<SitesRules>),
}

/// Several sites, by the names that clients ask for.
#[derive(Debug, Clone)]
pub struct SitesRules {
    /// The names, in the order of the sites.
    pub names: Arc<SiteNames>,
    /// The first one.
    pub first: SiteRules,
    /// All others.
    pub others: Vec<SiteRules>,
}

/// One of several sites.
#[derive(Debug, Clone)]
pub struct SiteRules {
    /// Its counters.
    pub id: ListenerId,
    /// Where its clients' connections lead, and with which limits.
    pub listening: TlsListener,
    /// How its requests are passed on.
    pub requests: RequestRules,
}

/// A listener, with the rules that hold for its next connection.
pub(super) struct HttpsListener {
    pub(super) id: ListenerId,
    pub(super) worker: Rc<WorkerState>,
    reactor: Reactor,
    sessions: RefCell<Sessions>,
    shards: SiteShards,
    open: OpenConnections,
}

/// The counters of sites, which outlive their rules.
type SiteShards = RefCell<HashMap<ListenerId, Arc<Shard>>>;

/// How connections are served. A connection keeps the rules that it started with.
#[derive(Clone)]
enum Sessions {
    Tunnels(Rc<tunnel::SessionContext>),
    Exchanges(Rc<Gateway>),
}

impl Sessions {
    /// `shards`: the counters of all sites so far.
    fn new(reactor: &Reactor, rules: HttpsRules, worker: &Rc<WorkerState>, shards: &SiteShards) -> Self {
        let HttpsRules { listening, sessions } = rules;
        let listening = Rc::new(listening);
        match sessions {
            SessionRules::Requests(rules) => {
                let site = Site::new(reactor, *rules, &listening, worker, None);
                Self::Exchanges(Gateway::of_one(reactor, site, &listening, worker))
            }
            SessionRules::Sites(rules) => {
                let SitesRules { names, first, others } = *rules;
                let make = |(number, site): (usize, SiteRules)| {
                    let SiteRules { id, listening, requests } = site;
                    let mut shards = shards.borrow_mut();
                    let shard = shards.entry(id).or_insert_with(|| worker.journal.counters.shard(id));
                    let worker = Rc::new(WorkerState { shard: Arc::clone(shard), ..(**worker).clone() });
                    let own = OwnSite { names: Arc::clone(&names), number };
                    Site::new(reactor, requests, &Rc::new(listening), &worker, Some((id, own)))
                };
                let others = (1..).zip(others).map(make).collect();
                let sites = (make((0, first)), others);
                Self::Exchanges(Gateway::of_sites(reactor, sites, &names, &listening, worker))
            }
            SessionRules::Tunnels(origin) => Self::Tunnels(Rc::new(tunnel::SessionContext {
                listening,
                origin,
                worker: Rc::clone(worker),
            })),
        }
    }

    fn listening(&self) -> &TlsListener {
        match self {
            Self::Tunnels(shared) => &shared.listening,
            Self::Exchanges(gateway) => gateway.listening(),
        }
    }
}

impl HttpsListener {
    pub(super) fn new(
        reactor: &Reactor,
        id: ListenerId,
        rules: HttpsRules,
        worker: WorkerState,
        open: &OpenConnections,
    ) -> Rc<Self> {
        let worker = Rc::new(worker);
        let shards = SiteShards::default();
        let sessions = RefCell::new(Sessions::new(reactor, rules, &worker, &shards));
        Rc::new(Self { id, worker, reactor: reactor.clone(), sessions, shards, open: open.clone() })
    }

    /// New connections follow these rules.
    pub(super) fn set_rules(&self, rules: HttpsRules) {
        self.sessions.replace(Sessions::new(&self.reactor, rules, &self.worker, &self.shards));
    }

    /// Starts a task for an accepted connection if the policy admits its sender.
    pub(super) fn begin(&self, stream: TcpStream, sender: SocketAddr) {
        let (worker, sessions) = (&self.worker, self.sessions.borrow().clone());
        worker.shard.count(Counter::Accepted);
        let sender = SenderAddr::new(sender);
        let listening = sessions.listening();
        if let Err(refusal) = listening.policy.admit(sender) {
            let arrival = (sender, listening.settings.address);
            return worker.journal.on_refused_sender(&worker.shard, arrival, &refusal, self.reactor.now());
        }
        let permit = worker.budgets.sessions.take_anyway(1);
        let (counted, listed) = (OpenGuard::new(&worker.shard), self.open.list(self.id, sender, &stream));
        match sessions {
            Sessions::Tunnels(shared) => self.reactor.spawn(async move {
                let _counted = counted;
                tunnel::serve(shared, stream, sender, permit, listed).await;
            }),
            Sessions::Exchanges(gateway) => {
                self.reactor.spawn(gateway.serve(stream, sender, listed, counted, permit));
            }
        }
    }
}
