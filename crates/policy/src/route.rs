//! The destination of a session, and the source address towards it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use truepeer_proto::Version;

use crate::addr::{BackendAddr, ClientAddr};
use crate::claims::SpecialRange;
use crate::destination::{Dynamic, reaches};
use crate::family::{Nat64Prefix, pseudo_ipv4};
use crate::proof::SentTlv;
use crate::refusal::Refusal;

/// The origin of the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A header with addresses.
    Header,
    /// A v2 LOCAL header: the connection is the sender's own (a health check).
    Local,
    /// A header without a usable client: v1 UNKNOWN, v2 UNSPEC, or a valid but unsupported combination.
    Unknown,
    /// There was no header, and none was required.
    NoHeader,
}

/// The client of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The client; the sender itself unless `origin` is [`Origin::Header`].
    pub addr: ClientAddr,
    /// The origin of its address.
    pub origin: Origin,
    /// The address that the client connected to, if the header names it.
    pub destination: Option<SocketAddr>,
    /// Set if the address is one that only `--allow-claims` permits: worth a warning.
    pub special: Option<SpecialRange>,
}

/// What to do when the client's tuple is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnConflict {
    /// Keep the address, let the kernel choose the port.
    #[default]
    Ephemeral,
    /// End the session.
    Refuse,
}

/// The source address of the upstream socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// The client's address, or its substitute in the backend's family.
    #[default]
    Client,
    /// This machine's own address, chosen by the kernel. Any client can reach any backend, and no privilege
    /// is needed.
    Any,
}

/// Text that is not a conflict rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a conflict rule: expected ephemeral or refuse")]
pub struct ParseOnConflictError(String);

impl FromStr for OnConflict {
    type Err = ParseOnConflictError;

    fn from_str(text: &str) -> Result<Self, ParseOnConflictError> {
        match text {
            "ephemeral" => Ok(Self::Ephemeral),
            "refuse" => Ok(Self::Refuse),
            _ => Err(ParseOnConflictError(text.to_owned())),
        }
    }
}

impl fmt::Display for OnConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ephemeral => "ephemeral",
            Self::Refuse => "refuse",
        })
    }
}

/// The decision about one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The client.
    pub client: ClientAddr,
    /// The origin of its address.
    pub origin: Origin,
    /// The destination of the upstream connection.
    pub backend: BackendAddr,
    /// The address to bind: the client's address (or its substitute in the backend's family) and port (0:
    /// any). `None`: bind nothing; the kernel chooses, and no privilege is needed.
    pub source: Option<SocketAddr>,
    /// What to do when `source` is in use. Always [`OnConflict::Ephemeral`] if the sender is the client: on
    /// this machine its own tuple is always in use.
    pub on_conflict: OnConflict,
    /// The version of the header to write before the stream, if any.
    pub send_proxy: Option<Version>,
    /// The address that the client connected to, if the header names it; otherwise it is the downstream
    /// socket's own address.
    pub destination: Option<SocketAddr>,
    /// Set if the client is one that only `--allow-claims` permits: worth a warning.
    pub special: Option<SpecialRange>,
}

impl Route {
    /// The client, without where its session goes.
    #[must_use]
    pub fn to_client(&self) -> Client {
        let &Self { client: addr, origin, destination, special, .. } = self;
        Client { addr, origin, destination, special }
    }
}

/// The backends of one listener, by the client's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backends {
    /// For IPv4 clients. It may be IPv6, see [`Delivery::nat64_prefix`]. `None`: they are refused. Port 0: the
    /// port that the connection came to.
    pub ipv4: Option<BackendAddr>,
    /// For IPv6 clients. It may be IPv4, see [`Delivery::pseudo_ipv4`]. `None`: they are refused.
    pub ipv6: Option<BackendAddr>,
}

impl Backends {
    /// One backend for the clients of each family.
    pub fn both(ipv4: BackendAddr, ipv6: BackendAddr) -> Self {
        Self { ipv4: Some(ipv4), ipv6: Some(ipv6) }
    }
}

/// How sessions are delivered.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The destinations of sessions whose header does not determine them.
    pub backends: Backends,
    /// Whether a header's destination is used, and which ones are permitted.
    pub dynamic: Option<Dynamic>,
    /// The addresses that truepeer listens on. They are never a destination that a header or a connection
    /// chooses, because the session would loop. A wildcard address means every address of this host; the
    /// policy does not know these, so it refuses the port on any address.
    pub own_listeners: Vec<SocketAddr>,
    /// The source address of upstream sockets.
    pub source: Source,
    /// The header to write before the stream to the backend, if any.
    pub send_proxy: Option<Version>,
    /// TLVs of that header; a keyed digest is the last.
    pub send_tlvs: Vec<SentTlv>,
    /// IPv4 clients appear to an IPv6 backend under this prefix; refused without it.
    pub nat64_prefix: Option<Nat64Prefix>,
    /// IPv6 clients appear to an IPv4 backend as class E addresses; refused without it.
    pub pseudo_ipv4: bool,
    /// What to do when the client's tuple is in use.
    pub on_conflict: OnConflict,
}

impl Delivery {
    /// These backends, and defaults for everything else.
    pub fn to(backends: Backends) -> Self {
        Self {
            backends,
            dynamic: None,
            own_listeners: Vec::new(),
            source: Source::Client,
            send_proxy: None,
            send_tlvs: Vec::new(),
            nat64_prefix: None,
            pseudo_ipv4: false,
            on_conflict: OnConflict::Ephemeral,
        }
    }

    /// Port 0 stands for the port that the connection came to.
    fn at_port(
        &self,
        client: ClientAddr,
        backend: BackendAddr,
        came_to: impl FnOnce() -> Option<u16>,
    ) -> Result<BackendAddr, Refusal> {
        let mut address = backend.get();
        if address.port() != 0 {
            return Ok(backend);
        }
        address.set_port(came_to().unwrap_or_default());
        self.not_ours(client, BackendAddr::new(address))
    }

    fn not_ours(&self, client: ClientAddr, destination: BackendAddr) -> Result<BackendAddr, Refusal> {
        let reached = BackendAddr::new(reached_at(destination));
        match self.own_listeners.iter().find(|listener| reaches(**listener, reached)) {
            Some(&listener) => Err(Refusal::DestinationLoops { client, destination, listener }),
            None => Ok(destination),
        }
    }

    /// Where a client's session goes.
    ///
    /// # Errors
    /// No backend can serve it.
    pub fn route(&self, client: Client, came_to: impl FnOnce() -> Option<u16>) -> Result<Route, Refusal> {
        let backend = self.at_port(client.addr, self.backend(client)?, came_to)?;
        let source = match self.source {
            Source::Any => None,
            Source::Client => self.bound(client, backend)?,
        };
        if source == Some(reached_at(backend)) {
            return Err(Refusal::ClientIsBackend { client: client.addr, backend });
        }
        Ok(Route {
            client: client.addr,
            origin: client.origin,
            backend,
            source,
            on_conflict: if client.origin == Origin::Header {
                self.on_conflict
            } else {
                OnConflict::Ephemeral
            },
            send_proxy: self.send_proxy,
            destination: client.destination,
            special: client.special,
        })
    }

    /// The client's family determines the backend, whatever the sender's family is.
    fn backend(&self, client: Client) -> Result<BackendAddr, Refusal> {
        match (&self.dynamic, client.destination) {
            (Some(dynamic), Some(destination)) => {
                let destination = BackendAddr::new(destination);
                dynamic.check(client.addr, destination)?;
                self.not_ours(client.addr, destination)
            }
            _ => {
                let Backends { ipv4, ipv6 } = self.backends;
                let backend = if client.addr.get().is_ipv4() { ipv4 } else { ipv6 };
                backend.ok_or(Refusal::NoBackend { client: client.addr })
            }
        }
    }

    fn bound(&self, client: Client, backend: BackendAddr) -> Result<Option<SocketAddr>, Refusal> {
        // A sender on loopback is this machine. A backend elsewhere can't answer 127.0.0.1; if the kernel
        // chooses, it sees this machine's address.
        if client.origin != Origin::Header && client.addr.ip().is_loopback() && !backend.ip().is_loopback() {
            return Ok(None);
        }
        let addr = client.addr;
        let ip = match (addr.ip(), backend.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => addr.ip(),
            // ipv6(7): binding a link-local address needs its interface, which ties the socket to that
            // interface.
            (IpAddr::V6(ip), _) if ip.is_unicast_link_local() => {
                return Err(Refusal::ClientLinkLocal { client: addr });
            }
            (IpAddr::V6(_), IpAddr::V6(_)) => addr.ip(),
            (IpAddr::V4(ip), IpAddr::V6(_)) => match self.nat64_prefix {
                Some(prefix) => IpAddr::V6(prefix.embed(ip)),
                None => return Err(Refusal::BackendIsIpv6 { client: addr, backend }),
            },
            (IpAddr::V6(ip), IpAddr::V4(_)) if self.pseudo_ipv4 => IpAddr::V4(pseudo_ipv4(ip)),
            (IpAddr::V6(_), IpAddr::V4(_)) => return Err(Refusal::BackendIsIpv4 { client: addr, backend }),
        };
        Ok(Some(SocketAddr::new(ip, addr.get().port())))
    }
}

/// The real destination: Linux connects to loopback for the unspecified address.
fn reached_at(backend: BackendAddr) -> SocketAddr {
    let loopback = match backend.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(loopback, backend.get().port())
}
