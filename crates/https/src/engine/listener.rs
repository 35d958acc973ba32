//! A listener in one worker: what is done with each connection, and how it closes.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use truepeer_policy::SenderAddr;
use truepeer_session::ListenerId;
use truepeer_session::counters::{Counter, Shard};

use crate::downstream::{House, Listening};
use crate::gateway::{Gateway, HttpOptions};
use crate::reactor::{Reactor, TcpStream};
use crate::tunnel::{self, Origin};

/// What a listener's sessions follow, and how its backends are spoken with.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The downstream side.
    pub listening: Listening,
    /// Set: TLS towards the backends.
    pub origin: Option<Origin>,
    /// Set: clients speak HTTP, and their requests are passed on one by one.
    pub http: Option<HttpOptions>,
}

/// A listener, with the rules that hold for its next connection.
pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) house: Rc<House>,
    reactor: Reactor,
    sessions: RefCell<Sessions>,
}

/// What becomes of connections. A connection keeps the one that it began with.
#[derive(Clone)]
enum Sessions {
    Tunnels(Rc<tunnel::Shared>),
    Exchanges(Rc<Gateway>),
}

impl Sessions {
    fn new(reactor: &Reactor, rules: Rules, house: &Rc<House>) -> Self {
        let Rules { listening, origin, http } = rules;
        let listening = Rc::new(listening);
        match http {
            Some(options) => Self::Exchanges(Gateway::new(reactor, options, origin, &listening, house)),
            None => Self::Tunnels(Rc::new(tunnel::Shared { listening, origin, house: Rc::clone(house) })),
        }
    }

    fn listening(&self) -> &Listening {
        match self {
            Self::Tunnels(shared) => &shared.listening,
            Self::Exchanges(gateway) => gateway.listening(),
        }
    }
}

impl Listener {
    pub(super) fn new(reactor: &Reactor, id: ListenerId, rules: Rules, house: House) -> Rc<Self> {
        let house = Rc::new(house);
        let sessions = RefCell::new(Sessions::new(reactor, rules, &house));
        Rc::new(Self { id, house, reactor: reactor.clone(), sessions })
    }

    /// Connections follow these from now on.
    pub(super) fn set_rules(&self, rules: Rules) {
        self.sessions.replace(Sessions::new(&self.reactor, rules, &self.house));
    }

    /// Makes a task of an accepted connection, if the policy admits its sender.
    pub(super) fn begin(&self, stream: TcpStream, sender: SocketAddr) {
        let (house, sessions) = (&self.house, self.sessions.borrow().clone());
        house.shard.count(Counter::Accepted);
        let sender = SenderAddr::new(sender);
        if let Err(refusal) = sessions.listening().policy.admit(sender) {
            return house.journal.on_refused_sender(&house.shard, sender, &refusal, self.reactor.now());
        }
        let permit = house.budgets.sessions.take_anyway(1);
        let open = Open::new(&house.shard);
        match sessions {
            Sessions::Tunnels(shared) => self.reactor.spawn(async move {
                let _open = open;
                tunnel::serve(shared, stream, sender, permit).await;
            }),
            Sessions::Exchanges(gateway) => self.reactor.spawn(async move {
                let _open = open;
                gateway.serve(stream, sender, permit).await;
            }),
        }
    }
}

/// Counts a connection as open, until its task has ended or is dropped.
struct Open(Arc<Shard>);

impl Open {
    fn new(shard: &Arc<Shard>) -> Self {
        shard.on_open();
        Self(Arc::clone(shard))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.on_end();
    }
}
