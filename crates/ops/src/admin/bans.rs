//! `/bans`: who is banned, and orders to ban and to unban.
//!
//! A change is one request with many clients:
//! `POST /bans?client=192.0.2.7&client=…&for=3600&port=443&why=TEXT`, `DELETE /bans?client=192.0.2.7`, or
//! `DELETE /bans` for all. It takes effect for new sessions before the answer, and for open ones within a
//! moment.

use std::num::NonZeroU16;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use truepeer_attach::seconds_now as now;
use truepeer_http::query;
use truepeer_policy::{Ban, BannedPrefix, Bans, Lifted};

use super::Running;

/// The longest reason, in bytes.
const MOST_WHY: usize = 200;

/// A ban, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BanDoc {
    /// Whom it is for: an address or a prefix.
    pub client: String,
    /// The listeners' port; `null`: every port.
    pub port: Option<NonZeroU16>,
    /// When it was set, in seconds since 1970.
    pub since: u64,
    /// When it ends; `null`: when it is lifted.
    pub until: Option<u64>,
    /// The user who set it.
    pub by: Option<u32>,
    /// What that user said.
    pub why: String,
}

impl BanDoc {
    pub(crate) fn of(ban: &Ban) -> Self {
        let Ban { clients, port, since, until, by, why } = ban;
        let (client, why) = (clients.to_string(), why.to_string());
        Self { client, port: *port, since: *since, until: *until, by: *by, why }
    }

    /// The ban. `None`: nobody can be banned so.
    #[must_use]
    pub fn ban(&self) -> Option<Ban> {
        let Self { client, port, since, until, by, why } = self;
        let clients = client.parse().ok()?;
        let (port, since, until, by) = (*port, *since, *until, *by);
        Some(Ban { clients, port, since, until, by, why: Arc::from(why.as_str()) })
    }
}

/// A change of the table.
#[derive(Debug)]
pub enum BanChange {
    /// Set all of these, or none.
    Set(Vec<Ban>),
    /// Lift those of these prefixes, of this port and with this reason; `None`: of all ports, with any.
    Lift(Vec<BannedPrefix>, Option<NonZeroU16>, Option<String>),
    /// Lift all.
    Clear,
}

impl BanChange {
    /// Makes the change. Returns how many bans were set or lifted. One that is there and ends later is not
    /// set.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn make(self, bans: &Bans) -> Result<usize, String> {
        match self {
            Self::Set(set) => bans.set(set).map_err(|error| error.to_string()),
            Self::Lift(clients, port, why) => {
                let which = Lifted { port, why: why.as_deref() };
                Ok(clients.iter().map(|clients| bans.lift(*clients, which)).sum())
            }
            Self::Clear => Ok(bans.clear()),
        }
    }
}

/// The list, in order.
pub(super) fn list(running: &dyn Running) -> Vec<BanDoc> {
    let bans = running.bans().list();
    let mut docs: Vec<(BannedPrefix, BanDoc)> =
        bans.iter().map(|ban| (ban.clients, BanDoc::of(ban))).collect();
    docs.sort_unstable();
    docs.into_iter().map(|(_, doc)| doc).collect()
}

/// What a request asks for. `user`: who sends it.
pub(super) fn asked(method: &str, query: &str, user: Option<u32>) -> Result<BanChange, String> {
    let (mut clients, mut port, mut time, mut why) = (Vec::new(), None, None, None);
    let is_set = method == "POST";
    for (name, value) in query::pairs(query) {
        let wrong = |expected: &str| format!("{name}={value}: expected {expected}");
        match name {
            "client" => clients.push(value.parse::<BannedPrefix>().map_err(|error| error.to_string())?),
            "port" => port = Some(value.parse::<NonZeroU16>().map_err(|_| wrong("a port from 1 to 65535"))?),
            "for" if is_set => {
                let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                time = Some(seconds.ok_or_else(|| wrong("seconds"))?);
            }
            "why" => {
                if value.len() > MOST_WHY || value.chars().any(char::is_control) {
                    return Err(format!("why: expected at most {MOST_WHY} bytes in one line"));
                }
                why = Some(value);
            }
            _ if is_set => return Err(format!("{name}: expected client, for, port or why")),
            _ => return Err(format!("{name}: expected client, port or why")),
        }
    }
    if !is_set {
        let all = clients.is_empty() && port.is_none() && why.is_none();
        return Ok(if all { BanChange::Clear } else { BanChange::Lift(clients, port, why) });
    }
    if clients.is_empty() {
        return Err("expected client=ADDRESS or client=PREFIX".to_owned());
    }
    let (since, why): (u64, Arc<str>) = (now(), why.unwrap_or_default().into());
    // A time that no clock reaches is for ever.
    let until = time.and_then(|time| since.checked_add(time));
    let ban = |clients| Ban { clients, port, since, until, by: user, why: Arc::clone(&why) };
    Ok(BanChange::Set(clients.into_iter().map(ban).collect()))
}

/// What the operator should know about clients of a change: a line each.
pub(super) fn notes(running: &dyn Running, change: &BanChange) -> Vec<String> {
    match change {
        BanChange::Set(bans) => bans.iter().filter_map(|ban| running.note_of_ban(ban.clients)).collect(),
        BanChange::Lift(clients, ..) => {
            let table = running.bans();
            let wider = |lifted: &BannedPrefix| table.wider(*lifted).map(|wider| (*lifted, wider));
            let still = clients.iter().filter_map(wider);
            still.map(|(lifted, wider)| format!("{lifted} is still banned, as part of {wider}")).collect()
        }
        BanChange::Clear => Vec::new(),
    }
}
