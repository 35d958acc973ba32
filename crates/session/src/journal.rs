//! Reports about sessions: one log line at the end of each, complaints, counts.

use std::net::IpAddr;
use std::time::Instant;

use tracing::{debug, error, info, warn};
use truepeer_policy::{Refusal, Route, SenderAddr, SpecialRange};

use crate::complaints::Complaints;
use crate::connect_as::ConnectError;
use crate::counters::{Counter, Counters, Shard};
use crate::refusals::Refusals;

/// The log target of the line that a session leaves at its end, at level `info`.
pub const SESSION: &str = "session";

/// Shared by all workers of all engines.
#[derive(Debug, Default)]
pub struct Journal {
    /// What is counted.
    pub counters: Counters,
    complaints: Complaints,
}

/// A session that has ended, as its log line shows it.
#[derive(Debug)]
pub struct Ended<'a> {
    /// Who opened the downstream connection.
    pub sender: SenderAddr,
    /// The backend and the client; `None`: the connection ended before they were known.
    pub route: Option<&'a Route>,
    /// Where it came in.
    pub listener: std::net::SocketAddr,
    /// Bytes delivered to the backend.
    pub bytes_up: u64,
    /// Bytes delivered to the sender.
    pub bytes_down: u64,
    /// When it was accepted.
    pub began: Instant,
    /// What TLS agreed on downstream, where it was spoken.
    pub tls: Option<&'a str>,
}

/// Why a session ended, as it is counted and logged.
pub trait Ending: std::fmt::Display {
    /// What is counted for it.
    fn counter(&self) -> Counter;
    /// The label of a complaint; `None`: a normal end, without a warning.
    fn complaint(&self) -> Option<&'static str>;
    /// A short name for the session's log line.
    fn name(&self) -> &'static str;
}

/// A UDP flow that has ended, as its log line shows it.
#[derive(Debug)]
pub struct EndedFlow<'a> {
    /// Who sent its last datagram.
    pub sender: SenderAddr,
    /// Where it went and as whom.
    pub route: &'a Route,
    /// Where it came in.
    pub listener: std::net::SocketAddr,
    /// Datagrams delivered to the backend.
    pub datagrams_up: u64,
    /// Datagrams delivered to the sender.
    pub datagrams_down: u64,
    /// Bytes delivered to the backend.
    pub bytes_up: u64,
    /// Bytes delivered to the sender.
    pub bytes_down: u64,
    /// When its first datagram came.
    pub began: Instant,
    /// Why it ended.
    pub close: &'static str,
}

/// A datagram that was refused.
#[derive(Clone, Copy)]
pub struct RefusedDatagram<'a> {
    /// Who sent it.
    pub sender: SenderAddr,
    /// Where it came in.
    pub listener: std::net::SocketAddr,
    /// The reason, as a stable label.
    pub label: &'static str,
    /// The reason in words.
    pub why: &'a dyn std::fmt::Display,
}

impl Journal {
    /// A flow has ended.
    pub fn on_flow_end(&self, ended: &EndedFlow<'_>, now: Instant) {
        info!(
            target: SESSION,
            client = %ended.route.client,
            sender = %ended.sender,
            backend = %ended.route.backend,
            listener = %ended.listener,
            datagrams_up = ended.datagrams_up,
            datagrams_down = ended.datagrams_down,
            bytes_up = ended.bytes_up,
            bytes_down = ended.bytes_down,
            duration_ms = milliseconds(ended.began, now),
            close = ended.close,
            "flow"
        );
    }

    /// A datagram was refused. `refusals` are the worker's own.
    pub fn on_refused_datagram(
        &self,
        refusals: &mut Refusals,
        shard: &Shard,
        datagram: &RefusedDatagram<'_>,
        now: Instant,
    ) {
        shard.count(Counter::DatagramsRefused);
        let RefusedDatagram { sender, listener, label, why } = datagram;
        if let Some(held_back) = refusals.note(&self.complaints, label, sender.ip(), now) {
            warn!(%sender, %listener, reason = label, held_back, "{why}");
        }
    }

    /// A session has ended.
    pub fn on_close(&self, shard: &Shard, ended: &Ended<'_>, reason: &dyn Ending, now: Instant) {
        shard.count(reason.counter());
        if let Some(label) = reason.complaint() {
            self.counters.refuse(label);
            self.complain(label, ended.sender.ip(), now, |held_back| {
                warn!(sender = %ended.sender, listener = %ended.listener, reason = label, held_back, "{reason}");
            });
        }
        let Some(route) = ended.route else {
            debug!(sender = %ended.sender, listener = %ended.listener, close = reason.name(), "no session: {reason}");
            return;
        };
        info!(
            target: SESSION,
            client = %route.client,
            sender = %ended.sender,
            backend = %route.backend,
            listener = %ended.listener,
            bytes_up = ended.bytes_up,
            bytes_down = ended.bytes_down,
            duration_ms = milliseconds(ended.began, now),
            close = reason.name(),
            tls = ended.tls,
            "session"
        );
    }

    /// A connection was refused because of its sender.
    pub fn on_refused_sender(&self, shard: &Shard, sender: SenderAddr, refusal: &Refusal, now: Instant) {
        shard.count(Counter::Refused);
        self.counters.refuse(refusal.reason());
        self.complain(refusal.reason(), sender.ip(), now, |held_back| {
            warn!(%sender, reason = refusal.reason(), held_back, "{refusal}");
        });
    }

    /// The backend sees the client's address with another port, because of `error`.
    pub fn on_port_replaced(&self, shard: &Shard, route: &Route, error: &ConnectError, now: Instant) {
        shard.count(Counter::PortReplaced);
        if *error == ConnectError::PortHeld {
            shard.count(Counter::PortHeld);
            self.complain(error.label(), route.client.ip(), now, |held_back| {
                warn!(
                    client = %route.client, backend = %route.backend, reason = error.label(), held_back,
                    "{error}: the backend sees the client with another port; CAP_NET_ADMIN would let truepeer share a TCP port, or let that program listen on one address"
                );
            });
            return;
        }
        if route.origin != truepeer_policy::Origin::Header {
            return;
        }
        self.complain("client_port_in_use", route.client.ip(), now, |held_back| {
            warn!(
                client = %route.client, backend = %route.backend, held_back,
                "the client's port is in use on this machine: the backend sees another one (--on-conflict)"
            );
        });
    }

    /// A claim was accepted only because of `--allow-claims`.
    pub fn on_special_claim(&self, route: &Route, sender: SenderAddr, range: SpecialRange, now: Instant) {
        self.complain("special_claim", sender.ip(), now, |held_back| {
            warn!(
                client = %route.client, %sender, held_back,
                "the sender claims that the client is {range}, which --allow-claims lets pass: the backend will believe it"
            );
        });
    }

    /// Accepting pauses because the system is out of a resource.
    pub fn on_accept_pause(
        &self,
        shard: &Shard,
        listener: IpAddr,
        lacking: Option<&dyn std::fmt::Display>,
        now: Instant,
    ) {
        shard.count(Counter::AcceptPaused);
        self.complain("accept_pause", listener, now, |held_back| match lacking {
            Some(lacking) => error!(held_back, "accepting pauses for a moment: {lacking}"),
            None => error!(
                held_back,
                "accepting pauses: every descriptor that sessions may use is in use; raise the limit of open files (LimitNOFILE=, ulimit -n)"
            ),
        });
    }

    /// Sessions or descriptors have run short: the connection that was idle longest was closed. `waited`: for how long.
    pub fn on_reclaimed(&self, shard: &Shard, about: IpAddr, waited: std::time::Duration, now: Instant) {
        shard.count(Counter::Reclaimed);
        self.complain("idle_connections_reclaimed", about, now, |held_back| {
            warn!(
                held_back,
                "sessions or descriptors run short: the connection that was idle longest, for {} s, was closed; raise the limit of open files (LimitNOFILE=, ulimit -n)",
                waited.as_secs()
            );
        });
    }

    /// Calls `say`, unless the same complaint about the same address was logged less than a minute ago.
    pub fn complain(&self, label: &'static str, about: IpAddr, now: Instant, say: impl FnOnce(u64)) {
        if let Some(held_back) = self.complaints.may_log(label, about, now) {
            say(held_back);
        }
    }
}

fn milliseconds(began: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
}
