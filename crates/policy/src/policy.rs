//! A session's two decisions: may this sender connect, and which destination does its session have.

use std::sync::OnceLock;

use ipnet::IpNet;
use truepeer_proto::{Addresses, Command, Header, Transport};

use crate::addr::{ClientAddr, SenderAddr};
use crate::bans::{BannedPrefix, BansAt};
use crate::claims::{Claims, SpecialRange};
use crate::refusal::Refusal;
use crate::route::{Backends, Client, Delivery, Origin, Route};
use crate::senders::{HeaderRule, Senders};

/// The rules of one listener. Built once, shared in an `Arc`, and replaced as a whole on reload.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The transport of the listener. A header for the other transport is valid but unsupported: it names no
    /// client.
    pub transport: Transport,
    /// Which senders may connect, with or without a header.
    pub senders: Senders,
    /// Which clients may be claimed.
    pub claims: Claims,
    /// The destinations, and the source address of upstream connections.
    pub delivery: Delivery,
    /// Who is banned at the moment: set once, by the process that serves. Changes of the table count at once.
    pub bans: OnceLock<BansAt>,
}

impl Policy {
    /// All defaults: TCP, loopback senders only, a header required, no special claims.
    pub fn to(backends: Backends) -> Self {
        Self {
            transport: Transport::Stream,
            senders: Senders::default(),
            claims: Claims::default(),
            delivery: Delivery::to(backends),
            bans: OnceLock::new(),
        }
    }

    /// Whether a sender may connect, and how its connections start. Call it before the first read.
    pub fn admit(&self, sender: SenderAddr) -> Result<HeaderRule, Refusal> {
        if self.senders.allow.contains(sender.ip()) {
            Ok(self.senders.rule(sender))
        } else {
            Err(Refusal::SenderNotAllowed { sender })
        }
    }

    /// The destination and the client of a session, once its header is complete (`None`: it has none).
    pub fn route(&self, sender: SenderAddr, header: Option<&Header<'_>>) -> Result<Route, Refusal> {
        self.route_at(sender, header, || None)
    }

    /// The same where a backend may have port 0, which stands for the port that the connection came to.
    pub fn route_at(
        &self,
        sender: SenderAddr,
        header: Option<&Header<'_>>,
        came_to: impl FnOnce() -> Option<u16>,
    ) -> Result<Route, Refusal> {
        self.delivery.route(self.client(sender, header)?, came_to)
    }

    /// The client of a session: the part of [`Self::route`] that needs no backend.
    pub fn client(&self, sender: SenderAddr, header: Option<&Header<'_>>) -> Result<Client, Refusal> {
        let mut client = self.name(sender, header)?;
        if client.origin == Origin::Header && client.special.is_none() {
            let range = self.claims.check_host(sender, client.addr);
            client.special = refused_claim(range, sender, client.addr)?;
        }
        Ok(client)
    }

    /// Whether this client is refused, whichever sender names it (`--deny-clients`).
    #[must_use]
    pub fn denies(&self, client: ClientAddr) -> bool {
        self.claims.deny.contains(client.ip())
    }

    /// Whether this client is banned at the moment.
    #[must_use]
    pub fn bans(&self, sender: SenderAddr, client: ClientAddr, origin: Origin) -> bool {
        !speaks_for_itself(sender, client, origin) && self.bans.get().is_some_and(|bans| bans.has(client))
    }

    /// Whether all of an entry of the allow-list is in `clients`, and its senders may send headers: then a
    /// ban is likely to be for somebody whom they name.
    #[must_use]
    pub fn has_sender_in(&self, clients: BannedPrefix) -> bool {
        let rule = |net: IpNet| self.senders.rule(SenderAddr::new((net.addr(), 0).into()));
        let mut allowed = self.senders.allow.iter();
        allowed.any(|net| clients.net().contains(&net) && rule(net) != HeaderRule::Forbid)
    }

    /// The same without checking whether the address is this host's: for later datagrams of a flow, whose
    /// client was checked when it started.
    pub fn name(&self, sender: SenderAddr, header: Option<&Header<'_>>) -> Result<Client, Refusal> {
        match (self.admit(sender)?, header) {
            (HeaderRule::Require, None) => return Err(Refusal::HeaderMissing { sender }),
            (HeaderRule::Forbid, Some(_)) => return Err(Refusal::HeaderForbidden { sender }),
            _ => {}
        }
        if let (Some(header), Some(proof)) = (header, self.senders.proof(sender)) {
            proof.check(header).map_err(|why| Refusal::HeaderUnproved { sender, why })?;
        }
        let client = match header {
            None => itself(sender, Origin::NoHeader),
            Some(header) => self.claimed(sender, header)?,
        };
        if self.denies(client.addr) {
            return Err(Refusal::ClientDenied { sender, client: client.addr });
        }
        if self.bans(sender, client.addr, client.origin) {
            return Err(Refusal::ClientBanned { sender, client: client.addr });
        }
        Ok(client)
    }

    fn claimed(&self, sender: SenderAddr, header: &Header<'_>) -> Result<Client, Refusal> {
        match (header.command, header.addresses) {
            // PROXY 2.2: the receiver must "use the real connection endpoints", whatever the address block
            // says.
            (Command::Local, _) => Ok(itself(sender, Origin::Local)),
            (Command::Proxy, Addresses::Inet { transport, source, destination })
                if transport == self.transport =>
            {
                let addr = ClientAddr::new(source);
                let special = refused_claim(self.claims.check(addr), sender, addr)?;
                Ok(Client { addr, origin: Origin::Header, destination: Some(destination), special })
            }
            // PROXY 2.2 lets the receiver choose for UNSPEC: the real endpoints, or a rejection. UNIX and the
            // other transport are treated in the same way.
            (Command::Proxy, _) => Ok(itself(sender, Origin::Unknown)),
        }
    }
}

fn refused_claim(
    checked: Result<Option<SpecialRange>, SpecialRange>,
    sender: SenderAddr,
    client: ClientAddr,
) -> Result<Option<SpecialRange>, Refusal> {
    checked.map_err(|range| Refusal::ClaimRefused { sender, client, range })
}

/// A sender whose header names itself is never banned: it is a load balancer that looks whether the backend
/// lives, and without an answer it would cut off everybody.
#[must_use]
pub fn speaks_for_itself(sender: SenderAddr, client: ClientAddr, origin: Origin) -> bool {
    origin != Origin::NoHeader && client.ip() == sender.ip()
}

/// The sender is the client. It is never special, because the kernel reports its address.
fn itself(sender: SenderAddr, origin: Origin) -> Client {
    Client { addr: ClientAddr::new(sender.get()), origin, destination: None, special: None }
}
