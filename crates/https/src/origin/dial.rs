//! Connecting to the origin, as an interface.

use std::future::Future;
use std::time::Duration;

use truepeer_session::Hint;
use truepeer_session::connect_as::ConnectError;

use crate::client_info::ClientInfo;
use crate::stream::Connection;

/// Connects to the origin.
pub trait Dial: 'static {
    /// A connection: TCP, or TLS over it.
    type Stream: Connection + 'static;

    /// Connects to the client's origin, from the client's address if its route says so.
    fn dial(&self, client_info: &ClientInfo) -> impl Future<Output = Result<Self::Stream, DialError>>;
}

/// Why no connection to the origin was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// TCP failed.
    #[error("{0}")]
    Connect(ConnectError),
    /// The origin did not answer in time.
    #[error("it did not answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The TLS handshake failed, most often because of the certificate.
    #[error("TLS: {problem}")]
    Tls {
        /// In words.
        problem: String,
        /// The setting that has to do with it.
        hint: Option<Hint>,
    },
    /// No PROXY header can carry the client's address.
    #[error("can't create a PROXY header: {0}")]
    Header(String),
}

impl DialError {
    /// The label for counters.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect(error) if is_ours(error) => "origin_no_resources",
            Self::Connect(_) => "origin_unreachable",
            Self::Timeout(_) => "origin_connect_timeout",
            Self::Tls { .. } => "origin_tls",
            Self::Header(_) => "origin_proxy_header",
        }
    }

    /// The status for the client.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Connect(error) if is_ours(error) => 503,
            Self::Timeout(_) => 504,
            _ => 502,
        }
    }

    /// Whether this machine has run out of descriptors, memory or ports.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Connect(error) if is_ours(error))
    }

    /// Whether a retry may succeed soon: nothing listens at the origin, as while it restarts, or truepeer lacks a
    /// resource that others will release.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(error) if is_ours(error) => true,
            Self::Connect(ConnectError::Call(call)) => {
                matches!(call.errno.raw_os_error(), libc::ECONNREFUSED | libc::ECONNRESET)
            }
            _ => false,
        }
    }
}

/// Out of descriptors, memory or ports: not the origin's fault.
fn is_ours(error: &ConnectError) -> bool {
    match error {
        ConnectError::TupleInUse | ConnectError::PortHeld => true,
        // Nothing listens there.
        ConnectError::WithItself => true,
        ConnectError::Call(call) => {
            matches!(call.errno.raw_os_error(), libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
        }
    }
}
