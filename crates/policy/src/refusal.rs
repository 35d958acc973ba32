//! Why a session is refused: what was wrong and what was expected. Each value has what a front end needs to
//! say which setting would let it pass.

use core::net::SocketAddr;

use crate::addr::{BackendAddr, ClientAddr, SenderAddr};
use crate::claims::SpecialRange;
use crate::proof::Unproved;

/// A session that the policy does not let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not on the allow-list.
    #[error("{sender} may not send here")]
    SenderNotAllowed {
        /// The sender.
        sender: SenderAddr,
    },
    /// A header is required and there was none.
    #[error(
        "no PROXY header from {sender}; expected one on every connection: turn on the sender's PROXY protocol"
    )]
    HeaderMissing {
        /// The sender.
        sender: SenderAddr,
    },
    /// A header where none may be.
    #[error(
        "a PROXY header from {sender}, whose connections must not have one: turn off the sender's PROXY protocol"
    )]
    HeaderForbidden {
        /// The sender.
        sender: SenderAddr,
    },
    /// The header lacks the secret that its sender must send.
    #[error("{sender} has not proved itself: {why}")]
    HeaderUnproved {
        /// The sender.
        sender: SenderAddr,
        /// What it lacks.
        why: Unproved,
    },
    /// The header claims an address that no client has.
    #[error(
        "{sender} claims that the client is {client}, {range}; expected a host's address: mend the sender"
    )]
    ClaimRefused {
        /// The sender.
        sender: SenderAddr,
        /// The claimed client.
        client: ClientAddr,
        /// Why it is refused.
        range: SpecialRange,
    },
    /// The client is on the deny-list.
    #[error("the client {client} (from {sender}) is denied")]
    ClientDenied {
        /// The sender.
        sender: SenderAddr,
        /// The denied client.
        client: ClientAddr,
    },
    /// The client is banned at the moment.
    #[error("the client {client} (from {sender}) is banned")]
    ClientBanned {
        /// The sender.
        sender: SenderAddr,
        /// The banned client.
        client: ClientAddr,
    },
    /// The client has the backend's own address and port.
    #[error(
        "the client {client} has the address and port of the backend {backend}: connecting from there to there would reach no backend, and what the client sends would come back to it"
    )]
    ClientIsBackend {
        /// The client.
        client: ClientAddr,
        /// Where it would go.
        backend: BackendAddr,
    },
    /// The client's address has a meaning on one interface only.
    #[error(
        "the client {client} has a link-local address, which can't be used towards a backend: let the sender connect from a global address"
    )]
    ClientLinkLocal {
        /// The client.
        client: ClientAddr,
    },
    /// The listener has no backend for clients of this family.
    #[error("there is no backend for clients such as {client}")]
    NoBackend {
        /// The client.
        client: ClientAddr,
    },
    /// An IPv4 client, an IPv6 backend, and no prefix to map it.
    #[error("the client {client} has an IPv4 address and the backend {backend} an IPv6 one")]
    BackendIsIpv6 {
        /// The client.
        client: ClientAddr,
        /// Where it would go.
        backend: BackendAddr,
    },
    /// An IPv6 client, an IPv4 backend, and no permission to map it.
    #[error("the client {client} has an IPv6 address and the backend {backend} an IPv4 one")]
    BackendIsIpv4 {
        /// The client.
        client: ClientAddr,
        /// Where it would go.
        backend: BackendAddr,
    },
    /// The header's destination is not among the allowed ones.
    #[error("the header of {client} leads to {destination}, which is not allowed")]
    DestinationNotAllowed {
        /// The client.
        client: ClientAddr,
        /// Where the header leads.
        destination: BackendAddr,
    },
    /// The header's destination is no place to connect to.
    #[error(
        "the header of {client} leads to {destination}, {why}; expected the address and port of a backend: mend the sender"
    )]
    DestinationUnusable {
        /// The client.
        client: ClientAddr,
        /// Where the header leads.
        destination: BackendAddr,
        /// Why it is refused.
        why: UnusableDestination,
    },
    /// The destination is ourselves.
    #[error(
        "the session of {client} leads to {destination}, where this program itself listens ({listener}): it would loop; {}",
        loop_hint(*listener)
    )]
    DestinationLoops {
        /// The client.
        client: ClientAddr,
        /// Where the session leads.
        destination: BackendAddr,
        /// The listener with this address.
        listener: SocketAddr,
    },
}

/// Why a destination is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableDestination {
    /// Nothing listens on port 0.
    #[error("port 0")]
    PortZero,
    /// Nothing answers there, or this machine does under a false name.
    #[error("{0}")]
    Special(SpecialRange),
}

fn loop_hint(listener: SocketAddr) -> &'static str {
    if listener.ip().is_unspecified() {
        "a listener on every address claims its port everywhere, so listen on one address if another host has this one"
    } else {
        "give the backend another port"
    }
}

impl Refusal {
    /// A label for counters and for grouping log lines.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SenderNotAllowed { .. } => "sender_not_allowed",
            Self::HeaderMissing { .. } => "header_missing",
            Self::HeaderForbidden { .. } => "header_forbidden",
            Self::HeaderUnproved { .. } => "header_unproved",
            Self::ClaimRefused { .. } => "claim_refused",
            Self::ClientDenied { .. } => "client_denied",
            Self::ClientBanned { .. } => "client_banned",
            Self::ClientIsBackend { .. } => "client_is_backend",
            Self::ClientLinkLocal { .. } => "client_link_local",
            Self::NoBackend { .. } => "no_backend",
            Self::BackendIsIpv6 { .. } => "backend_is_ipv6",
            Self::BackendIsIpv4 { .. } => "backend_is_ipv4",
            Self::DestinationNotAllowed { .. } => "destination_not_allowed",
            Self::DestinationUnusable { .. } => "destination_unusable",
            Self::DestinationLoops { .. } => "destination_loops",
        }
    }

    /// Every label there is, so that counters exist before the first refusal.
    pub const REASONS: [&'static str; 15] = [
        "sender_not_allowed",
        "header_missing",
        "header_forbidden",
        "header_unproved",
        "claim_refused",
        "client_denied",
        "client_banned",
        "client_is_backend",
        "client_link_local",
        "no_backend",
        "backend_is_ipv6",
        "backend_is_ipv4",
        "destination_not_allowed",
        "destination_unusable",
        "destination_loops",
    ];
}
