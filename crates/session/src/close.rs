//! Why a session ended: its text, its counter, and whether the sender sees a reset.

use std::time::Duration;

use rustix::io::Errno;
use truepeer_policy::{HeaderError, Refusal, Route};
use truepeer_proto::EncodeError;

use crate::clients::TooMany;
use crate::connect_as::ConnectError;
use crate::counters::Counter;
use crate::hint::Hint;
use crate::journal::Ending;
use crate::reason::Reason;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both directions were closed with FIN.
    #[error("finished")]
    Finished,
    /// The client (or its sender) reset the connection. The backend's was reset, too.
    #[error("reset by the client")]
    ResetByClient,
    /// The backend reset the connection. The client's was reset, too.
    #[error("reset by the backend")]
    ResetByBackend,
    /// The session had left user space, and what its packets passed has changed: a device, an address, or
    /// IPsec policies. Both connections were reset.
    #[error("the way of its packets has changed")]
    WayLost,
    /// No bytes moved for too long.
    #[error("idle time-out")]
    Idle,
    /// The header was missing, invalid or incomplete.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The policy refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The client has reached its limit of connections.
    #[error(transparent)]
    TooManyOfClient(#[from] TooMany),
    /// No backend connection could be made.
    #[error(
        "can't connect to the backend {} as {}: {error}{}",
        .route.backend, .route.client, error.advice()
    )]
    ConnectFailed {
        /// The destination, and the client's address.
        route: Box<Route>,
        /// The error.
        error: ConnectError,
    },
    /// The backend did not answer in time.
    #[error(
        "the backend {} did not answer {} within {} s: is it up, and do its replies to that address come \
        back to this host? (truepeer doctor checks)",
        .route.backend, .route.client, waited.as_secs_f32()
    )]
    ConnectTimeout {
        /// The destination, and the client's address.
        route: Box<Route>,
        /// The time limit.
        waited: Duration,
    },
    /// All headers in pieces together use too much memory.
    #[error("too many headers are arriving in pieces; their memory budget is used up")]
    OverHeaderBudget,
    /// The limit of epoll watches is reached.
    #[error("can't watch the connection: {0}; see fs.epoll.max_user_watches")]
    Unwatchable(Errno),
    /// truepeer ended; both connections were reset.
    #[error("truepeer is stopping")]
    Stopping,
    /// The operator ended this session; both connections were reset.
    #[error("ended by the operator")]
    EndedByOperator,
    /// The client was banned; both connections were reset.
    #[error("the client was banned")]
    Banned,
    /// A defect in truepeer; both connections were reset. The panic's own message has the details.
    #[error(
        "a defect in truepeer has ended this session; please report the panic that was logged before this \
        line"
    )]
    Panicked,
    /// No header can carry the client's address.
    #[error("can't create a header for the backend: {0}")]
    Unencodable(EncodeError),
}

impl CloseReason {
    /// Whether the sender's connection is reset. If the backend can't be reached, it would be reset without
    /// truepeer, too.
    #[must_use]
    pub fn resets_downstream(&self) -> bool {
        matches!(self, Self::ConnectFailed { .. } | Self::ConnectTimeout { .. } | Self::Unencodable(_))
    }
}

impl Ending for CloseReason {
    fn counter(&self) -> Counter {
        match self {
            Self::Finished => Counter::Finished,
            Self::ResetByClient | Self::ResetByBackend | Self::WayLost => Counter::Reset,
            Self::Idle => Counter::IdleTimeout,
            Self::Stopping => Counter::Stopped,
            Self::EndedByOperator | Self::Banned => Counter::EndedByOperator,
            Self::Panicked => Counter::Panicked,
            Self::Header(HeaderError::Absent) => Counter::ClosedBeforeHeader,
            Self::Header(_) | Self::Refused(_) | Self::OverHeaderBudget | Self::TooManyOfClient(_) => {
                Counter::Refused
            }
            Self::ConnectFailed { .. } | Self::ConnectTimeout { .. } => Counter::ConnectFailed,
            Self::Unwatchable(_) | Self::Unencodable(_) => Counter::Refused,
        }
    }

    fn complaint(&self) -> Option<Reason> {
        Some(match self {
            Self::Header(error) => return Reason::of_header(error),
            Self::Refused(refusal) => refusal.into(),
            Self::ConnectFailed { error, .. } => error.reason(),
            Self::ConnectTimeout { .. } => Reason::ConnectTimeout,
            Self::OverHeaderBudget => Reason::HeaderBudget,
            Self::TooManyOfClient(_) => Reason::TooManyOfClient,
            Self::Unwatchable(_) => Reason::Unwatchable,
            Self::Unencodable(_) => Reason::Unencodable,
            Self::Panicked => Reason::Panicked,
            Self::Finished
            | Self::ResetByClient
            | Self::ResetByBackend
            | Self::WayLost
            | Self::Idle
            | Self::Stopping
            | Self::EndedByOperator
            | Self::Banned => return None,
        })
    }

    fn hint(&self) -> Option<Hint> {
        match self {
            Self::Refused(refusal) => Some(Hint::Refusal(*refusal)),
            Self::TooManyOfClient(_) => Some(Hint::MaxPerClient),
            Self::Header(error) => error.is_too_long().then_some(Hint::HeaderTooLong),
            Self::ConnectFailed { error: ConnectError::TupleInUse, .. } => Some(Hint::TupleInUse),
            Self::ConnectFailed { error: ConnectError::PortHeld, .. } => Some(Hint::PortHeld),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        self.complaint().map_or_else(|| self.name_of_normal(), Reason::code)
    }
}

impl CloseReason {
    /// The name of an end without a complaint.
    fn name_of_normal(&self) -> &'static str {
        match self {
            Self::ResetByClient => "reset_by_client",
            Self::ResetByBackend => "reset_by_backend",
            Self::WayLost => "way_lost",
            Self::Idle => "idle",
            Self::Header(_) => "closed_before_header",
            Self::Stopping => "stopping",
            Self::EndedByOperator => "ended_by_operator",
            Self::Banned => "banned",
            _ => "finished",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Origin, SenderAddr};

    use super::*;

    fn route() -> Box<Route> {
        let address = |text: &str| text.parse().expect("an address");
        Box::new(Route {
            client: ClientAddr::new(address("198.51.100.7:2000")),
            origin: Origin::Header,
            backend: BackendAddr::new(address("203.0.113.5:80")),
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: None,
            destination: None,
            special: None,
        })
    }

    fn not_connected(error: ConnectError) -> CloseReason {
        CloseReason::ConnectFailed { route: route(), error }
    }

    fn timed_out() -> CloseReason {
        CloseReason::ConnectTimeout { route: route(), waited: Duration::from_millis(2500) }
    }

    fn refusal() -> Refusal {
        Refusal::SenderNotAllowed { sender: SenderAddr::new("192.0.2.1:1000".parse().expect("an address")) }
    }

    #[test]
    fn each_end_has_its_name_and_its_counter() {
        let too_many = CloseReason::from(TooMany { client: [192, 0, 2, 1].into(), most: 3 });
        let late = HeaderError::Late { waited: Duration::from_secs(3), received: 5 };
        let rows = [
            (CloseReason::Finished, "finished", Counter::Finished),
            (CloseReason::ResetByClient, "reset_by_client", Counter::Reset),
            (CloseReason::ResetByBackend, "reset_by_backend", Counter::Reset),
            (CloseReason::WayLost, "way_lost", Counter::Reset),
            (CloseReason::Idle, "idle", Counter::IdleTimeout),
            (CloseReason::Stopping, "stopping", Counter::Stopped),
            (CloseReason::EndedByOperator, "ended_by_operator", Counter::EndedByOperator),
            (CloseReason::Banned, "banned", Counter::EndedByOperator),
            (CloseReason::Panicked, "panicked", Counter::Panicked),
            (HeaderError::Absent.into(), "closed_before_header", Counter::ClosedBeforeHeader),
            (late.into(), "header_timeout", Counter::Refused),
            (refusal().into(), "sender_not_allowed", Counter::Refused),
            (CloseReason::OverHeaderBudget, "header_budget", Counter::Refused),
            (too_many, "too_many_of_client", Counter::Refused),
            (CloseReason::Unwatchable(Errno::NOSPC), "unwatchable", Counter::Refused),
            (CloseReason::Unencodable(EncodeError::TooLong), "unencodable", Counter::Refused),
            (not_connected(ConnectError::TupleInUse), "connect_failed", Counter::ConnectFailed),
            (not_connected(ConnectError::PortHeld), "client_port_held", Counter::ConnectFailed),
            (not_connected(ConnectError::WithItself), "connected_with_itself", Counter::ConnectFailed),
            (timed_out(), "connect_timeout", Counter::ConnectFailed),
        ];
        for (reason, name, counter) in &rows {
            assert_eq!((reason.name(), reason.counter()), (*name, *counter), "{reason}");
        }
        let names: HashSet<_> = rows.iter().map(|(_, name, _)| name).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn normal_ends_are_no_complaints() {
        for normal in [
            CloseReason::Finished,
            CloseReason::ResetByClient,
            CloseReason::ResetByBackend,
            CloseReason::Idle,
            CloseReason::Stopping,
            CloseReason::EndedByOperator,
            CloseReason::Banned,
            HeaderError::Absent.into(),
        ] {
            assert_eq!((normal.complaint(), normal.hint()), (None, None), "{normal}");
        }
    }

    #[test]
    fn a_sender_is_reset_only_if_its_backend_was_not_reached() {
        for unreached in [
            not_connected(ConnectError::TupleInUse),
            timed_out(),
            CloseReason::Unencodable(EncodeError::TooLong),
        ] {
            assert!(unreached.resets_downstream(), "{unreached}");
        }
        for other in [CloseReason::Finished, HeaderError::Absent.into(), refusal().into(), CloseReason::Idle]
        {
            assert!(!other.resets_downstream(), "{other}");
        }
    }

    #[test]
    fn hints_name_what_a_setting_could_change() {
        assert_eq!(CloseReason::from(refusal()).hint(), Some(Hint::Refusal(refusal())));
        assert_eq!(not_connected(ConnectError::TupleInUse).hint(), Some(Hint::TupleInUse));
        assert_eq!(not_connected(ConnectError::PortHeld).hint(), Some(Hint::PortHeld));
        assert_eq!(not_connected(ConnectError::WithItself).hint(), None);
        assert_eq!(timed_out().hint(), None);
    }

    #[test]
    fn a_backend_that_was_not_reached_is_named_with_its_client() {
        let told = not_connected(ConnectError::WithItself).to_string();
        let route = "can't connect to the backend 203.0.113.5:80 as 198.51.100.7:2000: ";
        assert!(told.starts_with(route) && told.ends_with("; is the backend running?"), "{told}");
        assert!(timed_out().to_string().contains("did not answer 198.51.100.7:2000 within 2.5 s"));
    }
}
