//! An engine's open sessions, as another thread sees and ends them.
//!
//! A worker owns its sessions, and nobody else can reach them. So a reader asks each worker in turn for a
//! page: a bounded piece of its table, which the worker copies between two rounds of events. Sessions keep no
//! copy of their state for readers.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use truepeer_policy::{AskedAddress, BackendAddr, ClientAddr, Origin, PrefixSet, Route, SenderAddr};

use crate::settings::ListenerId;
use crate::table::Key;
use crate::tags::Tags;

/// The most places of a worker's table that one page covers. It bounds how long a worker is busy with a
/// reader.
pub const PAGE_PLACES: u32 = 1024;

/// A table of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionTable {
    /// TCP sessions of the relay.
    Tcp,
    /// UDP flows.
    Udp,
    /// Connections with TLS or HTTP.
    Tls,
}

impl SessionTable {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Tls];

    /// The name of what the sessions carry.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Tls => "tls",
        }
    }
}

/// A session's id. No two sessions of a process have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// The table that it is in.
    pub table: SessionTable,
    /// The worker that owns it.
    pub worker: u16,
    /// Its key there.
    pub key: Key,
}

/// For example `tcp-0-17-3`.
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.table.name(), self.worker, self.key.place(), self.key.generation())
    }
}

/// Text that is no [`SessionId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the id of a session, such as tcp-0-17-3")]
pub struct ParseSessionIdError;

impl FromStr for SessionId {
    type Err = ParseSessionIdError;

    fn from_str(text: &str) -> Result<Self, ParseSessionIdError> {
        let parts: Vec<&str> = text.split('-').collect();
        let [table, worker, place, generation] = parts[..] else { return Err(ParseSessionIdError) };
        let table = SessionTable::ALL.into_iter().find(|known| known.name() == table);
        let key = match (place.parse(), generation.parse()) {
            (Ok(place), Ok(generation)) => Key::new(place, generation),
            _ => return Err(ParseSessionIdError),
        };
        match (table, worker.parse()) {
            (Some(table), Ok(worker)) => Ok(Self { table, worker, key }),
            _ => Err(ParseSessionIdError),
        }
    }
}

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStage {
    /// It waits for the header.
    Header,
    /// It completes the TLS handshake with the client.
    Handshake,
    /// It connects to the backend.
    Connecting,
    /// Bytes or datagrams move.
    Relaying,
    /// The kernel translates its packets.
    Spliced,
    /// HTTP: it waits for the next request.
    Idle,
}

impl SessionStage {
    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Handshake => "handshake",
            Self::Connecting => "connecting",
            Self::Relaying => "relaying",
            Self::Spliced => "spliced",
            Self::Idle => "idle",
        }
    }
}

/// One open session at one moment.
#[derive(Debug, Clone)]
pub struct OpenSession {
    /// Its id.
    pub id: SessionId,
    /// Its listener.
    pub listener: ListenerId,
    /// What it does.
    pub stage: SessionStage,
    /// The sender.
    pub sender: SenderAddr,
    /// The client, once known.
    pub client: Option<ClientAddr>,
    /// Who says so.
    pub origin: Option<Origin>,
    /// The client's address as the backend sees it; `None`: the backend sees an address of this host.
    pub source: Option<SocketAddr>,
    /// The backend, once known.
    pub backend: Option<BackendAddr>,
    /// Bytes delivered to the backend so far.
    pub bytes_up: u64,
    /// Bytes delivered to the sender so far.
    pub bytes_down: u64,
    /// The time since it was accepted.
    pub age: Duration,
    /// What the header said besides addresses.
    pub tags: Option<Box<Tags>>,
}

/// Which sessions are wanted.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Sessions of these clients (of these senders, while the client is unknown); `None`: all.
    pub clients: Option<Box<PrefixSet>>,
    /// Sessions of this client or sender, or whose backend sees this address; `None`: all.
    pub about: Option<AskedAddress>,
}

impl SessionFilter {
    /// Whether a session is wanted. `route`: once its client is known.
    #[must_use]
    pub fn admits(&self, sender: SenderAddr, route: Option<&Route>) -> bool {
        let client = route.map(|route| route.client);
        let ip = client.map_or_else(|| sender.ip(), |client| client.ip());
        let is_about = |asked: AskedAddress| {
            let source = route.and_then(|route| route.source);
            let ends = [Some(sender.get()), client.map(|client| client.get()), source];
            ends.into_iter().flatten().any(|end| asked.is(end))
        };
        self.clients.as_ref().is_none_or(|clients| clients.contains(ip)) && self.about.is_none_or(is_about)
    }
}

/// Where the next page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageStart {
    /// The table.
    pub table: SessionTable,
    /// The worker.
    pub worker: u16,
    /// The first place of its table.
    pub place: u32,
}

/// A piece of an engine's sessions.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The wanted sessions.
    pub sessions: Vec<OpenSession>,
    /// Where the next page begins; `None`: this is the last.
    pub next: Option<PageStart>,
}

/// What a worker is asked about its sessions.
#[derive(Debug)]
pub enum SessionOrder {
    /// Describe the sessions that `filter` admits.
    Page {
        /// Which sessions are wanted.
        filter: SessionFilter,
        /// Where the page begins.
        start: PageStart,
        /// Gets the page.
        done: Sender<Page>,
    },
    /// End a session.
    End {
        /// The session.
        id: SessionId,
        /// Learns whether there was one.
        done: Sender<bool>,
    },
    /// End the sessions whose clients are banned now.
    EndBanned,
}

/// An engine's sessions.
pub trait SessionList: Send + Sync {
    /// One page of the sessions that `filter` admits; `start` `None`: the first. A session that is open all
    /// the time is on one page, once.
    fn page(&self, filter: &SessionFilter, start: Option<PageStart>) -> Page;

    /// Ends a session; both connections are reset. Returns whether there was one.
    fn end(&self, id: SessionId) -> bool;

    /// Has each worker end the sessions whose clients are banned now, without waiting for it.
    fn end_banned(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = SessionId { table: SessionTable::Udp, worker: 3, key: Key::new(17, u32::MAX) };
        assert_eq!(id.to_string(), "udp-3-17-4294967295");
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in [
            "",
            "udp",
            "udp-3-17",
            "sctp-3-17-1",
            "udp-3-17-1-1",
            "udp-65536-1-1",
            "udp--1-1-1",
            "udp-3-x-1",
            "udp-3-17-",
        ] {
            assert_eq!(wrong.parse::<SessionId>(), Err(ParseSessionIdError), "{wrong}");
        }
    }

    #[test]
    fn a_session_without_a_client_is_found_by_its_sender() {
        let sender = SenderAddr::new(address("192.0.2.1:1"));
        let route = route("198.51.100.7:2", None);
        let clients = |text: &str| {
            let prefixes: PrefixSet = text.parse().expect("a prefix");
            SessionFilter { clients: Some(Box::new(prefixes)), about: None }
        };
        assert!(SessionFilter::default().admits(sender, None));
        assert!(clients("198.51.100.0/24").admits(sender, Some(&route)));
        assert!(!clients("198.51.100.0/24").admits(sender, None));
        assert!(clients("192.0.2.1/32").admits(sender, None));
        assert!(!clients("192.0.2.1/32").admits(sender, Some(&route)));
    }

    #[test]
    fn a_session_is_found_by_each_of_its_ends_but_the_backend() {
        let sender = SenderAddr::new(address("192.0.2.1:1"));
        let route = route("[2001:db8::1]:2", Some("254.237.119.6:2"));
        let is_found = |text: &str| {
            let about = Some(text.parse().expect("an address"));
            SessionFilter { clients: None, about }.admits(sender, Some(&route))
        };
        for text in ["192.0.2.1:1", "2001:db8::1", "[2001:db8::1]:2", "254.237.119.6", "254.237.119.6:2"] {
            assert!(is_found(text), "{text}");
        }
        for text in ["192.0.2.1:2", "2001:db8::2", "254.237.119.6:3", "192.0.2.9:80"] {
            assert!(!is_found(text), "{text}");
        }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn route(client: &str, source: Option<&str>) -> Route {
        Route {
            client: ClientAddr::new(address(client)),
            origin: Origin::Header,
            backend: BackendAddr::new(address("192.0.2.9:80")),
            source: source.map(address),
            on_conflict: truepeer_policy::OnConflict::default(),
            send_proxy: None,
            destination: None,
            special: None,
        }
    }
}
