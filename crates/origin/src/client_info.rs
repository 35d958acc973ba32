//! A client's connection as its requests see it.

use std::net::SocketAddr;
use std::rc::Rc;

use truepeer_policy::{Route, SenderAddr};
use truepeer_session::registry::SessionStage;
use truepeer_stream::open::OpenConnection;

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
    /// The connection, as the operator sees it.
    pub open: Option<Rc<OpenConnection>>,
    /// The client is truepeer itself, which checks an origin.
    pub is_own: bool,
}

impl ClientInfo {
    /// The facts about a client without TLS.
    #[must_use]
    pub fn new(sender: SenderAddr, route: Route) -> Self {
        Self {
            sender,
            route,
            local: None,
            scheme: "http",
            tlvs: Vec::new(),
            client_subject: None,
            open: None,
            is_own: false,
        }
    }

    /// truepeer itself, as the client of a check: its requests say that they came by https, and name no
    /// client.
    pub fn own(sender: SenderAddr, route: Route) -> Self {
        Self { scheme: "https", is_own: true, ..Self::new(sender, route) }
    }

    /// Notes what the connection does now.
    pub fn set_stage(&self, stage: SessionStage) {
        if let Some(open) = &self.open {
            open.set_stage(stage);
        }
    }
}
