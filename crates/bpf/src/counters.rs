//! The programs' counters by name: the order is that of `c/attach/counters.h`.

/// The kind of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The number of connections or datagrams that took this path.
    Course,
    /// Connections that were refused or ended, or datagrams that were dropped, for this reason.
    Refusal,
    /// Packets held back or passed on, as usual.
    Packets,
    /// Errors that should not happen.
    Failure,
}

/// The ports for which a counter is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// TCP only.
    Tcp,
    /// UDP only.
    Udp,
    /// Connections and datagrams.
    Both,
}

/// One counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortCounter {
    /// A stable name, for machines.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// A description, for people.
    pub meaning: &'static str,
    /// The ports for which it is used.
    pub of: Of,
}

const fn counter(of: Of, kind: Kind, name: &'static str, meaning: &'static str) -> PortCounter {
    PortCounter { name, kind, meaning, of }
}

/// All counters, in the programs' order.
#[rustfmt::skip]
pub const COUNTERS: [PortCounter; 49] = [
    counter(Of::Tcp, Kind::Course, "connections", "connections from allowed senders"),
    counter(Of::Tcp, Kind::Course, "header_v1", "with a v1 header"),
    counter(Of::Both, Kind::Course, "header_v2", "with a v2 header"),
    counter(Of::Both, Kind::Course, "header_absent", "without a header, which was optional"),
    counter(Of::Tcp, Kind::Course, "guessed_right", "the header's length was guessed: no packet after it is altered"),
    counter(Of::Tcp, Kind::Course, "translated", "sequence numbers are translated to the end"),
    counter(Of::Tcp, Kind::Packets, "header_split", "parts of headers acknowledged"),
    counter(Of::Both, Kind::Course, "named_itself", "LOCAL or UNKNOWN: the sender is the client"),
    counter(Of::Both, Kind::Course, "client_not_showable", "IPv6 client on an IPv4 socket: the sender's address stays"),
    counter(Of::Tcp, Kind::Course, "mptcp_declined", "continued as plain TCP"),
    counter(Of::Tcp, Kind::Course, "fastopen_declined", "went on without TCP Fast Open"),
    counter(Of::Tcp, Kind::Packets, "acks_held", "ACKs held back until the header was complete"),
    counter(Of::Tcp, Kind::Packets, "early_segments", "segments that overtook the header, or that could not be acknowledged; the sender sends them again"),
    counter(Of::Both, Kind::Packets, "no_listener", "for ports without a listener here: passed unchanged"),
    counter(Of::Both, Kind::Packets, "not_a_sender", "not from an allowed sender: passed unchanged"),
    counter(Of::Both, Kind::Refusal, "refused_no_header", "no PROXY header"),
    counter(Of::Both, Kind::Refusal, "refused_malformed", "malformed header"),
    counter(Of::Both, Kind::Refusal, "refused_too_long", "header too long"),
    counter(Of::Tcp, Kind::Refusal, "refused_timeout", "no complete header in time"),
    counter(Of::Both, Kind::Refusal, "refused_claim", "claims a loopback, multicast or reserved address"),
    counter(Of::Both, Kind::Refusal, "refused_denied", "client on the deny-list"),
    counter(Of::Tcp, Kind::Refusal, "refused_signed", "TCP-MD5 or TCP-AO signs what would be translated"),
    counter(Of::Tcp, Kind::Refusal, "refused_split_under_syn_cookies", "split header while SYN cookies are in use"),
    counter(Of::Tcp, Kind::Refusal, "refused_redirected", "no half-open connection waits for the header: the port is redirected (DNAT), or the kernel gave it up"),
    counter(Of::Tcp, Kind::Refusal, "refused_stray", "half-open during the attachment, or forgotten in a flood"),
    counter(Of::Both, Kind::Refusal, "refused_full", "too many flows"),
    counter(Of::Both, Kind::Failure, "failed", "a kernel function failed: dropped"),
    counter(Of::Udp, Kind::Course, "datagrams", "datagrams from senders, delivered"),
    counter(Of::Udp, Kind::Course, "header_spp", "with an SPP header"),
    counter(Of::Udp, Kind::Course, "answers", "answers"),
    counter(Of::Udp, Kind::Refusal, "answers_too_long", "answers without room for their SPP header"),
    counter(Of::Udp, Kind::Refusal, "answers_aggregated", "SPP: answers sent in one call for many (UDP_SEGMENT)"),
    counter(Of::Udp, Kind::Course, "split_up", "aggregated datagrams (GRO, UDP_SEGMENT) split into single ones"),
    counter(Of::Both, Kind::Refusal, "refused_fragment", "fragments, and packets with IPv6 extension headers"),
    counter(Of::Udp, Kind::Refusal, "refused_aggregated", "aggregated datagrams (GRO, UDP_SEGMENT) that can't be split: ethtool -K DEV gro off"),
    counter(Of::Both, Kind::Refusal, "refused_family", "the client's address family differs from the socket's, or from the datagram's (SPP)"),
    counter(Of::Both, Kind::Refusal, "refused_unjudged", "came by a path without checks: a device that is not attached, DNAT onto the port, a tunnel"),
    counter(Of::Both, Kind::Refusal, "refused_damaged", "wrong checksum or length"),
    counter(Of::Udp, Kind::Refusal, "answers_refused", "answers while 65,535 others were on their way"),
    counter(Of::Tcp, Kind::Packets, "not_taken", "handshake segments that the kernel would refuse: wrong numbers or flags, old timestamps"),
    counter(Of::Tcp, Kind::Refusal, "refused_detaching", "new connections while a detach that refuses them waits, and handshakes that it has ended"),
    counter(Of::Tcp, Kind::Course, "begun_again", "the kernel had given the handshake up while it waited for its header"),
    counter(Of::Both, Kind::Packets, "header_unlisted", "a header, not from an allowed sender: passed unchanged, the server reads the header as data"),
    counter(Of::Tcp, Kind::Course, "outside_cgroup", "the listener is not of the named cgroup or unit: the sender's address stays"),
    counter(Of::Tcp, Kind::Refusal, "refused_elsewhere", "the listener is not of the container's cgroup that is attached, or that was made anew: attach again"),
    counter(Of::Tcp, Kind::Refusal, "refused_after_wait", "a header after a silence, on a connection that was served without one; with AWS NLB, set header_placement to on_first_ack"),
    counter(Of::Udp, Kind::Refusal, "refused_no_flow", "no header, and no flow: its header was lost or refused, or its flow forgotten"),
    counter(Of::Both, Kind::Refusal, "refused_banned", "client banned: see truepeer bans"),
    counter(Of::Both, Kind::Refusal, "refused_unproved", "a header without its sender's secret"),
];
