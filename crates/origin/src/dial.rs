//! Connecting to the origin, as an interface.

use std::future::Future;
use std::time::Duration;

use truepeer_policy::BackendAddr;
use truepeer_session::connect_as::ConnectError;
use truepeer_session::{Hint, Reason};
use truepeer_stream::stream::Connection;

use crate::client_info::ClientInfo;

/// The version of HTTP to speak with the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OriginProtocol {
    /// HTTP/2 if the origin chooses it (ALPN), otherwise HTTP/1.1. Without TLS: HTTP/1.1.
    Auto,
    /// HTTP/2: by ALPN, or without TLS by prior knowledge. What HTTP/2 can't carry goes by HTTP/1.1.
    Http2,
    /// HTTP/1.1.
    #[default]
    Http1,
}

impl OriginProtocol {
    /// The offer for a connection that any request may use.
    pub const fn offer(self) -> Offer {
        match self {
            Self::Auto => Offer::Either,
            Self::Http2 => Offer::Http2,
            Self::Http1 => Offer::Http1,
        }
    }
}

/// The versions of HTTP that may be chosen for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only.
    Http2,
    /// Either, as the origin chooses.
    Either,
}

/// A connection to the origin, and the version of HTTP chosen for it.
#[derive(Debug)]
pub struct Dialled<S> {
    /// The connection.
    pub stream: S,
    /// HTTP/2 was chosen.
    pub speaks_http2: bool,
}

/// Connects to the origin.
pub trait Dial: 'static {
    /// A connection: TCP, or TLS over it.
    type Stream: Connection + 'static;

    /// Connects to the client's origin, from the client's address if its route says so.
    fn dial(
        &self,
        client_info: &ClientInfo,
        offer: Offer,
    ) -> impl Future<Output = Result<Dialled<Self::Stream>, DialError>>;

    /// Whether connections use TLS.
    fn uses_tls(&self) -> bool;

    /// The origin's address for this client.
    fn backend(&self, client_info: &ClientInfo) -> BackendAddr {
        client_info.route.backend
    }
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
    /// The origin ended the connection before the first request, as a program that restarts does with those
    /// in its backlog.
    #[error("it closed the connection {0}")]
    ClosedAtStart(&'static str),
    /// The origin does not speak HTTP/2, which is required.
    #[error("it does not speak HTTP/2: {0}")]
    NotHttp2(&'static str),
    /// The origin does not speak HTTP/1.1, which the request or the settings require.
    #[error("it refuses HTTP/1.1 by ALPN (alert no_application_protocol)")]
    NotHttp1,
    /// The origin speaks HTTP/2 and allows no stream.
    #[error("it allows no requests (HTTP/2: SETTINGS_MAX_CONCURRENT_STREAMS is 0)")]
    NoStreams,
    /// The client's address is of a family that the origin lacks, and connections would have to come from it.
    #[error("it has no {0} address, and an {0} client's address can't be shown to it by the other family")]
    OtherFamily(&'static str),
    /// No PROXY header can carry the client's address.
    #[error("can't create a PROXY header: {0}")]
    Header(String),
}

impl DialError {
    /// As it is counted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Connect(error) if is_ours(error) => Reason::OriginNoResources,
            Self::Connect(_) => Reason::OriginUnreachable,
            Self::Timeout(_) => Reason::OriginConnectTimeout,
            Self::Tls { .. } => Reason::OriginTls,
            Self::ClosedAtStart(_) => Reason::OriginClosed,
            Self::NotHttp2(_) => Reason::OriginNotHttp2,
            Self::NotHttp1 => Reason::OriginNotHttp1,
            Self::NoStreams => Reason::OriginNoStreams,
            Self::OtherFamily(_) => Reason::OriginFamily,
            Self::Header(_) => Reason::OriginProxyHeader,
        }
    }

    /// The status for the client.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Connect(error) if is_ours(error) => 503,
            Self::NoStreams => 503,
            Self::Timeout(_) => 504,
            _ => 502,
        }
    }

    /// Whether this machine has run out of descriptors, memory or ports.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Connect(error) if is_ours(error))
    }

    /// Whether a retry may succeed soon: nothing listens at the origin or it closes connections at once, as
    /// while it restarts, or truepeer lacks a resource that others will release.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(error) if is_ours(error) => true,
            Self::Connect(ConnectError::Call(call)) => {
                matches!(call.errno.raw_os_error(), libc::ECONNREFUSED | libc::ECONNRESET)
            }
            Self::ClosedAtStart(_) | Self::NoStreams => true,
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
        ConnectError::Call(call) | ConnectError::NoRoute(call) => {
            matches!(call.errno.raw_os_error(), libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
        }
    }
}
