//! Takes sessions that have left user space over from another process, or lets them go on without this one.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use truepeer_policy::Policy;
use truepeer_session::table::Key;
use truepeer_session::{CloseReason, ListenerId};
use truepeer_splice::Watched;

use super::{Entry, Worker};
use crate::listener::Listener;
use crate::tcp::session::{Deadline, Session, Verdict};

impl Worker {
    /// Lists the session from now on. If its listener is not open yet, it waits in `unclaimed`.
    pub(super) fn adopt_left(&mut self, watched: Watched, now: Instant) {
        let [downstream, _] = watched.connections();
        let Some(listener) = self.listener_at(downstream.own) else { return self.unclaimed.push(watched) };
        self.team.on_begin(self.number);
        listener.shard.on_open();
        let session = Session::adopt_left(watched, now);
        let key = self.sessions.insert(Entry { session, listener });
        self.give_turn(key, now, |_, _, _| Verdict::Wait(Deadline::Left { moves: true }));
    }

    /// Tries `unclaimed` sessions again, because a listener has opened.
    pub(super) fn claim_left(&mut self, now: Instant) {
        for watched in std::mem::take(&mut self.unclaimed) {
            self.adopt_left(watched, now);
        }
    }

    fn listener_at(&self, own: SocketAddr) -> Option<Rc<Listener>> {
        let is_exact = |listener: &&Rc<Listener>| listener.rules.settings.address == own;
        let is_any = |listener: &&Rc<Listener>| {
            let address = listener.rules.settings.address;
            address.ip().is_unspecified()
                && address.port() == own.port()
                && (address.is_ipv6() || own.is_ipv4())
                && listener.rules.settings.udp.is_none()
        };
        let listeners = || self.listeners.iter();
        listeners().find(is_exact).or_else(|| listeners().find(is_any)).map(Rc::clone)
    }

    /// Lets sessions that have left user space go on without this process.
    pub(super) fn release_sessions(&mut self, is_meant: impl Fn(&Listener) -> bool, now: Instant) {
        for key in self.left_where(|entry| is_meant(&entry.listener)) {
            self.give_turn(key, now, |_, _, _| Verdict::Offloaded);
        }
    }

    /// Ends sessions of clients that the listener's new rules deny.
    pub(super) fn end_denied(&mut self, id: ListenerId, policy: &Arc<Policy>, now: Instant) {
        let is_denied = |entry: &Entry| {
            entry.listener.id == id && entry.session.client().is_some_and(|client| policy.denies(client))
        };
        for key in self.left_where(is_denied) {
            self.give_turn(key, now, |_, _, _| Verdict::Close(CloseReason::EndedByOperator));
        }
    }

    fn left_where(&mut self, is_meant: impl Fn(&Entry) -> bool) -> Vec<Key> {
        let keys = self.sessions.keys();
        let is_left = |key: &Key| {
            self.sessions.get_mut(*key).is_some_and(|entry| entry.session.has_left() && is_meant(entry))
        };
        keys.into_iter().filter(is_left).collect()
    }
}
