//! The rules of a listener that takes TLS off.

use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::Policy;
use truepeer_session::settings::ListenerSettings;

use crate::tls::ServerTls;

/// The rules of one listener.
#[derive(Debug, Clone)]
pub struct TlsListener {
    /// Timeouts and limits.
    pub settings: ListenerSettings,
    /// Decides who may connect, who the client is, and which origin is dialled.
    pub policy: Arc<Policy>,
    /// The TLS configuration, if clients use TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// How long a TLS handshake may take, with clients and with backends.
    pub handshake_timeout: Duration,
}
