//! `/sessions`: the open sessions as JSON, made page by page while the response is sent.

use std::cell::RefMut;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use truepeer_session::registry::PageStart;
use truepeer_session::{ListenerId, OpenSession, SessionFilter, SessionId, SessionList};

use super::Running;

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionDoc {
    pub(crate) id: String,
    /// The listener's address.
    pub(crate) listener: String,
    /// `tcp`, `udp` or `tls`.
    pub(crate) kind: String,
    /// `header`, `handshake`, `connecting`, `relaying` or `idle`.
    pub(crate) stage: String,
    /// `null`: not known yet.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) sender: SocketAddr,
    pub(crate) backend: Option<SocketAddr>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Bytes a second since the listing before, or since its start.
    pub(crate) rate_up: u64,
    pub(crate) rate_down: u64,
    pub(crate) age_seconds: f64,
    /// Unique id and endpoints of clouds, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

/// A listing that is under way.
pub(super) struct Listing {
    engines: Vec<Arc<dyn SessionList>>,
    listeners: HashMap<ListenerId, String>,
    filter: SessionFilter,
    /// The engine and the place where the next page begins.
    next: Option<(usize, Option<PageStart>)>,
    /// How many sessions may still be written.
    left: usize,
    written: Written,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Nothing,
    Start,
    Sessions,
    Everything,
}

impl Listing {
    pub(super) fn new(running: &dyn Running, filter: SessionFilter, limit: usize) -> Self {
        let engines = running.sessions();
        let name = |view: super::ListenerView| (view.id, view.name());
        Self {
            next: (!engines.is_empty()).then_some((0, None)),
            engines,
            listeners: running.listeners().into_iter().map(name).collect(),
            filter,
            left: limit,
            written: Written::Nothing,
        }
    }

    /// The next piece of the array, which may be empty; `None` after the last.
    pub(super) fn next(&mut self, mut rates: RefMut<'_, Rates>) -> Option<Vec<u8>> {
        let mut out = match self.written {
            Written::Nothing => b"[".to_vec(),
            Written::Start | Written::Sessions => Vec::new(),
            Written::Everything => return None,
        };
        if self.written == Written::Nothing {
            self.written = Written::Start;
        }
        if let Some((engine, start)) = self.next.filter(|_| self.left > 0) {
            let page = self.engines[engine].page(&self.filter, start);
            self.write(&page.sessions, &mut rates, &mut out);
            self.next = match page.next {
                Some(start) => Some((engine, Some(start))),
                None => Some((engine + 1, None)).filter(|(next, _)| *next < self.engines.len()),
            };
        } else {
            out.extend_from_slice(b"]\n");
            self.written = Written::Everything;
        }
        Some(out)
    }

    fn write(&mut self, sessions: &[OpenSession], rates: &mut Rates, out: &mut Vec<u8>) {
        let now = Instant::now();
        for session in sessions.iter().take(self.left) {
            let is_first = std::mem::replace(&mut self.written, Written::Sessions) == Written::Start;
            out.extend_from_slice(if is_first { b"\n" } else { b",\n" });
            // Writing to a Vec can't fail, and a SessionDoc has no keys that JSON lacks.
            let _ = serde_json::to_writer(&mut *out, &self.doc(session, rates.of(session, now)));
        }
        self.left -= sessions.len().min(self.left);
    }

    fn doc(&self, session: &OpenSession, (rate_up, rate_down): (u64, u64)) -> SessionDoc {
        let tags = session.tags.iter().flat_map(|tags| tags.iter());
        SessionDoc {
            id: session.id.to_string(),
            listener: self.listeners.get(&session.listener).cloned().unwrap_or_default(),
            kind: session.id.table.name().to_owned(),
            stage: session.stage.name().to_owned(),
            client: session.client.map(|client| client.get()),
            sender: session.sender.get(),
            backend: session.backend.map(|backend| backend.get()),
            bytes_up: session.bytes_up,
            bytes_down: session.bytes_down,
            rate_up,
            rate_down,
            age_seconds: (session.age.as_secs_f64() * 1000.0).round() / 1000.0,
            tags: tags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }
}

/// The sessions whose bytes are remembered, for their rates.
const MOST_SAMPLES: usize = 16_384;
/// Samples this old are of sessions that have ended.
const OLD: Duration = Duration::from_secs(60);
/// A rate over a shorter time would say little.
const INTERVAL: Duration = Duration::from_millis(500);

/// The bytes of sessions at the listing before.
#[derive(Debug, Default)]
pub(super) struct Rates(HashMap<SessionId, Sample>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    bytes: (u64, u64),
    rates: (u64, u64),
}

impl Rates {
    fn of(&mut self, session: &OpenSession, now: Instant) -> (u64, u64) {
        let bytes = (session.bytes_up, session.bytes_down);
        let each = |time: Duration, before: (u64, u64)| {
            (
                per_second(bytes.0.saturating_sub(before.0), time),
                per_second(bytes.1.saturating_sub(before.1), time),
            )
        };
        if let Some(sample) = self.0.get_mut(&session.id) {
            let time = now.saturating_duration_since(sample.at);
            if time >= INTERVAL {
                *sample = Sample { at: now, bytes, rates: each(time, sample.bytes) };
            }
            return sample.rates;
        }
        let rates = each(session.age, (0, 0));
        if self.0.len() >= MOST_SAMPLES {
            self.0.retain(|_, sample| now.saturating_duration_since(sample.at) < OLD);
        }
        if self.0.len() < MOST_SAMPLES {
            self.0.insert(session.id, Sample { at: now, bytes, rates });
        }
        rates
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and as casts saturate"
)]
#[expect(clippy::cast_precision_loss, reason = "a rate is rounded")]
fn per_second(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(0.001)).round() as u64
}
