//! Reading the sender's header, in however many segments it comes.

use std::task::Poll;

use truepeer_policy::{HeaderRule, Policy, Route, SenderAddr};
use truepeer_proto::{DecodeErrorKind, Decoded, Header};
use truepeer_session::CloseReason;
use truepeer_session::budget::Permit;

use super::{House, Listening};
use crate::buffers;
use crate::reactor::TcpStream;

/// What is read at once: more than almost every header, and most of a ClientHello behind it.
const PIECE_BYTES: usize = 4 << 10;

/// What a connection's first bytes amount to.
pub(super) struct Opening {
    pub(super) route: Route,
    pub(super) tlvs: Box<[u8]>,
    /// What came behind the header.
    pub(super) rest: Vec<u8>,
}

impl Opening {
    fn new(
        policy: &Policy,
        sender: SenderAddr,
        header: Option<&Header<'_>>,
        rest: &[u8],
    ) -> Result<Self, CloseReason> {
        let route = policy.route(sender, header)?;
        let tlvs = header.map_or_else(Box::default, |header| header.tlvs.as_bytes().into());
        Ok(Self { route, tlvs, rest: rest.to_vec() })
    }
}

/// Reads the header, if the sender's rule has one, and asks the policy whose connection it is.
pub(super) async fn read(
    listening: &Listening,
    house: &House,
    tcp: &TcpStream,
    sender: SenderAddr,
) -> Result<Opening, CloseReason> {
    let policy = &*listening.policy;
    let rule = policy.admit(sender)?;
    if rule == HeaderRule::Forbid {
        return Opening::new(policy, sender, None, &[]);
    }
    let mut seen = Vec::new();
    let limit = listening.settings.header_timeout;
    let collected =
        tcp.reactor().timeout(limit, collect(listening, house, tcp, sender, rule, &mut seen)).await;
    match collected {
        Ok(opening) => opening,
        // A sender that may, but need not send a header, and has sent nothing: its client waits for the backend.
        Err(_) if seen.is_empty() && rule == HeaderRule::Optional => Opening::new(policy, sender, None, &[]),
        Err(_) => Err(CloseReason::HeaderTimeout { waited: limit, received: seen.len() }),
    }
}

async fn collect(
    listening: &Listening,
    house: &House,
    tcp: &TcpStream,
    sender: SenderAddr,
    rule: HeaderRule,
    seen: &mut Vec<u8>,
) -> Result<Opening, CloseReason> {
    let mut permit: Option<Permit> = None;
    loop {
        // No buffer is held while nothing comes: silent connections may be many.
        let received = std::future::poll_fn(|cx| {
            let mut piece = buffers::take();
            let received = tcp.poll_read_into(cx, &mut piece[..PIECE_BYTES]);
            if let Poll::Ready(Ok(length)) = received {
                seen.extend_from_slice(&piece[..length]);
            }
            buffers::give_back(piece);
            received
        });
        let length = match received.await {
            Ok(0) | Err(_) => return Err(CloseReason::ClosedBeforeHeader),
            Ok(length) => length,
        };
        match truepeer_proto::decode(seen, listening.settings.header_limits) {
            Ok(Decoded::Done { header, consumed }) => {
                return Opening::new(&listening.policy, sender, Some(&header), &seen[consumed..]);
            }
            Ok(Decoded::NeedMore { .. }) => {}
            Err(error) if rule == HeaderRule::Optional && error.kind == DecodeErrorKind::NotProxy => {
                return Opening::new(&listening.policy, sender, None, seen);
            }
            Err(error) => {
                return Err(CloseReason::InvalidHeader { error, hint: truepeer_proto::sniff(seen) });
            }
        }
        let grown = match &mut permit {
            Some(permit) => permit.grow(length),
            None => {
                permit = house.budgets.header_bytes.take(seen.len());
                permit.is_some()
            }
        };
        if !grown {
            return Err(CloseReason::OverHeaderBudget);
        }
    }
}
