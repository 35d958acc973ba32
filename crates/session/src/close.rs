//! Why a session ended: the text, the counter, and whether the sender sees a reset.

use std::time::Duration;

use rustix::io::Errno;
use truepeer_policy::{HeaderError, Refusal, Route};
use truepeer_proto::EncodeError;

use crate::connect_as::ConnectError;
use crate::counters::Counter;
use crate::journal::Ending;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both directions were closed in order.
    #[error("finished")]
    Finished,
    /// The client (or its sender) reset the connection; the backend's was reset, too.
    #[error("reset by the client")]
    ResetByClient,
    /// The backend reset the connection; the client's was reset, too.
    #[error("reset by the backend")]
    ResetByBackend,
    /// Nothing moved for too long.
    #[error("idle for too long")]
    Idle,
    /// No header came, or a wrong one, or a part of one.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The policy says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No backend connection could be made.
    #[error("can't connect to the backend {} as {}: {error}{}", .route.backend, .route.client, advice(error))]
    ConnectFailed {
        /// Whose connection.
        route: Box<Route>,
        /// What failed.
        error: ConnectError,
    },
    /// The backend did not answer in time.
    #[error(
        "the backend {} did not answer {} within {} s: is it up, and do its replies to that address come back to this host? (truepeer doctor tells)",
        .route.backend, .route.client, waited.as_secs_f32()
    )]
    ConnectTimeout {
        /// Whose connection.
        route: Box<Route>,
        /// How long we waited.
        waited: Duration,
    },
    /// All headers in pieces together take too much memory.
    #[error("too many headers are arriving in pieces: no memory is left for this one")]
    OverHeaderBudget,
    /// The system is out of epoll watches.
    #[error("the connection can't be watched: {0}; see fs.epoll.max_user_watches")]
    Unwatchable(Errno),
    /// truepeer ends, and with it what was open; both connections are reset.
    #[error("truepeer is stopping")]
    Stopping,
    /// A defect of truepeer; both connections are reset. The panic's own message says what it was.
    #[error(
        "a defect of truepeer has ended this session: please report the panic that was logged before this line"
    )]
    Panicked,
    /// No header can say what `--send-proxy` would have to.
    #[error("no header for the backend can be made: {0}")]
    Unencodable(EncodeError),
}

fn advice(error: &ConnectError) -> &'static str {
    let call = match error {
        ConnectError::Call(call) => call,
        ConnectError::TupleInUse => return "; is it connected through this machine twice? (--on-conflict)",
        ConnectError::PortHeld => {
            return "; with CAP_NET_ADMIN truepeer could share the port, and with --on-conflict ephemeral take another one";
        }
        ConnectError::WithItself => return "; is the backend running?",
    };
    match (call.call, call.errno) {
        (name, Errno::PERM) if name.contains("TRANSPARENT") || name.contains("MARK") => {
            "; give truepeer CAP_NET_RAW or CAP_NET_ADMIN, or run it as root"
        }
        ("bind" | "socket", Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {
            "; is IPv6 disabled on this machine?"
        }
        ("connect", Errno::CONNREFUSED) => "; is the backend listening there?",
        _ => "",
    }
}

impl CloseReason {
    /// Whether the sender's connection is reset. It would be without truepeer, too, if the backend can't be reached.
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
            Self::Finished | Self::ResetByClient | Self::ResetByBackend | Self::Idle | Self::Stopping => {
                return None;
            }
        })
    }

    fn name(&self) -> &'static str {
        self.complaint().unwrap_or(match self {
            Self::ResetByClient => "reset_by_client",
            Self::ResetByBackend => "reset_by_backend",
            Self::Idle => "idle",
            Self::Header(_) => "closed_before_header",
            Self::Stopping => "stopping",
            _ => "finished",
        })
    }
}
