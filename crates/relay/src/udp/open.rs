//! Opens flows.

use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::{Dialect, Route, SenderAddr, SentTlv};
use truepeer_proto::{EncodeError, Header, Tlvs, Transport, V2Encoder, spp};
use truepeer_session::Tags;
use truepeer_session::budget::Permit;
use truepeer_session::counters::Counter;
use truepeer_session::send_proxy::{self, SENT_TLV_ROOM};
use truepeer_session::settings::UdpSettings;
use truepeer_session::table::Key;
use truepeer_sys::udp::{Arrival, grow_later};

use super::downstream::DownstreamSocket;
use super::flow::{BUFFER_BYTES, Back, Flow, FlowEnd, SentHeader, can_merge, open_upstream};
use super::outbox::Sent;
use super::refusal::DropCause;
use super::table::UdpFlowKey;
use super::whereabouts::Whereabouts;
use super::{FlowContext, UdpFlows};
use crate::listener::Listener;

/// The longest address block of a v2 header that truepeer writes, with the fixed part and a checksum (PROXY
/// 2.2).
const V2_ROOM: usize = 16 + 36 + 7;

/// The inputs of a new flow.
pub(super) struct NewFlow<'a> {
    pub(super) key: UdpFlowKey,
    pub(super) header: Option<&'a Header<'a>>,
    /// The header as received.
    pub(super) raw: &'a [u8],
    pub(super) number: usize,
    pub(super) downstream: &'a DownstreamSocket,
    pub(super) listener: &'a Rc<Listener>,
    pub(super) arrival: &'a Arrival<'a>,
    pub(super) udp: &'a UdpSettings,
}

impl UdpFlows {
    /// Opens a flow where the policy says; if there are too many, the longest silent one makes room.
    pub(super) fn open(&mut self, cx: &FlowContext<'_>, opening: NewFlow<'_>) -> Result<Key, DropCause> {
        if self.is_draining {
            return Err(DropCause::Draining);
        }
        let rules = &opening.listener.rules;
        let sender = SenderAddr::new(opening.arrival.from);
        let came_to = || Some(opening.downstream.destination_of(opening.arrival)?.port());
        let route = rules.policy.route_at(sender, opening.header, came_to)?;
        if let Some(range) = route.special {
            cx.journal.on_special_claim(&opening.listener.shard, &route, (sender, range), cx.now);
        }
        let header = opening.header.map(|header| rules.policy.senders.without_proof(sender, *header));
        let sending = sending(&opening, header.as_ref(), &route)?;
        let upstream = open_upstream(&opening.key, &route, rules.settings.mark, &opening.downstream.tuples)?;
        // Check it last: no flow must be forgotten for one that then can't be opened.
        let permit = self.permit(cx);
        if let Some(error) = &upstream.port_replaced {
            cx.journal.on_port_replaced(&opening.listener.shard, &route, error, cx.now);
        }
        let version = header.map(|header| header.version);
        cx.journal.on_route(&opening.listener.shard, &route, version, Duration::ZERO);
        let reply_header = if opening.udp.dialect == Dialect::Spp { opening.raw } else { &[] };
        let flow = Flow {
            listener: Rc::clone(opening.listener),
            merge_up: can_merge(&upstream.socket),
            upstream: upstream.socket,
            route: Box::new(route),
            back: Back::new(opening.number, opening.downstream, opening.arrival),
            reply_header: reply_header.into(),
            sending,
            merge_down: opening.downstream.can_segment,
            up: Sent::default(),
            down: Sent::default(),
            began: cx.now,
            tags: header.and_then(|header| Tags::of(header.tlvs, &rules.policy.senders)),
            permit,
            tuple: upstream.tuple,
            whereabouts: Whereabouts::Here,
            begins: 0,
            is_counted: false,
        };
        self.give_answers_to(&flow);
        let place = self.adopt(cx, opening.key, flow, opening.udp.silence)?;
        self.small.extend((!upstream.is_grown).then_some(place));
        Ok(place)
    }

    /// Has the buffers of new flows grown, where this process may not do it.
    pub(super) fn grow_small(&mut self) {
        let sockets: Vec<_> = self
            .small
            .drain(..)
            .filter_map(|place| self.table.get(place))
            .map(|flow| flow.upstream.as_fd())
            .collect();
        grow_later(&sockets, BUFFER_BYTES);
    }

    fn permit(&mut self, cx: &FlowContext<'_>) -> Permit {
        if let Some(permit) = cx.budgets.flows.take(1) {
            return permit;
        }
        if !self.retired.make_room()
            && let Some(oldest) = self.longest_silent(cx.now)
        {
            self.forget(cx, oldest, FlowEnd::Evicted);
        }
        // Another worker may be quicker to take the released place, or may have all flows. The clients that
        // are steered to this worker must not suffer for that, so each worker may exceed the limit by one.
        cx.budgets.flows.take_anyway(1)
    }

    fn adopt(
        &mut self,
        cx: &FlowContext<'_>,
        key: UdpFlowKey,
        flow: Flow,
        silence: Duration,
    ) -> Result<Key, DropCause> {
        let shard = Arc::clone(&flow.listener.shard);
        let place = self.table.insert(key, flow, silence, cx.now);
        if let Some(flow) = self.table.get_mut(place) {
            let token = EventData::new_u64((cx.flow_token)(place));
            if let Err(errno) = epoll::add(cx.epoll, &flow.upstream, token, EventFlags::IN) {
                self.table.remove(place);
                return Err(DropCause::Unwatchable(errno));
            }
        }
        shard.count(Counter::FlowsOpened);
        shard.on_open();
        Ok(place)
    }
}

/// The header that `--send-proxy` adds for the backend.
fn sending(
    opening: &NewFlow<'_>,
    original: Option<&Header<'_>>,
    route: &Route,
) -> Result<SentHeader, EncodeError> {
    let Some(dialect) = opening.udp.sending else { return Ok(SentHeader::Nothing) };
    let destination = route.destination.or(opening.key.destination);
    let v2 = || v2_header(original, route, destination, &opening.listener.rules.policy.delivery.send_tlvs);
    Ok(match dialect {
        Dialect::Spp => SentHeader::Each { header: spp_header(route, destination)?, replies_carry_it: true },
        Dialect::Every => SentHeader::Each { header: v2()?, replies_carry_it: false },
        Dialect::First | Dialect::Standalone => {
            SentHeader::Once { header: v2()?, alone: dialect == Dialect::Standalone }
        }
    })
}

fn spp_header(route: &Route, destination: Option<SocketAddr>) -> Result<Box<[u8]>, EncodeError> {
    let client = route.client.get();
    let mut buffer = [0; spp::LEN];
    let header = spp::Spp { client, proxy: destination.unwrap_or_else(|| unspecified_like(client)) };
    let length = spp::encode(&header, &mut buffer)?;
    Ok(buffer[..length].into())
}

/// SPP always needs a destination.
fn unspecified_like(client: SocketAddr) -> SocketAddr {
    if client.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() }
}

fn v2_header(
    original: Option<&Header<'_>>,
    route: &Route,
    destination: Option<SocketAddr>,
    own: &[SentTlv],
) -> Result<Box<[u8]>, EncodeError> {
    let addresses = send_proxy::addresses(route, Transport::Dgram, || destination);
    let command = send_proxy::command(route.origin);
    let tlvs = original.map_or(Tlvs::EMPTY, |header| header.tlvs);
    let mut buffer = vec![0; V2_ROOM + tlvs.as_bytes().len() + own.len() * SENT_TLV_ROOM];
    let length = send_proxy::finish(V2Encoder::new(&mut buffer, command, &addresses)?, tlvs, own)?;
    buffer.truncate(length);
    Ok(buffer.into())
}
