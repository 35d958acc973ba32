//! Replies from backends to senders.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use truepeer_session::counters::Counter;
use truepeer_session::table::Key;
use truepeer_sys::udp::{Arrival, Local};

use super::downstream::DownstreamSocket;
use super::flow::{Back, SentHeader, open_reply_socket};
use super::outbox::{Datagram, Sent, Way, send};
use super::{FlowContext, Inbound, UdpFlows, room};

impl UdpFlows {
    /// A flow's backend has answered.
    pub(crate) fn on_reply(&mut self, cx: &FlowContext<'_>, key: Key) {
        let Some(flow) = self.table.get_mut(key).filter(|_| !self.is_paused) else { return };
        let received = self.received.get_or_insert_with(room);
        match received.receive(flow.upstream.as_fd()) {
            Ok(_) => {}
            // Usually ECONNREFUSED: the backend is restarting. The flow survives that. The error was taken
            // off the socket, and waiting datagrams will be announced again.
            Err(errno) => {
                if errno == Errno::MSGSIZE {
                    flow.read_path_again();
                }
                return;
            }
        }
        // Answers follow the sender's newest port.
        flow.take_moved();
        let Some(Some(Inbound { downstream, .. })) = self.downstreams.get(flow.back.downstream) else {
            return;
        };
        let mut datagrams = Vec::new();
        for arrival in received.arrivals() {
            let payloads = arrival.datagrams().map(|reply| flow.sending.take_header_off(reply));
            datagrams.extend(payloads.map(|payload| Datagram { prefix: &flow.reply_header, payload }));
        }
        let sent = flow.back.send(downstream, &datagrams, &mut flow.merge_down);
        flow.down.add(sent);
        let shard = &flow.listener.shard;
        shard.add(Counter::DatagramsDown, sent.datagrams);
        shard.add(Counter::BytesDown, sent.bytes);
        if sent.dropped > 0 {
            shard.add(Counter::DatagramsDropped, sent.dropped);
        }
        // Where datagrams are bare, only the sender's own datagrams prove that it still knows the flow.
        if !flow.is_kept_by_sender() {
            self.table.touch(key, cx.now);
        }
    }
}

impl SentHeader {
    /// A reply's payload for the client. In `spp` it starts with the header that truepeer sent; a reply
    /// without it is passed on unchanged.
    fn take_header_off<'a>(&self, reply: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Each { header, replies_carry_it: true } => reply.strip_prefix(&**header).unwrap_or(reply),
            _ => reply,
        }
    }
}

impl Back {
    /// The way back for datagrams that came in by `arrival`.
    pub(super) fn new(number: usize, downstream: &DownstreamSocket, arrival: &Arrival<'_>) -> Self {
        let mut back = Self { downstream: number, sender: arrival.from, local: None, own_socket: None };
        back.follow(number, downstream, arrival);
        back
    }

    /// Replies take the newest way.
    pub(super) fn follow(&mut self, number: usize, downstream: &DownstreamSocket, arrival: &Arrival<'_>) {
        self.downstream = number;
        self.sender = arrival.from;
        self.local = arrival.local.filter(|local| !local.ip.is_multicast() && !is_broadcast(local));
        let other_port =
            downstream.destination_of(arrival).filter(|destination| destination.port() != downstream.port);
        if other_port == self.own_socket.as_ref().map(|(local, _)| *local) {
            return;
        }
        // If it fails, replies leave from the listener's port, which is better than none.
        self.own_socket = other_port.and_then(|local| Some((local, open_reply_socket(local).ok()?)));
    }

    fn send(&self, downstream: &DownstreamSocket, datagrams: &[Datagram<'_>], may_merge: &mut bool) -> Sent {
        let way = match &self.own_socket {
            Some((_, socket)) => {
                let to = SocketAddr::new(self.sender.ip().to_canonical(), self.sender.port());
                Way { socket: socket.as_fd(), to: Some(to), from: None }
            }
            None => Way { socket: downstream.socket.as_fd(), to: Some(self.sender), from: self.local },
        };
        send(way, datagrams, may_merge)
    }
}

fn is_broadcast(local: &Local) -> bool {
    matches!(local.ip, std::net::IpAddr::V4(ip) if ip.is_broadcast())
}
