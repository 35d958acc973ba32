//! Reports about sessions: a log line at the end of each, complaints and counts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};
use truepeer_policy::{Origin, Refusal, Route, SenderAddr, SpecialRange};
use truepeer_proto::Version;

use crate::complaints::{Complaints, RecentComplaint, Subject};
use crate::connect_as::ConnectError;
use crate::counters::{Counter, Counters, Shard};
use crate::hint::{Advise, Advised, Hint};
use crate::histogram::Timing;
use crate::reason::Reason;
use crate::refusals::Refusals;
use crate::tags::Tags;

/// The log target of a session's line, at level `info`.
pub const SESSION: &str = "session";

/// The log target of a request's line, at level `info`.
pub const ACCESS: &str = "access";

/// Writes the line of an ended session or flow. All have the same fields, but for the counts before the bytes
/// and what follows the duration.
macro_rules! log_end {
    ($line:literal, $ended:ident, $route:expr, $now:ident, [$($counts:tt)*], $($rest:tt)*) => {
        info!(
            target: SESSION,
            client = %$route.client,
            sender = %$ended.sender,
            backend = %$route.backend,
            listener = %$ended.listener,
            $($counts)*
            bytes_up = $ended.bytes_up,
            bytes_down = $ended.bytes_down,
            duration_ms = milliseconds($ended.began, $now),
            $($rest)*
            unique_id = tag($ended.tags, "unique_id"),
            aws_vpc_endpoint = tag($ended.tags, "aws_vpc_endpoint"),
            gcp_psc_connection = tag($ended.tags, "gcp_psc_connection"),
            azure_private_link = tag($ended.tags, "azure_private_link"),
            alibaba_vpc = tag($ended.tags, "alibaba_vpc"),
            alibaba_endpoint = tag($ended.tags, "alibaba_endpoint"),
            alibaba_service = tag($ended.tags, "alibaba_service"),
            $line
        )
    };
}

/// The log and counters that all workers of all engines share.
#[derive(Debug, Default)]
pub struct Journal {
    /// The counters.
    pub counters: Counters,
    complaints: Complaints,
    advise: Option<Advise>,
}

/// An ended session, as logged.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The sender.
    pub sender: SenderAddr,
    /// The destination and the client; `None`: the connection ended before they were known.
    pub route: Option<&'a Route>,
    /// The listener's address.
    pub listener: SocketAddr,
    /// Bytes delivered to the backend.
    pub bytes_up: u64,
    /// Bytes delivered to the sender.
    pub bytes_down: u64,
    /// When it was accepted.
    pub began: Instant,
    /// The results of the downstream TLS handshake, if any.
    pub tls: Option<&'a str>,
    /// What the header said besides addresses.
    pub tags: Option<&'a Tags>,
}

/// Why a session ended, as counted and logged.
pub trait Ending: fmt::Display {
    /// The counter to increment.
    fn counter(&self) -> Counter;
    /// The reason of a complaint; `None`: a normal end without a warning.
    fn complaint(&self) -> Option<Reason>;
    /// The setting that has to do with it.
    fn hint(&self) -> Option<Hint>;
    /// A short name for the session's log line.
    fn name(&self) -> &'static str;
}

/// An ended UDP flow, as logged.
#[derive(Debug)]
pub struct EndedFlow<'a> {
    /// The sender of its last datagram.
    pub sender: SenderAddr,
    /// The destination and the client.
    pub route: &'a Route,
    /// The listener's address.
    pub listener: SocketAddr,
    /// Datagrams delivered to the backend.
    pub datagrams_up: u64,
    /// Datagrams delivered to the sender.
    pub datagrams_down: u64,
    /// Bytes delivered to the backend.
    pub bytes_up: u64,
    /// Bytes delivered to the sender.
    pub bytes_down: u64,
    /// When its first datagram arrived.
    pub began: Instant,
    /// Why it ended.
    pub close: &'static str,
    /// What the header of the first datagram said besides addresses.
    pub tags: Option<&'a Tags>,
}

/// A refused datagram.
#[derive(Clone, Copy)]
pub struct RefusedDatagram<'a> {
    /// Its sender.
    pub sender: SenderAddr,
    /// The listener's address.
    pub listener: SocketAddr,
    /// The reason.
    pub reason: Reason,
    /// The reason in words, with what this datagram has to do with it.
    pub why: &'a dyn fmt::Display,
    /// The setting that has to do with it.
    pub hint: Option<Hint>,
}

impl Journal {
    /// A journal that adds to each complaint what `advise` makes of its hint.
    #[must_use]
    pub fn with_advice(advise: Advise) -> Self {
        Self { advise: Some(advise), ..Self::default() }
    }

    /// `text`, and the advice for `hint`.
    pub fn advised<'a>(&self, text: &'a dyn fmt::Display, hint: Option<Hint>) -> Advised<'a> {
        Advised { text, advice: hint.and_then(|hint| self.advise?(&hint)) }
    }

    /// Records how a connection or flow begins: with a header of `version`, or without one, and how long it
    /// took to know.
    pub fn on_route(&self, shard: &Shard, route: &Route, version: Option<Version>, waited: Duration) {
        shard.count(match (route.origin, version) {
            (Origin::Header, Some(Version::V1)) => Counter::HeaderV1,
            (Origin::Header, _) => Counter::HeaderV2,
            (Origin::Local, _) => Counter::HeaderLocal,
            (Origin::Unknown, _) => Counter::HeaderUnknown,
            (Origin::NoHeader, _) => Counter::HeaderNone,
        });
        shard.observe(Timing::HeaderWait, waited);
    }

    /// Records that a session's backend has answered after `took`.
    pub fn on_connected(&self, shard: &Shard, took: Duration) {
        shard.count(Counter::Relayed);
        shard.observe(Timing::BackendConnect, took);
    }

    /// Records the end of a flow.
    pub fn on_flow_end(&self, shard: &Shard, ended: &EndedFlow<'_>, now: Instant) {
        shard.observe(Timing::SessionLength, now.saturating_duration_since(ended.began));
        let counts = (ended.datagrams_up, ended.datagrams_down);
        log_end!(
            "flow",
            ended,
            ended.route,
            now,
            [datagrams_up = counts.0, datagrams_down = counts.1,],
            close = ended.close,
        );
    }

    /// Records a refused datagram. `refusals` are the worker's own.
    pub fn on_refused_datagram(
        &self,
        refusals: &mut Refusals,
        shard: &Shard,
        datagram: &RefusedDatagram<'_>,
        now: Instant,
    ) {
        shard.count(Counter::DatagramsRefused);
        let RefusedDatagram { sender, listener, reason, why, hint } = *datagram;
        shard.refuse(reason);
        let subject = Subject { reason, listener: shard.listener(), about: Some(sender.ip()) };
        if let Some(held_back) = refusals.note(&self.complaints, subject, now) {
            let (why, held_back) = (self.advised(why, hint), some(held_back));
            warn!(%sender, %listener, reason = reason.code(), held_back, "{why}");
        }
    }

    /// Records the end of a session.
    pub fn on_close(&self, shard: &Shard, ended: &Ended<'_>, reason: &dyn Ending, now: Instant) {
        shard.count(reason.counter());
        if let Some(why) = reason.complaint() {
            shard.refuse(why);
            self.complain(shard, why, ended.sender.ip(), now, |held_back| {
                let reason = self.advised(&reason, reason.hint());
                let (sender, listener) = (ended.sender, ended.listener);
                warn!(%sender, %listener, reason = why.code(), held_back, "{reason}");
            });
        }
        let Some(route) = ended.route else {
            let (sender, listener) = (ended.sender, ended.listener);
            debug!(%sender, %listener, close = reason.name(), "no session: {reason}");
            return;
        };
        shard.observe(Timing::SessionLength, now.saturating_duration_since(ended.began));
        log_end!("session", ended, route, now, [], close = reason.name(), tls = ended.tls,);
    }

    /// Records a connection to `listener` that was refused because of its sender.
    pub fn on_refused_sender(
        &self,
        shard: &Shard,
        (sender, listener): (SenderAddr, SocketAddr),
        refusal: &Refusal,
        now: Instant,
    ) {
        let reason = Reason::from(refusal);
        shard.count(Counter::Refused);
        shard.refuse(reason);
        self.complain(shard, reason, sender.ip(), now, |held_back| {
            let text = self.advised(refusal, Some(Hint::Refusal(*refusal)));
            warn!(%sender, %listener, reason = reason.code(), held_back, "{text}");
        });
    }

    /// Records that the backend sees the client's address with another port, because of `error`.
    pub fn on_port_replaced(&self, shard: &Shard, route: &Route, error: &ConnectError, now: Instant) {
        shard.count(Counter::PortReplaced);
        if *error == ConnectError::PortHeld {
            shard.count(Counter::PortHeld);
            self.complain(shard, error.reason(), route.client.ip(), now, |held_back| {
                warn!(
                    client = %route.client, backend = %route.backend, reason = error.reason().code(),
                    held_back,
                    "{error}: the backend sees the client with another port; give truepeer CAP_NET_ADMIN to \
                    share a TCP port, or make that program listen on one address only"
                );
            });
            return;
        }
        if route.origin != Origin::Header {
            return;
        }
        self.complain(shard, Reason::ClientPortInUse, route.client.ip(), now, |held_back| {
            let text = "the client's port is in use on this machine: the backend sees another one";
            let text = self.advised(&text, Some(Hint::PortReplaced));
            warn!(client = %route.client, backend = %route.backend, held_back, "{text}");
        });
    }

    /// Records a claim that only a setting permits.
    pub fn on_special_claim(
        &self,
        shard: &Shard,
        route: &Route,
        (sender, range): (SenderAddr, SpecialRange),
        now: Instant,
    ) {
        self.complain(shard, Reason::SpecialClaim, sender.ip(), now, |held_back| {
            let text =
                format_args!("the sender claims that the client is {range}: the backend will believe it");
            let text = self.advised(&text, Some(Hint::SpecialClaimAllowed));
            warn!(client = %route.client, %sender, held_back, "{text}");
        });
    }

    /// Records a pause in accepting because a resource has run out.
    pub fn on_accept_pause(
        &self,
        shard: &Shard,
        listener: IpAddr,
        lacking: Option<&dyn fmt::Display>,
        now: Instant,
    ) {
        shard.count(Counter::AcceptPaused);
        self.complain(shard, Reason::AcceptPause, listener, now, |held_back| match lacking {
            Some(lacking) => error!(held_back, "accepting paused for a moment: {lacking}"),
            None => error!(
                held_back,
                "accepting paused: all descriptors for sessions are in use; raise the limit of open files \
                (LimitNOFILE=, ulimit -n)"
            ),
        });
    }

    /// Records that sessions or descriptors ran short and the connection that was idle longest (`waited`) was
    /// closed.
    pub fn on_reclaimed(&self, shard: &Shard, about: IpAddr, waited: Duration, now: Instant) {
        shard.count(Counter::Reclaimed);
        self.complain(shard, Reason::IdleReclaimed, about, now, |held_back| {
            warn!(
                held_back,
                "sessions or descriptors ran short: closed the connection that had been idle longest ({} s); \
                raise the limit of open files (LimitNOFILE=, ulimit -n)",
                waited.as_secs()
            );
        });
    }

    /// The complaints that were logged within this time, the latest first.
    pub fn recent_complaints(&self, within: Duration, now: Instant) -> Vec<RecentComplaint> {
        self.complaints.recent(within, now)
    }

    /// Calls `say` unless the same complaint about the same address at the same listener was logged less than
    /// a minute ago.
    pub fn complain(
        &self,
        shard: &Shard,
        reason: Reason,
        about: IpAddr,
        now: Instant,
        say: impl FnOnce(Option<u64>),
    ) {
        let subject = Subject { reason, listener: shard.listener(), about: Some(about) };
        if let Some(held_back) = self.complaints.may_log(subject, now) {
            say(some(held_back));
        }
    }
}

/// A line that stands for itself alone has no field for it.
fn some(held_back: u64) -> Option<u64> {
    (held_back > 0).then_some(held_back)
}

fn tag<'a>(tags: Option<&'a Tags>, name: &str) -> Option<&'a str> {
    tags?.value(name)
}

fn milliseconds(began: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
