//! What the outside learns about sessions: one log line at the end of each, complaints, counts.

use std::net::IpAddr;
use std::time::Instant;

use rustix::io::Errno;
use tracing::{debug, error, info, warn};
use truepeer_policy::{Refusal, Route, SenderAddr, SpecialRange};

use crate::SESSION;
use crate::complaints::Complaints;
use crate::counters::{Counter, Counters, Shard};
use crate::tcp::close::CloseReason;

/// Shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) counters: Counters,
    complaints: Complaints,
}

/// A session that has ended, as its log line shows it.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) sender: SenderAddr,
    pub(crate) route: Option<&'a Route>,
    pub(crate) listener: std::net::SocketAddr,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) began: Instant,
}

/// A UDP flow that has ended, as its log line shows it.
#[derive(Debug)]
pub(crate) struct EndedFlow<'a> {
    pub(crate) sender: SenderAddr,
    pub(crate) route: &'a Route,
    pub(crate) listener: std::net::SocketAddr,
    pub(crate) datagrams_up: u64,
    pub(crate) datagrams_down: u64,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) began: Instant,
    pub(crate) close: &'static str,
}

impl Journal {
    /// A flow has ended.
    pub(crate) fn on_flow_end(&self, ended: &EndedFlow<'_>, now: Instant) {
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

    /// A datagram goes nowhere.
    pub(crate) fn on_refused_datagram(
        &self,
        shard: &Shard,
        listener: std::net::SocketAddr,
        sender: SenderAddr,
        label: &'static str,
        refused: &dyn std::fmt::Display,
        now: Instant,
    ) {
        shard.count(Counter::DatagramsRefused);
        self.counters.refuse(label);
        self.complain(label, sender.ip(), now, |held_back| {
            warn!(%sender, %listener, reason = label, held_back, "{refused}");
        });
    }

    /// A session has ended.
    pub(crate) fn on_close(&self, shard: &Shard, ended: &Ended<'_>, reason: &CloseReason, now: Instant) {
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
            "session"
        );
    }

    /// A sender that may not connect.
    pub(crate) fn on_refused_sender(
        &self,
        shard: &Shard,
        sender: SenderAddr,
        refusal: &Refusal,
        now: Instant,
    ) {
        shard.count(Counter::Refused);
        self.counters.refuse(refusal.reason());
        self.complain(refusal.reason(), sender.ip(), now, |held_back| {
            warn!(%sender, reason = refusal.reason(), held_back, "{refusal}");
        });
    }

    /// The client's port was in use: the backend sees its address with another port.
    pub(crate) fn on_port_replaced(&self, shard: &Shard, route: &Route, now: Instant) {
        shard.count(Counter::PortReplaced);
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

    /// A claim that only `--allow-claims` lets pass.
    pub(crate) fn on_special_claim(
        &self,
        route: &Route,
        sender: SenderAddr,
        range: SpecialRange,
        now: Instant,
    ) {
        self.complain("special_claim", sender.ip(), now, |held_back| {
            warn!(
                client = %route.client, %sender, held_back,
                "the sender claims that the client is {range}, which --allow-claims lets pass: the backend will believe it"
            );
        });
    }

    /// Accepting pauses, since the system is out of something.
    pub(crate) fn on_accept_pause(
        &self,
        shard: &Shard,
        listener: IpAddr,
        errno: Option<Errno>,
        now: Instant,
    ) {
        shard.count(Counter::AcceptPaused);
        self.complain("accept_pause", listener, now, |held_back| match errno {
            Some(errno) => error!(held_back, "accepting pauses for a moment: {errno}"),
            None => error!(
                held_back,
                "accepting pauses: every descriptor that sessions may use is in use; raise the limit of open files (LimitNOFILE=, ulimit -n)"
            ),
        });
    }

    fn complain(&self, label: &'static str, about: IpAddr, now: Instant, say: impl FnOnce(u64)) {
        if let Some(held_back) = self.complaints.may_log(label, about, now) {
            say(held_back);
        }
    }
}

fn milliseconds(began: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
}
