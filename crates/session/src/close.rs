//! Why a session ended: its text, its counter, and whether the sender sees a reset.

use std::time::Duration;

use rustix::io::Errno;
use truepeer_policy::{HeaderError, Refusal, Route};
use truepeer_proto::EncodeError;

use crate::connect_as::ConnectError;
use crate::counters::Counter;
use crate::hint::Hint;
use crate::journal::Ending;

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
    /// No bytes moved for too long.
    #[error("idle time-out")]
    Idle,
    /// The header was missing, invalid or incomplete.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The policy refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No backend connection could be made.
    #[error("can't connect to the backend {} as {}: {error}{}", .route.backend, .route.client, error.advice())]
    ConnectFailed {
        /// The destination, and the client's address.
        route: Box<Route>,
        /// The error.
        error: ConnectError,
    },
    /// The backend did not answer in time.
    #[error(
        "the backend {} did not answer {} within {} s: is it up, and do its replies to that address come back to this host? (truepeer doctor checks)",
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
    /// A defect in truepeer; both connections were reset. The panic's own message has the details.
    #[error(
        "a defect in truepeer has ended this session; please report the panic that was logged before this line"
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
            Self::ResetByClient | Self::ResetByBackend => Counter::Reset,
            Self::Idle => Counter::IdleTimeout,
            Self::Stopping => Counter::Stopped,
            Self::EndedByOperator => Counter::EndedByOperator,
            Self::Panicked => Counter::Panicked,
            Self::Header(HeaderError::Absent) => Counter::ClosedBeforeHeader,
            Self::Header(_) | Self::Refused(_) | Self::OverHeaderBudget => Counter::Refused,
            Self::ConnectFailed { .. } | Self::ConnectTimeout { .. } => Counter::ConnectFailed,
            Self::Unwatchable(_) | Self::Unencodable(_) => Counter::Refused,
        }
    }

    fn complaint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Header(error) => return error.complaint(),
            Self::Refused(refusal) => refusal.reason(),
            Self::ConnectFailed { error, .. } => error.label(),
            Self::ConnectTimeout { .. } => "connect_timeout",
            Self::OverHeaderBudget => "header_budget",
            Self::Unwatchable(_) => "unwatchable",
            Self::Unencodable(_) => "unencodable",
            Self::Panicked => "panicked",
            Self::Finished
            | Self::ResetByClient
            | Self::ResetByBackend
            | Self::Idle
            | Self::Stopping
            | Self::EndedByOperator => return None,
        })
    }

    fn hint(&self) -> Option<Hint> {
        match self {
            Self::Refused(refusal) => Some(Hint::Refusal(*refusal)),
            Self::Header(error) => error.is_too_long().then_some(Hint::HeaderTooLong),
            Self::ConnectFailed { error: ConnectError::TupleInUse, .. } => Some(Hint::TupleInUse),
            Self::ConnectFailed { error: ConnectError::PortHeld, .. } => Some(Hint::PortHeld),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        self.complaint().unwrap_or(match self {
            Self::ResetByClient => "reset_by_client",
            Self::ResetByBackend => "reset_by_backend",
            Self::Idle => "idle",
            Self::Header(_) => "closed_before_header",
            Self::Stopping => "stopping",
            Self::EndedByOperator => "ended_by_operator",
            _ => "finished",
        })
    }
}
