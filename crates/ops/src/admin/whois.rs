//! `/whois?address=ADDRESS[:PORT]`: who is behind an address.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use truepeer_attach::{Connection, Named};
use truepeer_http::query;
use truepeer_policy::{AskedAddress, Origin, StandIn};
use truepeer_session::{OpenSession, SessionFilter, Tags};

use super::Running;

/// The most sessions of an answer: a load balancer's own address has them all.
pub(crate) const MOST: usize = 100;

/// One session or connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WhoisDoc {
    /// `null`: its header has not come yet.
    pub(crate) client: Option<SocketAddr>,
    /// The client's address as the server sees it; `null`: the server sees an address of truepeer's host.
    pub(crate) shown_as: Option<SocketAddr>,
    pub(crate) sender: SocketAddr,
    /// Why this is the client, and is shown so.
    pub(crate) why: String,
    /// The listener's address; of `attach`, the server's.
    pub(crate) listener: String,
    /// `tcp`, `udp` or `tls`.
    pub(crate) kind: String,
    pub(crate) backend: Option<SocketAddr>,
    /// The session's id; `null`: a connection that `attach` serves.
    pub(crate) id: Option<String>,
    /// Of `attach`: the attachment, as in `truepeer attach status`, and its network namespace's inode.
    pub(crate) attachment: Option<u8>,
    pub(crate) netns: Option<u64>,
    /// `null`: the kernel's tables don't have it.
    pub(crate) age_seconds: Option<f64>,
    /// Of the client's certificate.
    pub(crate) subject: Option<String>,
    /// By name, without secrets.
    pub(crate) tlvs: BTreeMap<String, String>,
}

impl WhoisDoc {
    fn of(session: &OpenSession, listener: String) -> Self {
        let client = session.client.map(|client| client.get());
        let tags = session.tags.as_deref();
        let value = |name: &str| tags.and_then(|tags| tags.value(name));
        let subject = value("subject").map(str::to_owned);
        Self {
            client,
            shown_as: session.source,
            sender: session.sender.get(),
            why: why(session),
            listener,
            kind: session.id.table.name().to_owned(),
            backend: session.backend.map(|backend| backend.get()),
            id: Some(session.id.to_string()),
            attachment: None,
            netns: None,
            age_seconds: Some((session.age.as_secs_f64() * 1000.0).round() / 1000.0),
            subject: subject.or_else(|| value("ssl_cn").map(|name| format!("CN={name}"))),
            tlvs: tags.into_iter().flat_map(Tags::iter).map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
        }
    }

    /// A connection that the kernel's tables have.
    pub(crate) fn attached(connection: &Connection) -> Self {
        let Connection { client, sender, local, is_udp, named, attachment, netns } = *connection;
        let why = match named {
            Named::ByHeader => "the sender's header names it",
            Named::Nobody => "no header names a client: the sender stands for itself",
            Named::Awaited => "its header has not come yet",
        };
        Self {
            client,
            shown_as: client,
            sender,
            why: why.to_owned(),
            listener: local.to_string(),
            kind: if is_udp { "udp" } else { "tcp" }.to_owned(),
            backend: None,
            id: None,
            attachment,
            netns: Some(netns),
            age_seconds: None,
            subject: None,
            tlvs: BTreeMap::new(),
        }
    }
}

fn why(session: &OpenSession) -> String {
    let named = match session.origin {
        None => return "its header has not come yet".to_owned(),
        Some(Origin::Header) => "the sender's header names it",
        Some(Origin::Local) => {
            "the header is LOCAL: the connection is the sender's own, such as a health check"
        }
        Some(Origin::Unknown) => "the header names no client (UNKNOWN): the sender stands for itself",
        Some(Origin::NoHeader) => "no header came, and none was required: the sender is the client",
    };
    let shown = match (session.client.map(|client| client.get()), session.source) {
        (Some(SocketAddr::V6(_)), Some(SocketAddr::V4(_))) => {
            "; an IPv6 client of an IPv4 backend is shown as an address of class E (--pseudo-ipv4)"
        }
        (Some(SocketAddr::V4(_)), Some(SocketAddr::V6(_))) => {
            "; an IPv4 client of an IPv6 backend is shown under --nat64-prefix"
        }
        (Some(_), None) => "; the backend sees an address of this host",
        _ => "",
    };
    format!("{named}{shown}")
}

/// What the query asks for.
pub(super) fn asked(query: &str) -> Result<AskedAddress, String> {
    let mut asked = None;
    for (name, value) in query::pairs(query) {
        match name {
            "address" => asked = Some(value.parse().map_err(|error| format!("address: {error}"))?),
            _ => return Err(format!("{name}: expected address=ADDRESS or address=ADDRESS:PORT")),
        }
    }
    asked.ok_or_else(|| "expected address=ADDRESS or address=ADDRESS:PORT".to_owned())
}

/// The open sessions with this address, [`MOST`] of them.
pub(super) fn find(running: &dyn Running, asked: AskedAddress) -> Vec<WhoisDoc> {
    let listeners = running.listeners();
    let listener = |session: &OpenSession| {
        listeners.iter().find(|view| view.id == session.listener).map(super::ListenerView::name)
    };
    let filter = SessionFilter { clients: None, about: Some(asked) };
    let mut found = Vec::new();
    for engine in running.sessions() {
        let mut start = None;
        loop {
            let page = engine.page(&filter, start);
            let docs = page.sessions.iter().map(|one| WhoisDoc::of(one, listener(one).unwrap_or_default()));
            found.extend(docs.take(MOST - found.len()));
            start = page.next;
            if start.is_none() || found.len() == MOST {
                break;
            }
        }
    }
    found
}

/// Nothing was found among the sessions: what was looked at, and what else there is.
pub(super) fn nothing(running: &dyn Running, asked: AskedAddress) -> String {
    let mut text = format!("{asked}: no open session has this address as its client's or its sender's");
    text.push_str(", and to no backend is it shown");
    if asked.has_port() {
        let others = find(running, asked.without_port());
        let addresses = others.iter().take(3).filter_map(|doc| doc.client.or(Some(doc.sender)));
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        if !addresses.is_empty() {
            let more = if others.len() > addresses.len() { ", …" } else { "" };
            text.push_str(&format!("; with other ports: {}{more}", addresses.join(", ")));
        }
    }
    match asked.stand_in() {
        Some(StandIn::ClassE) => {
            text.push_str(
                "; it is of class E, where --pseudo-ipv4 shows IPv6 clients: only an open session tells \
                 whose it is",
            );
        }
        Some(StandIn::Nat64(client)) => {
            text.push_str(&format!("; it stands for {client} (NAT64): ask for that"))
        }
        None => {}
    }
    text
}
