//! UDP flows: datagrams from senders to a backend that sees the client, and its replies back.
//!
//! ```text
//! Gate ── recvmmsg ──▶ header::open ──▶ FlowTable ──▶ by flow ── merged, sendmmsg ──▶ backend
//!                          │ header          └ new: Policy::route, upstream socket bound to the client
//!                          └ refused: counted, complained about once a minute
//! sender ◀── sendmmsg, merged ── [header] ◀── recvmmsg ◀── the flow's upstream socket
//! ```
//! Nothing that a datagram holds can end a flow but its own silence, nor the process at all.

mod down;
mod flow;
pub(crate) mod gate;
mod header;
mod open;
mod outbox;
mod refusal;
mod retired;
mod steering;
mod table;
pub(crate) mod tuples;
mod up;

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use truepeer_policy::Dialect;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::{Counter, Shard};
use truepeer_session::table::Key;
use truepeer_sys::udp::Received;

use self::flow::Flow;
use self::gate::Gate;
use self::refusal::{Forgotten, Refused};
use self::retired::Retired;
use self::table::{FlowTable, Gone};
use crate::relay::Listening;

/// Receives in one batch: half a page of headers, and enough to make runs from.
const BATCH: usize = 64;
/// Batches from one gate before others get a turn.
const BATCHES_PER_TURN: usize = 4;

/// Everything around flows while they work.
pub(crate) struct Context<'a> {
    pub(crate) epoll: &'a OwnedFd,
    pub(crate) listeners: &'a [Listening],
    pub(crate) budgets: &'a Budgets,
    pub(crate) journal: &'a Journal,
    pub(crate) shard: &'a Shard,
    pub(crate) now: Instant,
    /// The user data of a flow's upstream socket.
    pub(crate) token: fn(Key) -> u64,
}

/// One worker's gates and flows.
pub(crate) struct Flows {
    gates: Vec<Gate>,
    table: FlowTable<Flow>,
    forgotten: Forgotten,
    retired: Retired,
    received: Received,
}

impl Flows {
    /// No flows yet; `listeners` are all of the relay's, `gates` those of this worker.
    pub(crate) fn new(listeners: &[Listening], gates: Vec<Gate>) -> Self {
        let silence = |listener: &Listening| {
            listener.settings.udp.as_ref().map_or(std::time::Duration::MAX / 2, |udp| udp.silence)
        };
        // Only a worker with gates needs room for datagrams.
        let room = if gates.is_empty() { 0 } else { BATCH };
        Self {
            gates,
            table: FlowTable::new(listeners.iter().map(silence)),
            forgotten: Forgotten::default(),
            retired: Retired::default(),
            received: Received::with_room_for(room),
        }
    }

    /// Watches the gates; `token` gives the user data of each.
    pub(crate) fn watch_gates(&self, epoll: &OwnedFd, token: impl Fn(usize) -> u64) -> Result<(), Errno> {
        for (number, gate) in self.gates.iter().enumerate() {
            epoll::add(epoll, &*gate.socket, EventData::new_u64(token(number)), EventFlags::IN)?;
        }
        Ok(())
    }

    /// When the next flow is to be forgotten, or a port given back.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        [self.table.next_deadline(), self.retired.next_deadline()].into_iter().flatten().min()
    }

    /// Forgets the flows that have been silent for too long.
    pub(crate) fn expire(&mut self, cx: &Context<'_>) {
        while let Some(gone) = self.table.expire(cx.now) {
            self.forget(cx, gone, Counter::FlowsExpired);
        }
        self.retired.expire(cx.now);
    }

    fn forget(&mut self, cx: &Context<'_>, gone: Gone<Flow>, why: Counter) {
        cx.shard.count(why);
        let evicted = why == Counter::FlowsEvicted;
        if let Some(sender) = gone.sender {
            self.forgotten.add(sender, evicted, cx.now);
        }
        let settings = &cx.listeners[usize::from(gone.key.listener)].settings;
        cx.journal.on_flow_end(&gone.flow.ended(settings.address, why), cx.now);
        let sending = settings.udp.as_ref().and_then(|udp| udp.sending);
        // An evicted flow has to make room: it can't keep its descriptor.
        if !evicted && sending.is_some_and(Dialect::has_bare_datagrams) {
            self.retire(cx, gone.flow);
        }
    }

    fn retire(&mut self, cx: &Context<'_>, flow: Flow) {
        // Watched, a late reply that nobody reads would wake us for ever.
        if epoll::delete(cx.epoll, &flow.upstream).is_ok() {
            self.retired.add(flow.upstream, flow.permit, cx.now);
        }
    }

    /// A refused datagram is dropped; the reason is counted, and said once a minute.
    fn refuse(&self, cx: &Context<'_>, listener: u16, refused: &Refused) {
        let listener = cx.listeners[usize::from(listener)].settings.address;
        cx.journal.on_refused_datagram(cx.shard, listener, refused.sender, refused.reason(), refused, cx.now);
    }
}
