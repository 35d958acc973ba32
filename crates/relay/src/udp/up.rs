//! Datagrams from senders to backends.

use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::io::Errno;
use truepeer_policy::{Dialect, HeaderRule, SenderAddr};
use truepeer_proto::Header;
use truepeer_session::counters::Counter;
use truepeer_session::settings::UdpSettings;
use truepeer_session::table::Key;
use truepeer_sys::udp::Arrival;

use super::downstream::DownstreamSocket;
use super::early::EarlyDatagram;
use super::flow::{Flow, SentHeader};
use super::header::{Opened, Unopened, open};
use super::open::NewFlow;
use super::outbox::{Datagram, Sent, Way, send};
use super::refusal::{DropCause, DroppedDatagram, Over};
use super::table::{SenderKey, UdpFlowKey};
use super::{BATCH, BATCHES_PER_TURN, FlowContext, Inbound, UdpFlows, room};
use crate::listener::Listener;

/// A datagram whose flow is known.
#[derive(Debug, Clone, Copy)]
struct Placed<'a> {
    flow: Key,
    payload: &'a [u8],
}

/// The previous datagram: for the next one of the same client no look-up is needed.
#[derive(Debug, Clone, Copy)]
struct Last<'a> {
    raw: &'a [u8],
    flow: Key,
}

impl UdpFlows {
    /// A downstream socket has datagrams.
    pub(crate) fn on_downstream(&mut self, cx: &FlowContext<'_>, number: usize) {
        if self.is_paused || self.is_ending {
            return;
        }
        let Some(Some(inbound)) = self.downstreams.get(number).cloned() else { return };
        // Moved out while datagrams borrow from it.
        let mut received = self.received.take().unwrap_or_else(room);
        for _ in 0..BATCHES_PER_TURN {
            match received.receive(inbound.downstream.socket.as_fd()) {
                Ok(_) => {
                    let cut_off = received.cut_off();
                    if cut_off > 0 {
                        inbound.listener.shard.add(Counter::DatagramsCutOff, cut_off as u64);
                    }
                    self.deliver(cx, number, &inbound, received.arrivals());
                }
                Err(Errno::AGAIN) => break,
                // The error belongs to a reply that was sent before, not to the waiting datagrams.
                Err(_) => {}
            }
        }
        self.received = Some(received);
    }

    /// Delivers what came before the downstream sockets were complete, unless nothing is read now.
    pub(super) fn deliver_early(&mut self, cx: &FlowContext<'_>) {
        if self.is_paused {
            return;
        }
        for (number, early) in std::mem::take(&mut self.early) {
            let Some(Some(inbound)) = self.downstreams.get(number).cloned() else { continue };
            for some in early.chunks(BATCH) {
                self.deliver(cx, number, &inbound, some.iter().map(EarlyDatagram::arrival));
            }
        }
    }

    fn deliver<'a>(
        &mut self,
        cx: &FlowContext<'_>,
        number: usize,
        inbound: &Inbound,
        arrivals: impl Iterator<Item = Arrival<'a>>,
    ) {
        let mut placed = Vec::new();
        for arrival in arrivals {
            self.place(cx, number, inbound, &arrival, &mut placed);
        }
        // Before the first datagram leaves, so that no reply is there yet.
        self.grow_small();
        // Stable: the datagrams of a flow stay in order.
        placed.sort_by_key(|placed| placed.flow.to_bits());
        for of_flow in placed.chunk_by(|one, other| one.flow == other.flow) {
            self.send_up(&inbound.listener, of_flow);
        }
    }

    /// Finds or opens the flow of each datagram of a batch.
    fn place<'a>(
        &mut self,
        cx: &FlowContext<'_>,
        number: usize,
        inbound: &Inbound,
        arrival: &Arrival<'a>,
        placed: &mut Vec<Placed<'a>>,
    ) {
        let sender = SenderAddr::new(arrival.from);
        let Inbound { downstream, listener } = inbound;
        let Some(udp) = &listener.rules.settings.udp else { return };
        let rule = match listener.rules.policy.admit(sender) {
            Ok(rule) => rule,
            Err(refusal) => {
                return self.refuse(cx, listener, &DroppedDatagram { sender, cause: refusal.into() });
            }
        };
        let at = At { number, downstream, listener, arrival, sender, rule, udp };
        let mut last = None;
        for datagram in arrival.datagrams() {
            match self.place_one(cx, &at, datagram, &mut last) {
                Ok(one) => placed.extend(one),
                Err(cause) => self.refuse(cx, listener, &DroppedDatagram { sender, cause }),
            }
        }
    }

    fn place_one<'a>(
        &mut self,
        cx: &FlowContext<'_>,
        at: &At<'_>,
        datagram: &'a [u8],
        last: &mut Option<Last<'a>>,
    ) -> Result<Option<Placed<'a>>, DropCause> {
        if let Some(last) = *last
            && !last.raw.is_empty()
            && datagram.starts_with(last.raw)
            && !at.udp.dialect.has_bare_datagrams()
        {
            return Ok(Some(Placed { flow: last.flow, payload: &datagram[last.raw.len()..] }));
        }
        let named = self.table.of_sender(&at.sender_key()).filter(|_| at.rule != HeaderRule::Forbid);
        if named.is_none() && at.rule != HeaderRule::Forbid && at.udp.dialect.has_bare_datagrams() {
            self.over.check(&at.sender_key(), at.udp.silence, cx.now)?;
        }
        let limits = at.listener.rules.settings.header_limits;
        match open(at.udp.dialect, datagram, at.rule, limits, named.is_some()) {
            Ok(Opened::Headed { raw, header, payload }) => {
                let flow =
                    self.flow_of(cx, at, Some(&header), raw).map_err(|cause| self.bar(cx, at, cause))?;
                *last = Some(Last { raw, flow });
                self.leave(cx, at, flow, raw);
                let is_header_alone = at.udp.dialect == Dialect::Standalone && payload.is_empty();
                Ok((!is_header_alone).then_some(Placed { flow, payload }))
            }
            Ok(Opened::Bare(payload)) => {
                let flow = match named {
                    Some(flow) => self.revisit(cx, at, flow, None),
                    None => self.flow_of(cx, at, None, &[])?,
                };
                self.leave(cx, at, flow, &[]);
                Ok(Some(Placed { flow, payload }))
            }
            Err(Unopened::NoHeaderBefore) => {
                Err(self.forgotten.why(&at.sender_key(), at.udp.silence, cx.now))
            }
            Err(Unopened::Invalid(error)) => {
                Err(DropCause::Invalid { error, hint: truepeer_proto::sniff(datagram) })
            }
        }
    }

    /// The client of a header is refused. Where the rest of the flow is bare, it writes what comes next.
    fn bar(&mut self, cx: &FlowContext<'_>, at: &At<'_>, cause: DropCause) -> DropCause {
        if at.udp.dialect.has_bare_datagrams() {
            self.over.add(at.sender_key(), Over::Refused(cause.reason()), cx.now, cx.now);
        }
        cause
    }

    /// The flow of the client that a header names (or of its sender, without a header). Opens it if it
    /// doesn't exist.
    fn flow_of(
        &mut self,
        cx: &FlowContext<'_>,
        at: &At<'_>,
        header: Option<&Header<'_>>,
        raw: &[u8],
    ) -> Result<Key, DropCause> {
        let key = at.flow_key(header)?;
        if let Some(flow) = self.table.of_client(&key) {
            return Ok(self.revisit(cx, at, flow, Some(raw)));
        }
        let flow = self.open(
            cx,
            NewFlow {
                key,
                header,
                raw,
                number: at.number,
                downstream: at.downstream,
                listener: at.listener,
                arrival: at.arrival,
                udp: at.udp,
            },
        )?;
        self.name_sender(at, flow);
        Ok(flow)
    }

    /// A flow goes on: replies follow its sender's newest address.
    fn revisit(&mut self, cx: &FlowContext<'_>, at: &At<'_>, key: Key, raw: Option<&[u8]>) -> Key {
        if let Some(flow) = self.table.get_mut(key) {
            flow.back.follow(at.number, at.downstream, at.arrival);
            if let Some(raw) = raw
                && at.udp.dialect == Dialect::Spp
                && *flow.reply_header != *raw
            {
                flow.reply_header = raw.into();
            }
        }
        self.table.touch(key, cx.now);
        self.name_sender(at, key);
        key
    }

    fn name_sender(&mut self, at: &At<'_>, flow: Key) {
        if at.udp.dialect.has_bare_datagrams() && at.rule != HeaderRule::Forbid {
            self.table.name_sender(flow, at.sender_key());
        }
    }

    fn send_up(&mut self, listener: &Listener, placed: &[Placed<'_>]) {
        let sent = match placed.first().and_then(|first| self.table.get_mut(first.flow)) {
            Some(flow) => flow.send_up(placed),
            // It has made room for another of the same batch.
            None => Sent { dropped: placed.len() as u64, ..Sent::default() },
        };
        let shard = &listener.shard;
        shard.add(Counter::DatagramsUp, sent.datagrams);
        shard.add(Counter::BytesUp, sent.bytes);
        if sent.dropped > 0 {
            shard.add(Counter::DatagramsDropped, sent.dropped);
        }
    }
}

/// The downstream socket of a datagram, and the rules there.
pub(super) struct At<'a> {
    number: usize,
    pub(super) downstream: &'a DownstreamSocket,
    pub(super) listener: &'a Rc<Listener>,
    pub(super) arrival: &'a Arrival<'a>,
    sender: SenderAddr,
    pub(super) rule: HeaderRule,
    pub(super) udp: &'a UdpSettings,
}

impl At<'_> {
    fn sender_key(&self) -> SenderKey {
        SenderKey {
            listener: self.downstream.listener,
            sender: self.arrival.from,
            local: self.downstream.destination_of(self.arrival),
        }
    }

    fn flow_key(&self, header: Option<&Header<'_>>) -> Result<UdpFlowKey, DropCause> {
        let client = self.listener.rules.policy.name(self.sender, header)?;
        Ok(UdpFlowKey {
            listener: self.downstream.listener,
            client: client.addr.get(),
            destination: client.destination.or_else(|| self.downstream.destination_of(self.arrival)),
        })
    }
}

impl Flow {
    /// Sends payloads to the backend with the headers that they need.
    fn send_up(&mut self, placed: &[Placed<'_>]) -> Sent {
        let way = Way { socket: self.upstream.as_fd(), to: None, from: None };
        let (mut sent, mut rest) = (Sent::default(), placed);
        while let (SentHeader::Once { header, alone }, Some((first, others))) =
            (&self.sending, rest.split_first())
        {
            let (bare, payload): (&[u8], _) = (&[], first.payload);
            let datagrams = if *alone {
                vec![Datagram { prefix: header, payload: bare }, Datagram { prefix: bare, payload }]
            } else {
                vec![Datagram { prefix: header, payload }]
            };
            let begun = send(way, &datagrams, &mut self.merge_up);
            sent.add(begun);
            rest = others;
            // A header that was not sent (too long together with the payload, for example) is sent with the
            // next datagram.
            if begun.datagrams > 0 {
                self.sending = SentHeader::Nothing;
            }
        }
        let prefix: &[u8] = if let SentHeader::Each { header, .. } = &self.sending { header } else { &[] };
        let datagrams: Vec<_> =
            rest.iter().map(|placed| Datagram { prefix, payload: placed.payload }).collect();
        sent.add(send(way, &datagrams, &mut self.merge_up));
        self.up.add(sent);
        sent
    }
}
