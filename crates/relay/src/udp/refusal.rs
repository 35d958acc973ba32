//! Why a datagram is dropped.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use truepeer_policy::{Refusal, SenderAddr};
use truepeer_proto::DecodeError;
use truepeer_session::connect_as::ConnectError;
use truepeer_session::{Hint, Reason};

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
        "its flow was forgotten {} s ago to make room for others, but the sender continues without a new header",
        ago.as_secs()
    )]
    FlowEvicted { ago: Duration },
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
            DropCause::FlowEvicted { .. } => Some(Hint::FlowEvicted),
            DropCause::Policy(refusal) => Some(Hint::Refusal(*refusal)),
            DropCause::Upstream(ConnectError::TupleInUse) => Some(Hint::TupleInUse),
            DropCause::Upstream(ConnectError::PortHeld) => Some(Hint::PortHeld),
            _ => None,
        }
    }

    /// As it is counted.
    pub(crate) fn reason(&self) -> Reason {
        match &self.cause {
            DropCause::Invalid { error, .. } => error.kind.into(),
            DropCause::NoHeaderBefore => Reason::FlowWithoutHeader,
            DropCause::FlowForgotten { .. } | DropCause::FlowEvicted { .. } => Reason::FlowForgotten,
            DropCause::Policy(refusal) => refusal.into(),
            DropCause::Upstream(error) => error.reason(),
            DropCause::Unencodable(_) => Reason::Unencodable,
            DropCause::Draining => Reason::Draining,
            DropCause::Unwatchable(_) => Reason::Unwatchable,
        }
    }
}

/// How many forgotten flows are remembered. They only distinguish a sender's mistake from truepeer's.
const MOST: usize = 4096;
/// How long they are remembered. Later the sender's port may belong to another flow.
const MEMORY: Duration = Duration::from_secs(600);

/// Senders whose flows were forgotten.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    flows: HashMap<SenderKey, Farewell>,
    order: VecDeque<SenderKey>,
}

#[derive(Debug, Clone, Copy)]
struct Farewell {
    at: Instant,
    evicted: bool,
}

impl Forgotten {
    /// Remembers that the flow of `sender` was forgotten at `now`, after its silence or to make room.
    pub(crate) fn add(&mut self, sender: SenderKey, evicted: bool, now: Instant) {
        if self.flows.insert(sender, Farewell { at: now, evicted }).is_none() {
            self.order.push_back(sender);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.flows.remove(&oldest);
        }
    }

    /// Why a datagram without header of `sender` belongs to no flow; `silence` is what its listener allows.
    pub(crate) fn why(&self, sender: &SenderKey, silence: Duration, now: Instant) -> DropCause {
        let Some(farewell) = self.flows.get(sender) else { return DropCause::NoHeaderBefore };
        let ago = now.saturating_duration_since(farewell.at);
        match farewell.evicted {
            _ if ago > MEMORY => DropCause::NoHeaderBefore,
            true => DropCause::FlowEvicted { ago },
            false => DropCause::FlowForgotten { ago, silence },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(n: u32) -> SenderKey {
        let sender = std::net::SocketAddr::from((std::net::Ipv4Addr::from(n), 1));
        SenderKey { listener: truepeer_session::ListenerId::new(0), sender, local: None }
    }

    #[test]
    fn forgotten_flows_are_remembered_for_a_limited_time_and_number() {
        let (mut forgotten, start) = (Forgotten::default(), Instant::now());
        let why = |forgotten: &Forgotten, n, after| forgotten.why(&sender(n), MEMORY, start + after);
        forgotten.add(sender(1), false, start);
        forgotten.add(sender(2), true, start);
        assert!(matches!(why(&forgotten, 1, MEMORY), DropCause::FlowForgotten { .. }));
        assert!(matches!(why(&forgotten, 2, MEMORY), DropCause::FlowEvicted { .. }));
        assert!(matches!(why(&forgotten, 1, MEMORY * 2), DropCause::NoHeaderBefore));
        for n in 0..100_000 {
            forgotten.add(sender(n), false, start);
        }
        assert!(forgotten.flows.len() <= MOST && forgotten.order.len() <= MOST);
        assert!(matches!(why(&forgotten, 99_999, MEMORY), DropCause::FlowForgotten { .. }));
    }
}
