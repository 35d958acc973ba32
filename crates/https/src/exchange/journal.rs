//! The access log, warnings and counters of requests.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};
use truepeer_http::{HttpVersion, RequestHead};
use truepeer_origin::{ClientInfo, Failure};
use truepeer_policy::BackendAddr;
use truepeer_session::counters::{Counter, Shard};
use truepeer_session::journal::ACCESS;

/// A worker's handle to the journal that all workers share.
pub struct RequestJournal {
    shared: Arc<truepeer_session::Journal>,
    shard: Arc<Shard>,
    access_log: bool,
}

/// A request that was answered or has failed.
pub(crate) struct Served<'a> {
    pub(crate) client_info: &'a ClientInfo,
    /// Where the request belongs.
    pub(crate) origin: BackendAddr,
    pub(crate) request: &'a RequestHead,
    /// 0: no response was sent.
    pub(crate) status: u16,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) began: Instant,
    pub(crate) failure: Option<&'a Failure>,
}

impl RequestJournal {
    /// Counts on `shard`. `access_log`: writes a line for each request.
    #[must_use]
    pub fn new(shared: Arc<truepeer_session::Journal>, shard: Arc<Shard>, access_log: bool) -> Self {
        Self { shared, shard, access_log }
    }

    /// The counters of its listener in this worker.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        Arc::clone(&self.shard)
    }

    /// Counts the bytes of bodies.
    pub(crate) fn add_bytes(&self, client_info: &ClientInfo, up: u64, down: u64) {
        self.shard.add_bytes(up, down);
        if let Some(open) = &client_info.open {
            open.add_bytes(up, down);
        }
    }

    /// Records the end of a request. Its bytes are counted separately.
    pub(crate) fn on_request(&self, served: &Served<'_>) {
        self.shard.count(Counter::Requests);
        if served.failure.is_none() && !self.access_log {
            return;
        }
        let now = Instant::now();
        if let Some(failure) = served.failure {
            self.shard.count(Counter::RequestsFailed);
            self.on_failure(served.client_info, served.origin, failure, now);
        }
        if !self.access_log {
            return;
        }
        let milliseconds = now.saturating_duration_since(served.began).as_secs_f64() * 1000.0;
        info!(
            target: ACCESS,
            client = %served.client_info.route.client,
            sender = %served.client_info.sender,
            method = %Text(served.request.method()),
            host = %Text(served.request.host()),
            path = %Text(served.request.target()),
            protocol = protocol(served.request.version),
            status = served.status,
            bytes_up = served.bytes_up,
            bytes_down = served.bytes_down,
            duration_ms = (milliseconds * 1000.0).round() / 1000.0,
            failure = served.failure.map_or("", |failure| failure.reason().code()),
            "request"
        );
    }

    /// Counts a failure and warns about it, at most once a minute for each reason and address.
    pub(crate) fn on_failure(
        &self,
        client_info: &ClientInfo,
        origin: BackendAddr,
        failure: &Failure,
        now: Instant,
    ) {
        self.shard.refuse(failure.reason());
        // Clients often leave or are slow: such failures are counted without a warning.
        let about: IpAddr = match failure {
            Failure::ClientGone | Failure::ClientStalled(_) | Failure::ClientTooSlow(_) => return,
            _ if failure.is_the_origins() => origin.ip(),
            _ => client_info.sender.ip(),
        };
        self.shared.complain(&self.shard, failure.reason(), about, now, |held_back| {
            let text = self.shared.advised(failure, failure.hint());
            warn!(
                client = %client_info.route.client, origin = %origin, reason = failure.reason().code(),
                status = failure.status(), held_back, "{text}"
            );
        });
    }

    #[cfg(test)]
    pub(crate) fn refusals(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.shared.counters.refusals()
    }

    /// Records that an idle connection was closed because a resource that `about` needs ran short.
    pub(crate) fn on_reclaimed(&self, about: IpAddr, waited: std::time::Duration, now: Instant) {
        self.shared.on_reclaimed(&self.shard, about, waited, now);
    }

    /// Records that a request was repeated on another connection.
    pub(crate) fn on_retry(&self) {
        self.shard.count(Counter::Retried);
    }
}

impl fmt::Debug for RequestJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestJournal").field("access_log", &self.access_log).finish_non_exhaustive()
    }
}

fn protocol(version: HttpVersion) -> &'static str {
    match version {
        HttpVersion::Http10 => "HTTP/1.0",
        HttpVersion::Http11 => "HTTP/1.1",
        HttpVersion::Http2 => "HTTP/2",
    }
}

/// Bytes of a head, with control characters escaped. A target may be UTF-8, whose U+0080 to U+009F a terminal
/// may obey.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| {
            let mut rest = chunk.valid();
            while let Some((at, control)) = rest.char_indices().find(|(_, char)| char.is_control()) {
                write!(f, "{}{}", &rest[..at], control.escape_unicode())?;
                rest = &rest[at + control.len_utf8()..];
            }
            f.write_str(rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn control_characters_do_not_reach_the_log() {
        let target = "/a?q=\u{e4}\u{1f980}\u{9b}2J\u{7f}\u{1b}[x";
        assert_eq!(Text(target.as_bytes()).to_string(), "/a?q=\u{e4}\u{1f980}\\u{9b}2J\\u{7f}\\u{1b}[x");
        assert_eq!(Text(b"/\xff\xc2\x9b").to_string(), "/\\u{9b}");
    }
}
