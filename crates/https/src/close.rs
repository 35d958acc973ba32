//! Why a session with TLS ended.

use truepeer_policy::Route;
use truepeer_session::counters::Counter;
use truepeer_session::{Ending, Hint, Reason};
use truepeer_stream::reactor::refused_late;
use truepeer_stream::tls::HandshakeError;

/// How a session ended.
#[derive(Debug, thiserror::Error)]
pub enum TlsCloseReason {
    /// The session ended as one without TLS does.
    #[error(transparent)]
    Tcp(#[from] truepeer_session::CloseReason),
    /// TLS with the sender failed.
    #[error("TLS with the sender failed: {0}")]
    Downstream(HandshakeError),
    /// It was an ACME authority's question (tls-alpn-01), which is answered by the handshake.
    #[error("an ACME authority has checked this name")]
    Validated,
    /// TLS with the backend failed.
    #[error("TLS with the backend {} for {} failed: {error}", .route.backend, .route.client)]
    Upstream {
        /// The destination, and the client's address.
        route: Box<Route>,
        /// The error.
        error: HandshakeError,
    },
    /// The client's connection ended without close_notify. Bytes may be missing, so the backend gets a reset.
    #[error("the client's connection ended without a close_notify; the backend was sent a reset")]
    TruncatedByClient,
    /// The backend's connection ended without close_notify. The client gets a reset.
    #[error("the backend's connection ended without a close_notify; the client was sent a reset")]
    TruncatedByBackend,
}

impl TlsCloseReason {
    /// TLS with the sender failed, or what came instead of it was a late header.
    #[must_use]
    pub fn of_handshake(error: HandshakeError) -> Self {
        let refused = if let HandshakeError::Io(io) = &error { refused_late(io) } else { None };
        refused.map_or(Self::Downstream(error), |header| truepeer_session::CloseReason::from(header).into())
    }

    /// Whether the client's connection is reset, as it would be if the backend itself had refused it.
    #[must_use]
    pub fn resets_downstream(&self) -> bool {
        match self {
            Self::Tcp(reason) => reason.resets_downstream(),
            Self::Downstream(_) | Self::Validated => false,
            Self::Upstream { .. } | Self::TruncatedByClient | Self::TruncatedByBackend => true,
        }
    }
}

impl Ending for TlsCloseReason {
    fn counter(&self) -> Counter {
        match self {
            Self::Tcp(reason) => reason.counter(),
            Self::Validated => Counter::Finished,
            Self::Downstream(_) => Counter::Refused,
            Self::Upstream { .. } => Counter::ConnectFailed,
            Self::TruncatedByClient | Self::TruncatedByBackend => Counter::Reset,
        }
    }

    fn complaint(&self) -> Option<Reason> {
        match self {
            Self::Tcp(reason) => reason.complaint(),
            Self::Downstream(error) => Some(error.reason()),
            Self::Upstream { .. } => Some(Reason::OriginTls),
            Self::Validated | Self::TruncatedByClient | Self::TruncatedByBackend => None,
        }
    }

    fn hint(&self) -> Option<Hint> {
        match self {
            Self::Tcp(reason) => reason.hint(),
            Self::Downstream(error) => error.hint(Hint::ClientAuthority),
            Self::Upstream { error, .. } => error.hint(Hint::OriginAuthority),
            Self::Validated | Self::TruncatedByClient | Self::TruncatedByBackend => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Tcp(reason) => reason.name(),
            Self::Downstream(error) => error.reason().code(),
            Self::Upstream { .. } => Reason::OriginTls.code(),
            Self::Validated => "acme_validated",
            Self::TruncatedByClient => "truncated_by_client",
            Self::TruncatedByBackend => "truncated_by_backend",
        }
    }
}
