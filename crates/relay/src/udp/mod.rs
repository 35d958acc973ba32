//! UDP flows: datagrams from senders to a backend that sees the client's address, and its replies back.
//!
//! ```text
//! DownstreamSocket ── recvmmsg ──▶ header::open ──▶ FlowTable ──▶ by flow ── merged, sendmmsg ──▶ backend
//!                                     │ header         └ new: Policy::route, a socket bound to the client
//!                                     └ refused: counted, logged once a minute
//! sender ◀── sendmmsg, merged ── [header] ◀── recvmmsg ◀── the flow's upstream socket
//! ```
//! No datagram can end a flow or the process: a flow ends by silence, by eviction, or with its listener.

mod down;
pub(crate) mod downstream;
mod early;
mod flow;
mod header;
mod leaving;
pub mod moving;
mod offload;
mod open;
mod outbox;
mod refusal;
mod retired;
mod steering;
mod table;
pub(crate) mod tuples;
mod up;
mod whereabouts;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use truepeer_policy::{Dialect, Origin};
use truepeer_session::budget::Budgets;
use truepeer_session::journal::RefusedDatagram;
use truepeer_session::refusals::Refusals;
use truepeer_session::table::Key;
use truepeer_session::{Journal, ListenerId, OpenSession, SessionFilter, SessionId};
use truepeer_sys::udp::ReceiveBatch;
use truepeer_sys::{CallError, Named};

pub use self::downstream::BUFFER_BYTES as MOST_BUFFER_BYTES;
use self::downstream::DownstreamSocket;
use self::early::EarlyDatagram;
use self::flow::{Flow, FlowEnd};
use self::leaving::Leaving;
pub use self::offload::FlowOffload;
use self::refusal::{DroppedDatagram, Forgotten, Over};
use self::retired::Retired;
use self::table::{FlowTable, Gone};
use crate::listener::Listener;

/// How many receives one batch has: half a page of headers, and enough for runs.
const BATCH: usize = 64;
/// How many batches one downstream socket gets before the others.
const BATCHES_PER_TURN: usize = 4;

/// Everything around flows while they work.
pub(crate) struct FlowContext<'a> {
    pub(crate) epoll: &'a OwnedFd,
    pub(crate) budgets: &'a Budgets,
    pub(crate) journal: &'a Journal,
    pub(crate) now: Instant,
    /// The user data of a downstream socket.
    pub(crate) downstream_token: fn(usize) -> u64,
    /// The user data of a flow's upstream socket.
    pub(crate) flow_token: fn(Key) -> u64,
}

/// A downstream socket, and the listener for new flows from it.
#[derive(Debug, Clone)]
struct Inbound {
    downstream: Rc<DownstreamSocket>,
    listener: Rc<Listener>,
}

/// One worker's downstream sockets and flows.
#[derive(Default)]
pub(crate) struct UdpFlows {
    /// Each at a place of its own.
    downstreams: Vec<Option<Inbound>>,
    table: FlowTable<Flow>,
    /// Flows of this batch whose buffers another process must grow.
    small: Vec<Key>,
    /// What came before the downstream sockets at these places were complete, while nothing is read.
    early: Vec<(usize, Vec<EarlyDatagram>)>,
    forgotten: Forgotten,
    over: Forgotten,
    retired: Retired,
    leaving: Leaving,
    /// Only a worker with downstream sockets has room for datagrams.
    received: Option<ReceiveBatch>,
    is_draining: bool,
    /// Set while the flows move to another process, or from it: nothing is read, even if an event of the
    /// same batch announces it.
    is_paused: bool,
    /// Set shortly before the end: only replies are read.
    is_ending: bool,
    refusals: Refusals,
}

/// Room for what is received in one batch.
fn room() -> ReceiveBatch {
    ReceiveBatch::with_room_for(BATCH)
}

impl UdpFlows {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// One more downstream socket.
    pub(crate) fn open_downstream(
        &mut self,
        cx: &FlowContext<'_>,
        mut downstream: DownstreamSocket,
        listener: &Rc<Listener>,
    ) -> Result<(), CallError> {
        let vacant = self.downstreams.iter().position(Option::is_none);
        let place = vacant.unwrap_or_else(|| {
            self.downstreams.push(None);
            self.downstreams.len() - 1
        });
        if !self.is_paused {
            let token = EventData::new_u64((cx.downstream_token)(place));
            epoll::add(cx.epoll, &*downstream.socket, token, EventFlags::IN).named("epoll_ctl")?;
        }
        if let Ok(offload) = &self.leaving.offload {
            offload.add_listener(&downstream.socket, listener);
        }
        self.early.push((place, std::mem::take(&mut downstream.early)));
        self.downstreams[place] =
            Some(Inbound { downstream: Rc::new(downstream), listener: Rc::clone(listener) });
        self.deliver_early(cx);
        Ok(())
    }

    /// Closes the downstream sockets of a listener. Its flows end: replies would have to leave from those
    /// sockets.
    pub(crate) fn close_downstreams(&mut self, cx: &FlowContext<'_>, id: ListenerId) {
        self.release_downstreams(cx, id);
        while let Some(gone) = self.table.take_of(id) {
            self.forget(cx, gone, FlowEnd::ListenerClosed);
        }
    }

    /// truepeer ends, and all flows with it.
    pub(crate) fn stop(&mut self, cx: &FlowContext<'_>) {
        self.end_all(cx, self.table.keys(), FlowEnd::Stopping);
    }

    fn end_all(&mut self, cx: &FlowContext<'_>, keys: Vec<Key>, why: FlowEnd) {
        for key in keys {
            if let Some(gone) = self.table.remove(key) {
                self.forget(cx, gone, why);
            }
        }
    }

    fn release_downstreams(&mut self, cx: &FlowContext<'_>, id: ListenerId) {
        for (number, place) in self.downstreams.iter_mut().enumerate() {
            if let Some(inbound) = place.take_if(|inbound| inbound.listener.id == id) {
                self.early.retain(|(place, _)| *place != number);
                // Remove it explicitly: another worker's handle would keep the closed socket in this epoll.
                let _ = epoll::delete(cx.epoll, &*inbound.downstream.socket);
            }
        }
    }

    /// Applies the listener's new rules to new flows from its downstream sockets.
    pub(crate) fn set_listener(&mut self, listener: &Rc<Listener>) {
        for inbound in self.downstreams.iter_mut().flatten().filter(|one| one.listener.id == listener.id) {
            inbound.listener = Rc::clone(listener);
            if let Ok(offload) = &self.leaving.offload {
                offload.add_listener(&inbound.downstream.socket, listener);
            }
        }
        // The new rules judge the next datagram of each flow.
        self.recall(|flow| flow.listener.id == listener.id);
    }

    /// Those flows at places `from` to `to` that the operator asks for.
    pub(crate) fn list(
        &self,
        (from, to): (u32, u32),
        filter: &SessionFilter,
        id: impl Fn(Key) -> SessionId,
        now: Instant,
    ) -> Vec<OpenSession> {
        let wanted = self.table.between(from, to).filter(|(_, flow)| flow.is_wanted(filter));
        wanted.map(|(key, flow)| flow.describe(id(key), now)).collect()
    }

    /// How many places for flows there are, used or not.
    pub(crate) fn places(&self) -> u32 {
        self.table.places()
    }

    /// Ends a flow because the operator says so. Returns whether there was one.
    pub(crate) fn end(&mut self, cx: &FlowContext<'_>, key: Key) -> bool {
        let was_there = self.table.get(key).is_some();
        self.end_all(cx, vec![key], FlowEnd::EndedByOperator);
        was_there
    }

    /// Ends the flows whose clients are banned now.
    pub(crate) fn end_banned(&mut self, cx: &FlowContext<'_>) {
        let flows = self.table.between(0, self.table.places());
        let banned = flows.filter(|(_, flow)| flow.is_banned()).map(|(key, _)| key).collect();
        self.end_all(cx, banned, FlowEnd::Banned);
    }

    /// Opens no more flows.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Reads nothing more from senders. Their datagrams stay in the sockets, which another process may have.
    pub(crate) fn read_no_more(&mut self, cx: &FlowContext<'_>) {
        self.is_ending = true;
        self.recall(|_| true);
        for inbound in self.downstreams.iter().flatten() {
            let _ = epoll::delete(cx.epoll, &*inbound.downstream.socket); // fails if it was not watched
        }
    }

    /// The time at which the next flow must be forgotten, or a port released.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        if self.is_paused {
            return None;
        }
        let next = [self.table.next_deadline(), self.retired.next_deadline(), self.next_look()];
        next.into_iter().flatten().min()
    }

    /// Forgets the flows that have been silent for too long.
    pub(crate) fn expire(&mut self, cx: &FlowContext<'_>) {
        if self.is_paused {
            return;
        }
        if self.next_look().is_some_and(|at| at <= cx.now) {
            self.look(cx);
        }
        while let Some((first, _)) = self.table.first().filter(|(_, at)| *at <= cx.now) {
            if !self.has_spoken(first, cx.now)
                && let Some(gone) = self.table.remove(first)
            {
                self.forget(cx, gone, FlowEnd::Silent);
            }
        }
        self.retired.expire(cx.now);
    }

    fn forget(&mut self, cx: &FlowContext<'_>, mut gone: Gone<Flow>, why: FlowEnd) {
        gone.flow.bring_back();
        let listener = Rc::clone(&gone.flow.listener);
        listener.shard.count(why.counter());
        listener.shard.on_end();
        // Remove it explicitly: the process that grows its buffers may still have the socket. Then a late
        // reply that nobody reads would wake us for ever.
        let was_watched = epoll::delete(cx.epoll, &gone.flow.upstream).is_ok();
        if let Some(sender) = gone.sender {
            let heard = gone.heard.unwrap_or(cx.now);
            match why {
                FlowEnd::Silent => self.forgotten.add(sender, Over::Ended(why), heard, cx.now),
                // A client without a sender that writes headers may come again.
                _ if gone.flow.route.origin == Origin::NoHeader => {}
                _ => self.over.add(sender, Over::Ended(why), heard, cx.now),
            }
        }
        cx.journal.on_flow_end(&listener.shard, &gone.flow.ended(why), cx.now);
        let sending = listener.rules.settings.udp.as_ref().and_then(|udp| udp.sending);
        // An evicted flow must make room, so it can't keep its descriptor.
        if why == FlowEnd::Silent && was_watched && sending.is_some_and(Dialect::has_bare_datagrams) {
            self.retired.add(gone.flow.upstream, gone.flow.permit, cx.now);
        }
    }

    /// A refused datagram is dropped; the reason is counted, and said once a minute.
    fn refuse(&mut self, cx: &FlowContext<'_>, listener: &Listener, refused: &DroppedDatagram) {
        let datagram = RefusedDatagram {
            sender: refused.sender,
            listener: listener.rules.settings.address,
            reason: refused.cause.reason(),
            why: refused,
            hint: refused.hint(),
        };
        cx.journal.on_refused_datagram(&mut self.refusals, &listener.shard, &datagram, cx.now);
    }
}
