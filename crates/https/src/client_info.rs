//! A client's connection as its requests see it.

use std::net::SocketAddr;

use truepeer_policy::{Route, SenderAddr};

/// The facts about a connection before its first request.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The sender.
    pub sender: SenderAddr,
    /// The client, and the destination of its requests.
    pub route: Route,
    /// The address that the sender connected to.
    pub local: Option<SocketAddr>,
    /// `https`, or `http` without TLS.
    pub scheme: &'static str,
    /// TLVs for the PROXY header to the origin; empty unless one is sent.
    pub tlvs: Vec<u8>,
    /// The subject of the client's verified certificate.
    pub client_subject: Option<String>,
}

impl ClientInfo {
    /// The facts about a client without TLS.
    #[must_use]
    pub fn new(sender: SenderAddr, route: Route) -> Self {
        Self { sender, route, local: None, scheme: "http", tlvs: Vec::new(), client_subject: None }
    }
}
