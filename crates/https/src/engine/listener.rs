//! A listener in one worker: its connections and how it closes.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use truepeer_policy::SenderAddr;
use truepeer_session::ListenerId;
use truepeer_session::counters::{Counter, Shard};

use crate::downstream::{TlsListener, WorkerState};
use crate::gateway::{Gateway, HttpOptions};
use crate::open::OpenConnections;
use crate::reactor::{Reactor, TcpStream};
use crate::tunnel::{self, OriginTls};

/// The rules for a listener's sessions, and for TLS and HTTP towards its backends.
#[derive(Debug, Clone)]
pub struct HttpsRules {
    /// The downstream side.
    pub listening: TlsListener,
    /// The TLS configuration towards backends, if any.
    pub origin: Option<OriginTls>,
    /// The HTTP configuration, if requests are passed on one by one.
    pub http: Option<HttpOptions>,
}

/// A listener, with the rules that hold for its next connection.
pub(super) struct HttpsListener {
    pub(super) id: ListenerId,
    pub(super) worker: Rc<WorkerState>,
    reactor: Reactor,
    sessions: RefCell<Sessions>,
    open: OpenConnections,
}

/// How connections are served. A connection keeps the rules that it started with.
#[derive(Clone)]
enum Sessions {
    Tunnels(Rc<tunnel::SessionContext>),
    Exchanges(Rc<Gateway>),
}

impl Sessions {
    fn new(reactor: &Reactor, rules: HttpsRules, worker: &Rc<WorkerState>) -> Self {
        let HttpsRules { listening, origin, http } = rules;
        let listening = Rc::new(listening);
        match http {
            Some(options) => Self::Exchanges(Gateway::new(reactor, options, origin, &listening, worker)),
            None => Self::Tunnels(Rc::new(tunnel::SessionContext {
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
        let sessions = RefCell::new(Sessions::new(reactor, rules, &worker));
        Rc::new(Self { id, worker, reactor: reactor.clone(), sessions, open: open.clone() })
    }

    /// New connections follow these rules.
    pub(super) fn set_rules(&self, rules: HttpsRules) {
        self.sessions.replace(Sessions::new(&self.reactor, rules, &self.worker));
    }

    /// Starts a task for an accepted connection if the policy admits its sender.
    pub(super) fn begin(&self, stream: TcpStream, sender: SocketAddr) {
        let (worker, sessions) = (&self.worker, self.sessions.borrow().clone());
        worker.shard.count(Counter::Accepted);
        let sender = SenderAddr::new(sender);
        if let Err(refusal) = sessions.listening().policy.admit(sender) {
            return worker.journal.on_refused_sender(&worker.shard, sender, &refusal, self.reactor.now());
        }
        let permit = worker.budgets.sessions.take_anyway(1);
        let (counted, listed) = (OpenGuard::new(&worker.shard), self.open.list(self.id, sender, &stream));
        match sessions {
            Sessions::Tunnels(shared) => self.reactor.spawn(async move {
                let _counted = counted;
                tunnel::serve(shared, stream, sender, permit, listed).await;
            }),
            Sessions::Exchanges(gateway) => {
                self.reactor.spawn(gateway.serve(stream, sender, listed, (permit, counted)));
            }
        }
    }
}

/// Counts a connection as open, until its task has ended or is dropped.
struct OpenGuard(Arc<Shard>);

impl OpenGuard {
    fn new(shard: &Arc<Shard>) -> Self {
        shard.on_open();
        Self(Arc::clone(shard))
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.on_end();
    }
}
