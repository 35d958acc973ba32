//! What the operator asks a worker for: its sessions, and the end of some.

use std::time::Instant;

use truepeer_session::registry::{PAGE_PLACES, Page, PageStart, SessionOrder, SessionTable};
use truepeer_session::{CloseReason, SessionFilter, SessionId};

use super::Worker;
use crate::tcp::session::Verdict;
use crate::udp::UdpFlows;

impl Worker {
    pub(super) fn on_session_order(&mut self, order: SessionOrder, now: Instant) {
        // The requester may have given up.
        match order {
            SessionOrder::Page { filter, start, done } => _ = done.send(self.page(&filter, start, now)),
            SessionOrder::End { id, done } => _ = done.send(self.end(id, now)),
            SessionOrder::EndBanned => self.end_banned(now),
        }
    }

    /// The sessions from `start` on. [`Page::next`] `None`: those were the last of this worker.
    fn page(&self, filter: &SessionFilter, start: PageStart, now: Instant) -> Page {
        let PageStart { table, worker, place: from } = start;
        let to = from.saturating_add(PAGE_PLACES);
        let id = |key| SessionId { table, worker, key };
        let (sessions, places) = match table {
            SessionTable::Tcp => {
                let entries = self.sessions.between(from, to);
                let wanted = entries.filter(|(_, entry)| entry.session.is_wanted(filter));
                let described =
                    wanted.map(|(key, entry)| entry.session.describe(id(key), entry.listener.id, now));
                (described.collect(), self.sessions.places())
            }
            SessionTable::Udp => (self.flows.list((from, to), filter, id, now), self.flows.places()),
            SessionTable::Tls => (Vec::new(), 0),
        };
        let next = match table {
            _ if to < places => Some(PageStart { place: to, ..start }),
            SessionTable::Tcp => Some(PageStart { table: SessionTable::Udp, place: 0, ..start }),
            SessionTable::Udp | SessionTable::Tls => None,
        };
        Page { sessions, next }
    }

    /// Ends a session. Returns whether there was one.
    fn end(&mut self, id: SessionId, now: Instant) -> bool {
        match id.table {
            SessionTable::Tcp => {
                let is_there = self.sessions.get_mut(id.key).is_some();
                self.give_turn(id.key, now, |_, _, _| Verdict::Close(CloseReason::EndedByOperator));
                is_there
            }
            SessionTable::Udp => {
                let mut was_there = false;
                self.with_flows(now, |flows, cx| was_there = flows.end(cx, id.key));
                was_there
            }
            SessionTable::Tls => false,
        }
    }

    fn end_banned(&mut self, now: Instant) {
        for key in self.sessions.keys() {
            let entry = self.sessions.get_mut(key);
            if entry.is_some_and(|entry| entry.session.is_banned(&entry.listener.rules.policy)) {
                self.give_turn(key, now, |_, _, _| Verdict::Close(CloseReason::Banned));
            }
        }
        self.with_flows(now, UdpFlows::end_banned);
    }
}
