//! The programs' counters by name: the order is that of `c/counters.h`.

/// What a counter tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// How many connections took this course.
    Course,
    /// Connections that were ended, or never let in, for this reason.
    Refusal,
    /// Packets held back or passed on, as is usual.
    Packets,
    /// Something that should not happen.
    Failure,
}

/// One counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Stable, for machines.
    pub name: &'static str,
    /// What it tells.
    pub kind: Kind,
    /// For people.
    pub meaning: &'static str,
}

const fn counter(kind: Kind, name: &'static str, meaning: &'static str) -> Counter {
    Counter { name, kind, meaning }
}

/// All counters, in the programs' order.
#[rustfmt::skip]
pub const COUNTERS: [Counter; 27] = [
    counter(Kind::Course, "connections", "connections from allowed senders"),
    counter(Kind::Course, "header_v1", "with a v1 header"),
    counter(Kind::Course, "header_v2", "with a v2 header"),
    counter(Kind::Course, "header_absent", "without a header, which was optional"),
    counter(Kind::Course, "guessed_right", "the header's length was guessed: no packet after it is altered"),
    counter(Kind::Course, "translated", "sequence numbers are translated to the end"),
    counter(Kind::Packets, "header_split", "parts of headers acknowledged"),
    counter(Kind::Course, "named_itself", "LOCAL or UNKNOWN: the sender is the client"),
    counter(Kind::Course, "client_not_showable", "IPv6 client on an IPv4 socket: the sender's address stays"),
    counter(Kind::Course, "mptcp_declined", "went on as plain TCP"),
    counter(Kind::Course, "fastopen_declined", "went on without TCP Fast Open"),
    counter(Kind::Packets, "acks_held", "ACKs held back until the header was complete"),
    counter(Kind::Packets, "early_segments", "segments that overtook the header; the sender sends them again"),
    counter(Kind::Packets, "no_listener", "connections to which nobody listens here: left alone"),
    counter(Kind::Packets, "not_a_sender", "connections from others than the allowed senders: left alone"),
    counter(Kind::Refusal, "refused_no_header", "no PROXY header"),
    counter(Kind::Refusal, "refused_malformed", "malformed header"),
    counter(Kind::Refusal, "refused_too_long", "header too long"),
    counter(Kind::Refusal, "refused_timeout", "no complete header in time"),
    counter(Kind::Refusal, "refused_claim", "claims a loopback, multicast or reserved address"),
    counter(Kind::Refusal, "refused_denied", "client on the deny-list"),
    counter(Kind::Refusal, "refused_signed", "TCP-MD5 or TCP-AO signs what would be translated"),
    counter(Kind::Refusal, "refused_split_under_syn_cookies", "split header while SYN cookies are in use"),
    counter(Kind::Refusal, "refused_redirected", "the port is redirected (DNAT) behind us"),
    counter(Kind::Refusal, "refused_stray", "half-open when we were attached, or forgotten in a flood"),
    counter(Kind::Refusal, "refused_full", "too many flows"),
    counter(Kind::Failure, "failed", "the kernel failed to do something; the sender sends again"),
];
