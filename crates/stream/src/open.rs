//! The open connections of one worker, as the operator sees and ends them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use truepeer_policy::{Policy, Route, SenderAddr};
use truepeer_proto::Tlvs;
use truepeer_session::counters::Shard;
use truepeer_session::registry::{PAGE_PLACES, Page, PageStart, SessionStage};
use truepeer_session::table::{Key, Table};
use truepeer_session::{CloseReason, ListenerId, OpenSession, SessionFilter, SessionId, Tags};

use crate::reactor::{AbortHandle, TcpStream};
use crate::tls::TlsFacts;

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct OpenConnections(Rc<RefCell<Table<Rc<OpenConnection>>>>);

/// One connection, as an operator sees it. Its task keeps it up to date.
#[derive(Debug)]
pub struct OpenConnection {
    listener: Cell<ListenerId>,
    sender: SenderAddr,
    began: Instant,
    stage: Cell<SessionStage>,
    routed: RefCell<Option<Box<Routed>>>,
    /// Delivered so far: up, down.
    bytes: Cell<(u64, u64)>,
    tags: RefCell<Option<Box<Tags>>>,
    abort: AbortHandle,
    ended_by: Cell<Option<EndedBy>>,
}

/// Who has ended a connection from outside.
#[derive(Debug, Clone, Copy)]
enum EndedBy {
    Operator,
    Ban,
}

/// Lists a connection until it is dropped.
#[derive(Debug)]
pub struct Listed {
    all: OpenConnections,
    key: Key,
    connection: Rc<OpenConnection>,
}

/// Who is at a connection's ends, and by which rules.
#[derive(Debug)]
struct Routed {
    route: Route,
    policy: Arc<Policy>,
}

impl OpenConnections {
    /// Lists an accepted connection.
    #[must_use]
    pub fn list(&self, listener: ListenerId, sender: SenderAddr, tcp: &TcpStream) -> Listed {
        let connection = Rc::new(OpenConnection {
            listener: Cell::new(listener),
            sender,
            began: tcp.reactor().now(),
            stage: Cell::new(SessionStage::Header),
            routed: RefCell::new(None),
            bytes: Cell::new((0, 0)),
            tags: RefCell::new(None),
            abort: tcp.abort_handle(),
            ended_by: Cell::new(None),
        });
        let key = self.0.borrow_mut().insert(Rc::clone(&connection));
        Listed { all: self.clone(), key, connection }
    }

    /// The connections from `start` on. [`Page::next`] `None`: those were the last of this worker.
    #[must_use]
    pub fn page(&self, filter: &SessionFilter, start: PageStart, now: Instant) -> Page {
        let PageStart { table, worker, place: from } = start;
        let to = from.saturating_add(PAGE_PLACES);
        let connections = self.0.borrow();
        let wanted = connections.between(from, to).filter(|(_, connection)| connection.is_wanted(filter));
        let sessions =
            wanted.map(|(key, connection)| connection.describe(SessionId { table, worker, key }, now));
        let next = (to < connections.places()).then_some(PageStart { place: to, ..start });
        Page { sessions: sessions.collect(), next }
    }

    /// Ends a connection by a reset. Returns whether there was one.
    #[must_use]
    pub fn end(&self, key: Key) -> bool {
        let connection = self.0.borrow_mut().get_mut(key).map(|connection| Rc::clone(connection));
        connection.iter().for_each(|connection| connection.end(EndedBy::Operator));
        connection.is_some()
    }

    /// Ends the connections whose clients are banned now.
    pub fn end_banned(&self) {
        let connections = self.0.borrow();
        let all = connections.between(0, connections.places()).map(|(_, connection)| connection);
        let banned: Vec<_> = all.filter(|connection| connection.is_banned()).map(Rc::clone).collect();
        drop(connections);
        banned.iter().for_each(|connection| connection.end(EndedBy::Ban));
    }
}

/// Counts a connection as open, until it is dropped.
#[derive(Debug)]
pub struct OpenGuard(Arc<Shard>);

impl OpenGuard {
    /// Counts it there.
    #[must_use]
    pub fn new(shard: &Arc<Shard>) -> Self {
        shard.on_open();
        Self(Arc::clone(shard))
    }

    /// Counts it there from now on.
    pub fn move_to(&mut self, shard: &Arc<Shard>) {
        *self = Self::new(shard);
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.on_end();
    }
}

impl Listed {
    /// The connection's entry.
    #[must_use]
    pub fn connection(&self) -> &Rc<OpenConnection> {
        &self.connection
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.all.0.borrow_mut().remove(self.key);
    }
}

impl OpenConnection {
    /// Notes what it does now.
    pub fn set_stage(&self, stage: SessionStage) {
        self.stage.set(stage);
    }

    /// Notes the site that it has reached, which is counted by itself.
    pub fn set_listener(&self, site: ListenerId) {
        self.listener.set(site);
    }

    /// Notes who is at its ends, by which policy, and what the header says besides.
    pub fn set_route(&self, route: &Route, policy: &Arc<Policy>, tlvs: &[u8]) {
        self.routed.replace(Some(Box::new(Routed { route: *route, policy: Arc::clone(policy) })));
        let tlvs = Tlvs::parse(tlvs).unwrap_or(Tlvs::EMPTY);
        self.tags.replace(Tags::of(tlvs, &policy.senders));
    }

    /// Notes the result of the handshake: `tlvs` are those for a backend.
    pub fn set_tls(&self, facts: &TlsFacts, policy: &Policy, tlvs: &[u8]) {
        let tlvs = Tlvs::parse(tlvs).unwrap_or(Tlvs::EMPTY);
        let subject = facts.client.as_ref().map(|client| client.subject.as_str());
        self.tags.replace(Tags::with_subject(tlvs, &policy.senders, subject));
    }

    /// Notes delivered bytes.
    pub fn add_bytes(&self, up: u64, down: u64) {
        let bytes = self.bytes.get();
        self.bytes.set((bytes.0 + up, bytes.1 + down));
    }

    /// Why it was ended from outside, if it was.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        Some(match self.ended_by.get()? {
            EndedBy::Operator => CloseReason::EndedByOperator,
            EndedBy::Ban => CloseReason::Banned,
        })
    }

    /// The header's TLVs that an operator sees.
    #[must_use]
    pub fn tags(&self) -> Option<Box<Tags>> {
        self.tags.borrow().clone()
    }

    fn end(&self, by: EndedBy) {
        self.ended_by.set(Some(by));
        self.abort.abort();
    }

    fn is_wanted(&self, filter: &SessionFilter) -> bool {
        filter.admits(self.sender, self.routed.borrow().as_ref().map(|routed| &routed.route))
    }

    fn is_banned(&self) -> bool {
        self.routed.borrow().as_ref().is_some_and(|routed| {
            let Route { client, origin, .. } = routed.route;
            routed.policy.bans(self.sender, client, origin)
        })
    }

    fn describe(&self, id: SessionId, now: Instant) -> OpenSession {
        let (bytes_up, bytes_down) = self.bytes.get();
        let routed = self.routed.borrow();
        let route = routed.as_ref().map(|routed| &routed.route);
        OpenSession {
            id,
            listener: self.listener.get(),
            stage: self.stage.get(),
            sender: self.sender,
            client: route.map(|route| route.client),
            origin: route.map(|route| route.origin),
            source: route.and_then(|route| route.source),
            backend: route.map(|route| route.backend),
            bytes_up,
            bytes_down,
            age: now.saturating_duration_since(self.began),
            tags: self.tags(),
        }
    }
}
