//! Why a datagram is dropped.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use truepeer_policy::{Refusal, SenderAddr};
use truepeer_proto::DecodeError;
use truepeer_session::connect_as::ConnectError;
use truepeer_session::{Hint, Reason};

use super::flow::FlowEnd;
use super::table::SenderKey;

/// A datagram that is dropped.
#[derive(Debug, thiserror::Error)]
#[error("datagram dropped: {cause}")]
pub(crate) struct DroppedDatagram {
    pub(crate) sender: SenderAddr,
    pub(crate) cause: DropCause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DropCause {
    #[error("{error}{}", hint.map_or_else(String::new, |hint| format!("; it looks like: {hint}")))]
    Invalid { error: DecodeError, hint: Option<&'static str> },
    #[error(
        "a flow must begin with a header, and this sender sent none; is the PROXY protocol enabled at the sender?"
    )]
    NoHeaderBefore,
    #[error(
        "its flow was forgotten {} s ago after a silence of {} s, but the sender continues without a new header",
        ago.as_secs(), silence.as_secs()
    )]
    FlowForgotten { ago: Duration, silence: Duration },
    #[error(
        "its flow was {} {} s ago, which the sender may not know: until it has been silent for {} s, its \
        client could write the header",
        over.said(), ago.as_secs(), silence.as_secs()
    )]
    FlowOver { over: Over, ago: Duration, silence: Duration },
    #[error(transparent)]
    Policy(#[from] Refusal),
    #[error("can't open the upstream socket: {0}{advice}", advice = .0.advice())]
    Upstream(#[from] ConnectError),
    #[error("can't create a header for the backend: {0}")]
    Unencodable(#[from] truepeer_proto::EncodeError),
    #[error("truepeer is stopping and accepts no new flows")]
    Draining,
    #[error("can't watch the upstream socket: {0}")]
    Unwatchable(rustix::io::Errno),
}

impl DroppedDatagram {
    /// The setting that has to do with it.
    pub(crate) fn hint(&self) -> Option<Hint> {
        match &self.cause {
            DropCause::Invalid { .. } => Some(Hint::Dialect),
            DropCause::NoHeaderBefore => Some(Hint::FlowWithoutHeader),
            DropCause::FlowForgotten { .. } => Some(Hint::FlowForgotten),
            DropCause::FlowOver { over: Over::Ended(FlowEnd::Evicted), .. } => Some(Hint::FlowEvicted),
            DropCause::Policy(refusal) => Some(Hint::Refusal(*refusal)),
            DropCause::Upstream(ConnectError::TupleInUse) => Some(Hint::TupleInUse),
            DropCause::Upstream(ConnectError::PortHeld) => Some(Hint::PortHeld),
            _ => None,
        }
    }
}

impl DropCause {
    /// As it is counted.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            DropCause::Invalid { error, .. } => error.kind.into(),
            DropCause::NoHeaderBefore => Reason::FlowWithoutHeader,
            DropCause::FlowOver { over: Over::Refused(reason), .. } => *reason,
            DropCause::FlowOver { over: Over::Ended(FlowEnd::Banned), .. } => Reason::ClientBanned,
            DropCause::FlowForgotten { .. } | DropCause::FlowOver { .. } => Reason::FlowForgotten,
            DropCause::Policy(refusal) => refusal.into(),
            DropCause::Upstream(error) => error.reason(),
            DropCause::Unencodable(_) => Reason::Unencodable,
            DropCause::Draining => Reason::Draining,
            DropCause::Unwatchable(_) => Reason::Unwatchable,
        }
    }
}

/// Why a sender has no flow though it wrote a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Ended(FlowEnd),
    /// It never began.
    Refused(Reason),
}

impl Over {
    fn said(self) -> &'static str {
        match self {
            Self::Ended(FlowEnd::Banned) => "ended by a ban",
            Self::Ended(FlowEnd::Evicted) => "forgotten to make room for others",
            Self::Ended(_) => "ended",
            Self::Refused(_) => "refused",
        }
    }
}

/// How many flows that fell silent are remembered.
const MOST: usize = 4096;
/// How many ended ones: as many as a sender has ports.
const MOST_ENDED: usize = 64 << 10;
/// How long flows that fell silent are remembered. Later the sender's port may belong to another flow.
const MEMORY: Duration = Duration::from_secs(600);

/// Senders whose flows are over, where datagrams are bare.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    flows: HashMap<SenderKey, Farewell>,
    order: VecDeque<SenderKey>,
}

#[derive(Debug, Clone, Copy)]
struct Farewell {
    at: Instant,
    over: Over,
    /// When its sender last sent something.
    heard: Instant,
}

impl Forgotten {
    /// Remembers that the flow of `sender` was over at `now`.
    pub(crate) fn add(&mut self, sender: SenderKey, over: Over, heard: Instant, now: Instant) {
        if self.flows.insert(sender, Farewell { at: now, over, heard }).is_none() {
            self.order.push_back(sender);
        }
        let most = if over == Over::Ended(FlowEnd::Silent) { MOST } else { MOST_ENDED };
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.flows.remove(&oldest);
        }
    }

    /// Why a datagram without header of `sender` belongs to no flow; `silence` is what its listener allows.
    pub(crate) fn why(&self, sender: &SenderKey, silence: Duration, now: Instant) -> DropCause {
        let Some(farewell) = self.flows.get(sender) else { return DropCause::NoHeaderBefore };
        let ago = now.saturating_duration_since(farewell.at);
        if ago > MEMORY { DropCause::NoHeaderBefore } else { DropCause::FlowForgotten { ago, silence } }
    }

    /// Refuses a datagram of `sender`, whose flow was refused, or ended before its time: the sender still
    /// passes its client's datagrams on as they are, so the client would write the next header.
    pub(crate) fn check(
        &mut self,
        sender: &SenderKey,
        silence: Duration,
        now: Instant,
    ) -> Result<(), DropCause> {
        let Some(farewell) = self.flows.get_mut(sender) else { return Ok(()) };
        if now.saturating_duration_since(farewell.heard) >= silence {
            return Ok(());
        }
        farewell.heard = now;
        let ago = now.saturating_duration_since(farewell.at);
        Err(DropCause::FlowOver { over: farewell.over, ago, silence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTED: Over = Over::Ended(FlowEnd::Evicted);

    fn sender(n: u32) -> SenderKey {
        let sender = std::net::SocketAddr::from((std::net::Ipv4Addr::from(n), 1));
        SenderKey { listener: truepeer_session::ListenerId::new(0), sender, local: None }
    }

    #[test]
    fn forgotten_flows_are_remembered_for_a_limited_time_and_number() {
        let (mut forgotten, start) = (Forgotten::default(), Instant::now());
        let why = |forgotten: &Forgotten, n, after| forgotten.why(&sender(n), MEMORY, start + after);
        forgotten.add(sender(1), Over::Ended(FlowEnd::Silent), start, start);
        assert!(matches!(why(&forgotten, 1, MEMORY), DropCause::FlowForgotten { .. }));
        assert!(matches!(why(&forgotten, 1, MEMORY * 2), DropCause::NoHeaderBefore));
        for n in 0..100_000 {
            forgotten.add(sender(n), Over::Ended(FlowEnd::Silent), start, start);
        }
        assert!(forgotten.flows.len() <= MOST && forgotten.order.len() <= MOST);
        assert!(matches!(why(&forgotten, 99_999, MEMORY), DropCause::FlowForgotten { .. }));
    }

    #[test]
    fn a_sender_whose_flow_is_over_is_refused_until_it_has_been_silent() {
        let (mut ended, start, silence) = (Forgotten::default(), Instant::now(), Duration::from_secs(28));
        let at = |seconds| start + Duration::from_secs(seconds);
        ended.add(sender(1), EVICTED, start, at(20));
        let mut check = |n, seconds| ended.check(&sender(n), silence, at(seconds));
        assert!(check(2, 21).is_ok());
        assert!(matches!(check(1, 27), Err(DropCause::FlowOver { over: EVICTED, .. })));
        assert!(check(1, 54).is_err() && check(1, 82).is_ok() && check(1, 83).is_ok());
        for n in 0..100_000 {
            ended.add(sender(n), EVICTED, start, start);
        }
        assert!(ended.flows.len() <= MOST_ENDED && ended.order.len() <= MOST_ENDED);
    }
}
