//! Flows that move from one process to another, with their sockets.
//!
//! ```text
//! old: pause ──▶ describe ───────────────▶ release (or resume, if the new process fails)
//! new: pause ──▶ open the same downstream sockets ──▶ adopt ──▶ resume
//! ```
//! While both are paused, nobody reads: datagrams wait in the sockets' buffers. A socket is never opened
//! again, because closing one of a SO_REUSEPORT group would lose what is queued on it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use serde::{Deserialize, Serialize};
use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Origin, Route};
use truepeer_session::table::Key;
use truepeer_session::{ListenerId, Tags};
use truepeer_sys::udp::Local;
use truepeer_sys::{CallError, Named};

use super::flow::{Back, Flow, can_merge};
use super::table::{SenderKey, UdpFlowKey};
use super::whereabouts::Whereabouts;
use super::{DownstreamSocket, FlowContext, Inbound, UdpFlows};

pub use super::flow::SentHeader;
pub use super::outbox::Sent;

/// A flow on its way to another process.
#[derive(Debug)]
pub struct MovingFlow {
    /// Its listener.
    pub listener: ListenerId,
    /// Its downstream socket: the place among the listener's sockets.
    pub downstream: usize,
    /// Everything else, except the sockets.
    pub state: FlowState,
    /// Connected to the backend, with the client's address.
    pub upstream: OwnedFd,
    /// The socket from which replies leave, if it isn't the downstream socket.
    pub reply_socket: Option<OwnedFd>,
}

/// The state of a moving flow. Times are relative to the moment of the move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowState {
    /// The client.
    pub client: SocketAddr,
    /// The destination that tells this flow from the client's others.
    pub destination: Option<SocketAddr>,
    /// Whether the client's address comes from a header.
    pub origin: FlowOrigin,
    /// The destination that the header named.
    pub named_destination: Option<SocketAddr>,
    /// The backend.
    pub backend: SocketAddr,
    /// The address that the upstream socket was to be bound to.
    pub source: Option<SocketAddr>,
    /// Whether it has that address and port, so that no other flow may have them.
    pub has_tuple: bool,
    /// The sender, as the kernel wrote its address.
    pub sender: SocketAddr,
    /// The address and interface from which replies leave.
    pub local: Option<(IpAddr, u32)>,
    /// The sender and the local address whose bare datagrams belong to this flow.
    pub bare: Option<(SocketAddr, Option<SocketAddr>)>,
    /// The address of the socket of its own for replies.
    pub reply_from: Option<SocketAddr>,
    /// In `spp`: the header that replies carry back.
    pub reply_header: Box<[u8]>,
    /// The header for the backend.
    pub sending: SentHeader,
    /// What was sent to the backend.
    pub up: Sent,
    /// What was sent to the sender.
    pub down: Sent,
    /// How long the flow exists.
    pub age: Duration,
    /// How long it has been silent.
    pub silent_for: Duration,
    /// The named values of its header, such as the unique id.
    pub tags: Vec<(String, String)>,
}

/// [`Origin`], in writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are described at Origin")]
pub enum FlowOrigin {
    Header,
    Local,
    Unknown,
    NoHeader,
}

impl From<Origin> for FlowOrigin {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Header => Self::Header,
            Origin::Local => Self::Local,
            Origin::Unknown => Self::Unknown,
            Origin::NoHeader => Self::NoHeader,
        }
    }
}

impl From<FlowOrigin> for Origin {
    fn from(origin: FlowOrigin) -> Self {
        match origin {
            FlowOrigin::Header => Self::Header,
            FlowOrigin::Local => Self::Local,
            FlowOrigin::Unknown => Self::Unknown,
            FlowOrigin::NoHeader => Self::NoHeader,
        }
    }
}

impl UdpFlows {
    /// Reads no datagrams from now on, and forgets no flow.
    pub(crate) fn pause(&mut self, cx: &FlowContext<'_>) {
        self.is_paused = true;
        self.look(cx);
        self.recall(|_| true);
        for inbound in self.downstreams.iter().flatten() {
            let _ = epoll::delete(cx.epoll, &*inbound.downstream.socket); // fails if it was not watched
        }
        for key in self.table.keys() {
            if let Some(flow) = self.table.get_mut(key) {
                let _ = epoll::delete(cx.epoll, &flow.upstream); // fails if it was not watched
            }
        }
    }

    /// Reads datagrams again. Those that came meanwhile are announced at once. Without a pause before,
    /// nothing changes.
    pub(crate) fn resume(&mut self, cx: &FlowContext<'_>) -> Result<(), CallError> {
        if !std::mem::take(&mut self.is_paused) {
            return Ok(());
        }
        for (place, inbound) in self.downstreams.iter().enumerate() {
            if let Some(inbound) = inbound {
                let token = EventData::new_u64((cx.downstream_token)(place));
                epoll::add(cx.epoll, &*inbound.downstream.socket, token, EventFlags::IN)
                    .named("epoll_ctl")?;
            }
        }
        for key in self.table.keys() {
            if let Some(flow) = self.table.get_mut(key) {
                let token = EventData::new_u64((cx.flow_token)(key));
                epoll::add(cx.epoll, &flow.upstream, token, EventFlags::IN).named("epoll_ctl")?;
            }
        }
        self.deliver_early(cx);
        Ok(())
    }

    /// The flows of a listener, with duplicates of their sockets. Call it while paused.
    pub(crate) fn describe(
        &mut self,
        cx: &FlowContext<'_>,
        id: ListenerId,
    ) -> Result<Vec<MovingFlow>, CallError> {
        let keys = self.table.keys_of(id);
        keys.into_iter().filter_map(|key| self.describe_one(cx, key)).collect()
    }

    fn describe_one(&mut self, cx: &FlowContext<'_>, key: Key) -> Option<Result<MovingFlow, CallError>> {
        let (identity, sender, silent_for) = self.table.identity(key, cx.now)?;
        let flow = self.table.get_mut(key)?;
        let downstream = self.downstreams.get(flow.back.downstream)?.as_ref()?.downstream.number;
        let route = &*flow.route;
        let state = FlowState {
            client: identity.client,
            destination: identity.destination,
            origin: route.origin.into(),
            named_destination: route.destination,
            backend: route.backend.get(),
            source: route.source,
            has_tuple: flow.tuple.is_some(),
            sender: flow.back.sender,
            local: flow.back.local.map(|local| (local.ip, local.interface)),
            bare: sender.map(|named| (named.sender, named.local)),
            reply_from: flow.back.own_socket.as_ref().map(|(local, _)| *local),
            reply_header: flow.reply_header.clone(),
            sending: flow.sending.clone(),
            up: flow.up,
            down: flow.down,
            age: cx.now.saturating_duration_since(flow.began),
            silent_for,
            tags: listed(flow.tags.as_deref()),
        };
        let duplicate = |socket: &OwnedFd| socket.try_clone().named("fcntl(F_DUPFD_CLOEXEC)");
        let sockets = duplicate(&flow.upstream).and_then(|upstream| {
            let own = flow.back.own_socket.as_ref().map(|(_, socket)| duplicate(socket));
            Ok((upstream, own.transpose()?))
        });
        Some(sockets.map(|(upstream, reply_socket)| MovingFlow {
            listener: identity.listener,
            downstream,
            state,
            upstream,
            reply_socket,
        }))
    }

    /// Forgets the downstream sockets and flows of a listener, which another process serves now. Nothing is
    /// logged: they go on.
    pub(crate) fn release(&mut self, cx: &FlowContext<'_>, id: ListenerId) {
        self.release_downstreams(cx, id);
        while let Some(gone) = self.table.take_of(id) {
            gone.flow.listener.shard.on_end();
        }
    }

    /// Adopts flows of open downstream sockets, while paused. Returns how many. Flows that were silent for
    /// longer must come first.
    pub(crate) fn adopt_all(&mut self, cx: &FlowContext<'_>, flows: Vec<MovingFlow>) -> usize {
        flows.into_iter().filter_map(|flow| self.adopt_one(cx, flow)).count()
    }

    /// `None`: there is no such downstream socket here, or the time of the flow is over under its listener's
    /// new rules.
    fn adopt_one(&mut self, cx: &FlowContext<'_>, moving: MovingFlow) -> Option<()> {
        let MovingFlow { listener: id, downstream: number, state, upstream, reply_socket } = moving;
        let is_meant =
            |downstream: &DownstreamSocket| (downstream.listener, downstream.number) == (id, number);
        let place = self
            .downstreams
            .iter()
            .position(|one| one.as_ref().is_some_and(|one| is_meant(&one.downstream)))?;
        let Inbound { downstream, listener } = self.downstreams[place].as_ref()?;
        let silence = listener.rules.settings.udp.as_ref()?.silence;
        let touched = cx.now.checked_sub(state.silent_for).filter(|_| state.silent_for < silence)?;
        let backend = BackendAddr::new(state.backend);
        let key = UdpFlowKey { listener: id, client: state.client, destination: state.destination };
        let tuple = state.source.filter(|_| state.has_tuple);
        let flow = Flow {
            listener: Rc::clone(listener),
            merge_up: can_merge(&upstream),
            merge_down: downstream.can_segment,
            route: Box::new(Route {
                client: ClientAddr::new(state.client),
                origin: state.origin.into(),
                backend,
                source: state.source,
                // The rest matters only when a flow is opened.
                on_conflict: OnConflict::default(),
                send_proxy: None,
                destination: state.named_destination,
                special: None,
            }),
            back: Back {
                downstream: place,
                sender: state.sender,
                local: state.local.map(|(ip, interface)| Local { ip, interface }),
                own_socket: state.reply_from.zip(reply_socket),
            },
            reply_header: state.reply_header,
            sending: state.sending,
            up: state.up,
            down: state.down,
            began: cx.now.checked_sub(state.age).unwrap_or(cx.now),
            tags: Tags::of_pairs(state.tags),
            permit: cx.budgets.flows.take_anyway(1),
            tuple: tuple.and_then(|source| downstream.tuples.take(&key, source, backend.get())),
            upstream,
            whereabouts: Whereabouts::Here,
            begins: 0,
            is_counted: false,
        };
        flow.listener.shard.on_open();
        let place = self.table.insert(key, flow, silence, touched);
        if let Some((sender, local)) = state.bare {
            self.table.name_sender(place, SenderKey { listener: id, sender, local });
        }
        Some(())
    }
}

fn listed(tags: Option<&Tags>) -> Vec<(String, String)> {
    let pairs = tags.into_iter().flat_map(Tags::iter);
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests;
