//! Why a session ended, where TLS was part of it.

use std::net::IpAddr;

use truepeer_policy::Route;
use truepeer_session::Ending;
use truepeer_session::counters::Counter;

use crate::tls::HandshakeError;

/// How a session ended.
#[derive(Debug, thiserror::Error)]
pub enum TlsCloseReason {
    /// As a session without TLS ends.
    #[error(transparent)]
    Tcp(#[from] truepeer_session::CloseReason),
    /// The client has as many connections as it may have.
    #[error("{client} has {most} connections open, as many as one client may have (--max-per-client)")]
    TooManyOfClient {
        /// Whose.
        client: IpAddr,
        /// How many one may have.
        most: usize,
    },
    /// TLS with the sender failed.
    #[error("TLS with the sender failed: {0}")]
    Downstream(HandshakeError),
    /// TLS with the backend failed.
    #[error("TLS with the backend {} for {} failed: {error}", .route.backend, .route.client)]
    Upstream {
        /// Whose connection.
        route: Box<Route>,
        /// What failed.
        error: HandshakeError,
    },
    /// The client's connection ended without TLS's own end: what came may not be all, and nobody may take it for that.
    #[error("the client's connection ended without a close_notify: it was passed on as a reset")]
    TruncatedByClient,
    /// The backend's did.
    #[error("the backend's connection ended without a close_notify: it was passed on as a reset")]
    TruncatedByBackend,
}

impl TlsCloseReason {
    /// A connection that could not be delivered ends as it would have ended without us: reset.
    #[must_use]
    pub fn resets_downstream(&self) -> bool {
        match self {
            Self::Tcp(reason) => reason.resets_downstream(),
            Self::TooManyOfClient { .. } | Self::Downstream(_) => false,
            Self::Upstream { .. } | Self::TruncatedByClient | Self::TruncatedByBackend => true,
        }
    }
}

impl Ending for TlsCloseReason {
    fn counter(&self) -> Counter {
        match self {
            Self::Tcp(reason) => reason.counter(),
            Self::TooManyOfClient { .. } | Self::Downstream(_) => Counter::Refused,
            Self::Upstream { .. } => Counter::ConnectFailed,
            Self::TruncatedByClient | Self::TruncatedByBackend => Counter::Reset,
        }
    }

    fn complaint(&self) -> Option<&'static str> {
        match self {
            Self::Tcp(reason) => reason.complaint(),
            Self::TooManyOfClient { .. } => Some("too_many_of_client"),
            Self::Downstream(error) => Some(error.reason()),
            Self::Upstream { .. } => Some("origin_tls"),
            Self::TruncatedByClient | Self::TruncatedByBackend => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Tcp(reason) => reason.name(),
            Self::TooManyOfClient { .. } => "too_many_of_client",
            Self::Downstream(error) => error.reason(),
            Self::Upstream { .. } => "origin_tls",
            Self::TruncatedByClient => "truncated_by_client",
            Self::TruncatedByBackend => "truncated_by_backend",
        }
    }
}
