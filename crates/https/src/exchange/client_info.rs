//! Who is served: a client, on one connection.

use std::net::SocketAddr;

use truepeer_policy::{Route, SenderAddr};

/// What is known of a connection before its first request.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// Who opened the connection.
    pub sender: SenderAddr,
    /// Who the client is, and where its requests go.
    pub route: Route,
    /// The address that the sender connected to.
    pub local: Option<SocketAddr>,
    /// `https`, or `http` without TLS.
    pub scheme: &'static str,
    /// Extensions of the PROXY header that tells the origin of this connection, where it is told so.
    pub tlvs: Vec<u8>,
    /// The subject of the certificate that the client showed, and that was verified.
    pub client_subject: Option<String>,
}

impl ClientInfo {
    /// A client_info without TLS.
    #[must_use]
    pub fn new(sender: SenderAddr, route: Route) -> Self {
        Self { sender, route, local: None, scheme: "http", tlvs: Vec::new(), client_subject: None }
    }
}
