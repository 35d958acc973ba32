//! One flow: a client's datagrams, an upstream socket with the client's address, and the way back.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use truepeer_policy::{OnConflict, Route, SenderAddr};
use truepeer_session::budget::Permit;
use truepeer_session::connect_as::{self as dial, ConnectError, refuse_itself};
use truepeer_session::counters::Counter;
use truepeer_session::journal::EndedFlow;
use truepeer_session::registry::SessionStage;
use truepeer_session::{OpenSession, SessionFilter, SessionId, Tags};
use truepeer_sys::socket::{set_mark, set_transparent};
use truepeer_sys::udp::{Local, enable_gro, grow_buffers, supports_segmentation, udp_socket};
use truepeer_sys::{CallError, Named};

use super::outbox::Sent;
use super::table::UdpFlowKey;
use super::tuples::{Tuples, UpstreamTuple};
use super::whereabouts::Whereabouts;
use crate::listener::Listener;

/// The buffer size of an upstream socket: a flow's share of a burst.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// One flow.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The listener, with the rules that the flow started with.
    pub(crate) listener: Rc<Listener>,
    pub(crate) upstream: OwnedFd,
    pub(crate) route: Box<Route>,
    /// Where replies go: the sender's newest address.
    pub(crate) back: Back,
    /// In `spp`: the header that replies carry back.
    pub(crate) reply_header: Box<[u8]>,
    pub(crate) sending: SentHeader,
    pub(crate) merge_up: bool,
    pub(crate) merge_down: bool,
    pub(crate) up: Sent,
    pub(crate) down: Sent,
    pub(crate) began: Instant,
    /// What the header of its first datagram said besides addresses.
    pub(crate) tags: Option<Box<Tags>>,
    pub(crate) permit: Permit,
    /// None where the upstream socket does not have the client's address and port.
    pub(crate) tuple: Option<UpstreamTuple>,
    pub(crate) whereabouts: Whereabouts,
    /// How often it has begun to leave user space.
    pub(crate) begins: u8,
    /// It is counted as one that has left.
    pub(crate) is_counted: bool,
}

/// The way back to the sender.
#[derive(Debug)]
pub(crate) struct Back {
    pub(crate) downstream: usize,
    /// The address as the kernel gave it: an IPv4 sender of a dual-stack socket is `::ffff:a.b.c.d` here.
    pub(crate) sender: SocketAddr,
    pub(crate) local: Option<Local>,
    /// TPROXY brought the datagram to a port that is not the listener's: replies leave from that port.
    pub(crate) own_socket: Option<(SocketAddr, OwnedFd)>,
}

/// The header for the backend (`--send-proxy`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SentHeader {
    /// Nothing: the upstream socket has the client's address.
    Nothing,
    /// This header on each datagram. Replies may start with as many bytes, to be removed (`spp`).
    Each {
        /// Its bytes.
        header: Box<[u8]>,
        /// Whether replies may start with it.
        replies_carry_it: bool,
    },
    /// This header once: on the first datagram, or alone before it.
    Once {
        /// Its bytes.
        header: Box<[u8]>,
        /// Whether it is a datagram of its own.
        alone: bool,
    },
}

/// Why a flow ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowEnd {
    Silent,
    /// Another one needs its place.
    Evicted,
    ListenerClosed,
    EndedByOperator,
    Banned,
    /// truepeer ends.
    Stopping,
}

impl FlowEnd {
    pub(crate) fn counter(self) -> Counter {
        match self {
            Self::Silent => Counter::FlowsExpired,
            Self::Evicted => Counter::FlowsEvicted,
            Self::ListenerClosed | Self::Stopping => Counter::FlowsClosed,
            Self::EndedByOperator | Self::Banned => Counter::FlowsEnded,
        }
    }

    /// As log lines have it.
    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Evicted => "evicted",
            Self::ListenerClosed => "listener_closed",
            Self::EndedByOperator => "ended_by_operator",
            Self::Banned => "banned",
            Self::Stopping => "stopping",
        }
    }
}

impl Flow {
    /// The values of its log line.
    pub(crate) fn ended(&self, why: FlowEnd) -> EndedFlow<'_> {
        EndedFlow {
            sender: SenderAddr::new(self.back.sender),
            route: &self.route,
            listener: self.listener.rules.settings.address,
            datagrams_up: self.up.datagrams,
            datagrams_down: self.down.datagrams,
            bytes_up: self.up.bytes,
            bytes_down: self.down.bytes,
            began: self.began,
            tags: self.tags.as_deref(),
            close: why.name(),
        }
    }
}

impl Flow {
    /// The flow at `now`, for the operator.
    pub(super) fn describe(&self, id: SessionId, now: Instant) -> OpenSession {
        let [up, down] = self.uncounted();
        OpenSession {
            id,
            listener: self.listener.id,
            stage: if self.has_left() { SessionStage::Spliced } else { SessionStage::Relaying },
            sender: SenderAddr::new(self.back.sender),
            client: Some(self.route.client),
            origin: Some(self.route.origin),
            source: self.route.source,
            backend: Some(self.route.backend),
            bytes_up: self.up.bytes + up.bytes,
            bytes_down: self.down.bytes + down.bytes,
            age: now.saturating_duration_since(self.began),
            tags: self.tags.clone(),
        }
    }

    /// Whether the operator asks for this flow.
    pub(super) fn is_wanted(&self, filter: &SessionFilter) -> bool {
        filter.admits(SenderAddr::new(self.back.sender), Some(&self.route))
    }

    /// Whether its client is banned now.
    pub(super) fn is_banned(&self) -> bool {
        let sender = SenderAddr::new(self.back.sender);
        self.listener.rules.policy.bans(sender, self.route.client, self.route.origin)
    }
}

/// An upstream socket, connected to the route's backend.
pub(super) struct FlowUpstream {
    pub(super) socket: OwnedFd,
    pub(super) tuple: Option<UpstreamTuple>,
    /// Its buffers have [`BUFFER_BYTES`].
    pub(super) is_grown: bool,
    /// Why it has not the client's port.
    pub(super) port_replaced: Option<ConnectError>,
}

pub(super) fn open_upstream(
    flow: &UdpFlowKey,
    route: &Route,
    mark: u32,
    tuples: &Tuples,
) -> Result<FlowUpstream, ConnectError> {
    match connect_as_client(flow, route, mark, tuples) {
        Err(error @ (ConnectError::TupleInUse | ConnectError::PortHeld))
            if route.on_conflict == OnConflict::Ephemeral =>
        {
            let any_port = route.source.map(|source| SocketAddr::new(source.ip(), 0));
            let (socket, is_grown) = connect(route, any_port, mark)?;
            Ok(FlowUpstream { socket, tuple: None, is_grown, port_replaced: Some(error) })
        }
        result => result,
    }
}

fn connect_as_client(
    flow: &UdpFlowKey,
    route: &Route,
    mark: u32,
    tuples: &Tuples,
) -> Result<FlowUpstream, ConnectError> {
    let take = |source| tuples.take(flow, source, route.backend.get()).ok_or(ConnectError::TupleInUse);
    let tuple = route.source.filter(|source| source.port() != 0).map(take).transpose()?;
    let (socket, is_grown) = connect(route, route.source, mark)?;
    Ok(FlowUpstream { socket, tuple, is_grown, port_replaced: None })
}

/// The socket, and whether its buffers have [`BUFFER_BYTES`].
fn connect(route: &Route, source: Option<SocketAddr>, mark: u32) -> Result<(OwnedFd, bool), ConnectError> {
    let backend = route.backend.get();
    let socket = udp_socket(backend)?;
    if mark != 0 {
        set_mark(socket.as_fd(), mark)?;
    }
    if let Some(source) = source {
        set_transparent(socket.as_fd(), source)?;
        // One client may have flows to several backends; each socket is connected to its own.
        sockopt::set_socket_reuseaddr(&socket, true).named("setsockopt(SO_REUSEADDR)")?;
        bind_as(&socket, source)?;
    }
    rustix::net::connect(&socket, &backend).named("connect")?;
    refuse_itself(socket.as_fd(), &dial::Upstream { source, backend, mark, path_mtu: None })?;
    let is_grown = grow_buffers(socket.as_fd(), BUFFER_BYTES);
    // An older kernel delivers datagrams one by one.
    let _ = enable_gro(socket.as_fd());
    Ok((socket, is_grown))
}

/// A socket that has the port on every address holds it (udp_lib_lport_inuse), unless it shares the port by
/// SO_REUSEPORT and belongs to the same user. truepeer's own downstream sockets do.
fn bind_as(socket: &OwnedFd, source: SocketAddr) -> Result<(), ConnectError> {
    let again = match rustix::net::bind(socket, &source) {
        Err(Errno::ADDRINUSE) if source.port() == 0 => return Err(ConnectError::TupleInUse),
        Err(Errno::ADDRINUSE) => {
            sockopt::set_socket_reuseport(socket, true).named("setsockopt(SO_REUSEPORT)")?;
            rustix::net::bind(socket, &source)
        }
        bound => bound,
    };
    match again {
        Err(Errno::ADDRINUSE) => Err(ConnectError::PortHeld),
        bound => Ok(bound.named("bind")?),
    }
}

/// Whether datagrams of `socket` can be merged.
pub(super) fn can_merge(socket: &OwnedFd) -> bool {
    supports_segmentation(socket.as_fd())
}

/// A socket that answers from `local`, which need not be an address of this machine.
pub(super) fn open_reply_socket(local: SocketAddr) -> Result<OwnedFd, CallError> {
    let socket = udp_socket(local)?;
    set_transparent(socket.as_fd(), local)?;
    sockopt::set_socket_reuseaddr(&socket, true).named("setsockopt(SO_REUSEADDR)")?;
    rustix::net::bind(&socket, &local).named("bind")?;
    Ok(socket)
}
