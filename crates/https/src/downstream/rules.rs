//! The rules of a listener that takes TLS off.

use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::Policy;
use truepeer_session::settings::ListenerSettings;
use truepeer_stream::tls::ServerTls;

use crate::challenges::Challenges;
use crate::sites::SitesTls;

/// The rules of one listener.
#[derive(Debug, Clone)]
pub struct TlsListener {
    /// Timeouts and limits.
    pub settings: ListenerSettings,
    /// Decides who may connect, who the client is, and which origin is dialled.
    pub policy: Arc<Policy>,
    /// The TLS configuration, if clients use TLS.
    pub tls: Option<ListenerTls>,
    /// Answers to an ACME authority.
    pub challenges: Arc<Challenges>,
    /// How long a TLS handshake may take, with clients and with backends.
    pub handshake_timeout: Duration,
}

/// The TLS configuration for the clients of a listener.
#[derive(Debug, Clone)]
pub enum ListenerTls {
    /// One for all.
    One(Arc<ServerTls>),
    /// One for each site, by the name that a client asks for.
    Sites(Arc<SitesTls>),
}
