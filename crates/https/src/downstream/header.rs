//! Reads the sender's header, in any number of segments.

use std::io;
use std::task::Poll;

use truepeer_policy::{HeaderRule, Opening, Policy, Route, SenderAddr};
use truepeer_proto::{Header, Version};
use truepeer_session::CloseReason;
use truepeer_session::budget::{Budget, Permit};
use truepeer_stream::buffers::{self, RECORD_BYTES};
use truepeer_stream::reactor::TcpStream;

use super::rules::TlsListener;
use super::worker_state::WorkerState;

/// The size of one read: larger than almost every header, with room for most of a ClientHello behind it.
const PIECE_BYTES: usize = 4 << 10;

/// The start of a connection.
pub(super) struct First {
    pub(super) route: Route,
    /// The header's version, if one came.
    pub(super) version: Option<Version>,
    pub(super) tlvs: Box<[u8]>,
    /// Bytes that came after the header.
    pub(super) rest: Vec<u8>,
}

impl First {
    fn new(
        policy: &Policy,
        tcp: &TcpStream,
        sender: SenderAddr,
        header: Option<&Header<'_>>,
        rest: &[u8],
    ) -> Result<Self, CloseReason> {
        let came_to = || tcp.local_address().ok().map(|address| address.port());
        let route = policy.route_at(sender, header, came_to)?;
        let header = header.map(|header| policy.senders.without_proof(sender, *header));
        let mut tlvs = Vec::new();
        for (kind, value) in header.iter().flat_map(|header| header.tlvs.raw()) {
            put_tlv(&mut tlvs, kind, value);
        }
        let version = header.map(|header| header.version);
        Ok(Self { route, version, tlvs: tlvs.into(), rest: rest.to_vec() })
    }
}

/// Reads the header if the sender's rule asks for one. The policy then decides who the client is and where
/// the session goes.
pub(super) async fn read(
    listening: &TlsListener,
    worker: &WorkerState,
    tcp: &TcpStream,
    sender: SenderAddr,
) -> Result<First, CloseReason> {
    let rule = listening.policy.admit(sender)?;
    if rule == HeaderRule::Forbid {
        return First::new(&listening.policy, tcp, sender, None, &[]);
    }
    let reader = listening.settings.header_reader(rule);
    let began = tcp.reactor().now();
    let (mut seen, mut permit) = (Vec::new(), None);
    loop {
        let had = seen.len();
        let waited = tcp.reactor().now() - began;
        let limit = reader.deadline(seen.len()).saturating_sub(waited);
        let received = tcp.reactor().timeout(limit, receive(tcp, &mut seen)).await;
        let opening = match received {
            Ok(Ok(0)) => reader.on_end(&seen),
            Ok(Ok(_)) => reader.on_bytes(&seen),
            Ok(Err(_)) => Opening::Refused(reader.on_reset()),
            Err(_) => {
                let opening = reader.on_timeout(&seen, tcp.reactor().now() - began);
                if opening == Opening::NoHeader {
                    tcp.await_late_bytes(reader);
                }
                opening
            }
        };
        match opening {
            Opening::NeedMore => {}
            Opening::Header { header, consumed } => {
                return First::new(&listening.policy, tcp, sender, Some(&header), &seen[consumed..]);
            }
            Opening::NoHeader => return First::new(&listening.policy, tcp, sender, None, &seen),
            Opening::Refused(error) => return Err(error.into()),
        }
        if !has_room_for(seen.len() - had, &mut permit, &worker.budgets.header_bytes) {
            return Err(CloseReason::OverHeaderBudget);
        }
    }
}

/// Reads once. It holds no buffer while waiting, because many connections may be silent.
pub(super) async fn receive(tcp: &TcpStream, seen: &mut Vec<u8>) -> io::Result<usize> {
    std::future::poll_fn(|cx| {
        let mut piece = buffers::take(RECORD_BYTES);
        let received = tcp.poll_read_into(cx, &mut piece[..PIECE_BYTES]);
        if let Poll::Ready(Ok(length)) = received {
            seen.extend_from_slice(&piece[..length]);
        }
        buffers::give_back(piece);
        received
    })
    .await
}

/// Reserves memory for `more` bytes of a partial header. `false`: all partial headers together have reached
/// their limit.
fn has_room_for(more: usize, permit: &mut Option<Permit>, budget: &Budget) -> bool {
    if let Some(permit) = permit {
        return permit.grow(more);
    }
    *permit = budget.take(more);
    permit.is_some()
}

/// Appends one to a list as headers have it.
pub(crate) fn put_tlv(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    // No name or protocol is longer than 64 KiB.
    let Ok(length) = u16::try_from(value.len()) else { return };
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(value);
}
