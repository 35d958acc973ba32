//! The table of reasons: why something was refused, failed or is worth a warning. Each reason has a code for
//! counters, logs and machines, and for people what it means and what to do.
//!
//! The enums of errors name their reason in a `match`, and counters take nothing else, so no code is without
//! its words.

use truepeer_policy::{HeaderError, Refusal};
use truepeer_proto::DecodeErrorKind;

macro_rules! reasons {
    ($($reason:ident = $code:literal, $meaning:literal, $advice:literal;)+) => {
        /// Why something was refused, failed or is worth a warning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $(#[doc = $meaning] $reason,)+ }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$(Self::$reason),+].len()] = [$(Self::$reason),+];

            /// The stable code, for counters, logs and machines.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$reason => $code,)+ }
            }

            /// What it means, for people.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$reason => $meaning,)+ }
            }

            /// What to do about it.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$reason => $advice,)+ }
            }
        }
    };
}

reasons! {
    // The policy (`truepeer_policy::Refusal`).
    SenderNotAllowed = "sender_not_allowed", "the sender is not on the allow-list",
        "if it is your load balancer, add it to `allow`";
    HeaderMissing = "header_missing", "no PROXY header, which this sender must send",
        "turn the PROXY protocol on at the sender";
    HeaderForbidden = "header_forbidden", "a PROXY header, which this sender must not send",
        "turn the PROXY protocol off at the sender, or set its `header` rule";
    HeaderUnproved = "header_unproved", "a header without the secret that its sender must send",
        "compare the sender's secret with that of `require-tlv`";
    ClaimRefused = "claim_refused", "the header names an address that no client has",
        "mend the sender; `allow-claims` lists addresses to believe all the same";
    ClientDenied = "client_denied", "the client is on the deny-list",
        "nothing to do; to serve it, take it off `deny-clients`";
    ClientBanned = "client_banned", "the client is banned",
        "nothing to do; truepeer bans lists who is banned and why, truepeer unban lifts it";
    ClientIsBackend = "client_is_backend", "the client has the backend's own address and port",
        "let the sender name the real client, or give the backend another port";
    ClientLinkLocal = "client_link_local", "the client has a link-local address",
        "let the sender connect from a global address";
    NoBackend = "no_backend", "no backend for clients of this family",
        "set `ipv4` or `ipv6` to the backend that is to serve them";
    BackendIsIpv6 = "backend_is_ipv6", "an IPv4 client for an IPv6 backend",
        "set an IPv4 backend (`ipv4`)";
    BackendIsIpv4 = "backend_is_ipv4", "an IPv6 client for an IPv4 backend",
        "set an IPv6 backend (`ipv6`)";
    DestinationNotAllowed = "destination_not_allowed", "the header leads where it may not",
        "mend the sender, or allow this destination";
    DestinationUnusable = "destination_unusable", "the header leads to no host's address and port",
        "mend the sender: its header must name the backend as the destination";
    DestinationLoops = "destination_loops", "the session leads back to truepeer itself",
        "give the backend another address or port than the listener";

    // Headers (`truepeer_policy::HeaderError`, `truepeer_proto::DecodeErrorKind`).
    HeaderCutShort = "header_cut_short", "the sender closed the connection within its header",
        "look for an error in the sender's log";
    HeaderTimeout = "header_timeout", "no whole PROXY header in time",
        "turn the PROXY protocol on at the sender; AWS NLB: header_placement on_first_ack";
    HeaderAfterWait = "header_after_wait", "a header after the connection was served without one",
        "AWS NLB: set header_placement to on_first_ack";
    NotProxy = "not_proxy", "something else than a PROXY header",
        "turn the PROXY protocol on at the sender";
    VersionNotAccepted = "version_not_accepted", "a header of a version that is not accepted here",
        "set the sender to the other version, or accept this one";
    Truncated = "truncated", "the datagram ends within its header",
        "let the sender put the whole header into one datagram";
    V1Protocol = "v1_protocol", "version 1: the protocol is not TCP4, TCP6 or UNKNOWN",
        "mend the sender: it must be in upper case";
    V1Space = "v1_space", "version 1: wrong number of fields, or not one space between them",
        "mend the sender";
    V1Address = "v1_address", "version 1: an address is not one of the announced family",
        "mend the sender: no leading zeros, no zone, no name";
    V1Port = "v1_port", "version 1: a port is not a number from 0 to 65535",
        "mend the sender: decimal, without leading zeros";
    V1LineEnd = "v1_line_end", "version 1: a CR or an LF alone",
        "mend the sender: the line must end with CR and LF";
    V1TooLong = "v1_too_long", "version 1: the line has no end within 107 bytes",
        "mend the sender: the line must end with CR and LF";
    V2Version = "v2_version", "version 2: the version is not 2",
        "mend the sender";
    V2Command = "v2_command", "version 2: the command is neither LOCAL nor PROXY",
        "mend the sender";
    V2Family = "v2_family", "version 2: an unknown address family",
        "mend the sender";
    V2Transport = "v2_transport", "version 2: an unknown transport protocol",
        "mend the sender";
    V2AddressTooShort = "v2_address_too_short", "version 2: the length has no room for the addresses",
        "mend the sender";
    V2TooLong = "v2_too_long", "version 2: the header is longer than allowed here",
        "let the sender send fewer TLVs, or raise `header-max`";
    TlvOverrun = "tlv_overrun", "version 2: a TLV reaches beyond the header",
        "mend the sender";
    Crc32cLength = "crc32c_length", "version 2: a CRC32C that is not 4 bytes long",
        "mend the sender";
    Crc32cTwice = "crc32c_twice", "version 2: a second CRC32C",
        "mend the sender";
    Crc32cMismatch = "crc32c_mismatch", "version 2: the CRC32C does not match the header",
        "look for what alters the header on its way, or mend the sender";
    UniqueIdTooLong = "unique_id_too_long", "version 2: a unique id of more than 128 bytes",
        "mend the sender";
    SslTooShort = "ssl_too_short", "version 2: an SSL TLV of less than 5 bytes",
        "mend the sender";
    SslOverrun = "ssl_overrun", "version 2: a part of the SSL TLV reaches beyond it",
        "mend the sender";
    SppMagic = "spp_magic", "no header of Simple Proxy Protocol",
        "turn it on at the sender, or set `udp-dialect` to what the sender sends";

    // Sessions and flows.
    ConnectFailed = "connect_failed", "the backend could not be connected to",
        "see that the backend runs and listens there; truepeer doctor tries it";
    ConnectTimeout = "connect_timeout", "the backend did not answer in time",
        "see that it is up and that its replies come back here: truepeer doctor";
    PortHeld = "client_port_held", "a program on this host listens on the client's port on every address",
        "let it listen on one address, or give truepeer CAP_NET_ADMIN";
    WithItself = "connected_with_itself", "nothing listens on the backend's port",
        "start the backend";
    HeaderBudget = "header_budget", "too many headers arrive in pieces",
        "look for a sender that is too slow, or for an attack by an allowed sender";
    TooManyOfClient = "too_many_of_client", "the client has as many connections as one may have",
        "raise `max-per-client`, or except addresses that many clients share";
    Unwatchable = "unwatchable", "the limit of epoll watches is reached",
        "raise fs.epoll.max_user_watches";
    Unencodable = "unencodable", "no header can carry the client's address to the backend",
        "send the backend version 2 (`send-proxy`)";
    Panicked = "panicked", "a defect in truepeer",
        "please report the panic in the log";
    FlowWithoutHeader = "flow_without_header", "a UDP flow began without a header",
        "turn the PROXY protocol on at the sender";
    FlowForgotten = "flow_forgotten", "a UDP flow goes on that was forgotten after a silence or to make room",
        "raise `close-after` above the sender's own time";
    Draining = "draining", "truepeer is stopping and opens no new flow",
        "nothing to do: the process that took over, or the next one, serves it";
    ClientPortInUse = "client_port_in_use", "the client's port is in use here: the backend sees another port",
        "nothing to do if the backend needs the address alone";
    SpecialClaim = "special_claim", "a header names a special address, which a setting allows",
        "see that only senders you trust are in `allow`";
    AcceptPause = "accept_pause", "accepting pauses, since descriptors or memory ran out",
        "raise the limit of open files (LimitNOFILE=, ulimit -n)";
    IdleReclaimed = "idle_connections_reclaimed", "idle connections were closed to make room",
        "raise the limit of open files (LimitNOFILE=, ulimit -n)";

    // TLS.
    TlsClosed = "tls_closed", "the other end closed the connection during the TLS handshake",
        "nothing to do if these are scans; else see the client's own message";
    TlsBroken = "tls_broken", "the connection broke during the TLS handshake",
        "nothing to do if it is rare";
    TlsTimeout = "tls_timeout", "no TLS handshake in time",
        "nothing to do if these are scans";
    TlsUnknownName = "tls_unknown_name", "the client asks for a host that no site has",
        "add the name to a site, or point the name elsewhere";
    TlsNotTls = "tls_not_tls", "something else than TLS",
        "let the sender pass TLS on, and its header before it";
    TlsIncompatible = "tls_incompatible", "no TLS version or cipher suite in common",
        "update the client, or lower `tls-min`";
    TlsAlert = "tls_alert", "the other end refused the TLS handshake by an alert",
        "see the log: most often it does not trust the certificate";
    TlsCertificate = "tls_certificate", "the other end's certificate is missing or not trusted",
        "see the log for what is wrong with it";
    TlsAlpn = "tls_alpn", "no application protocol in common (ALPN)",
        "offer what the client asks for";
    TlsNoCertificate = "tls_no_certificate", "there is no certificate for the name that the client asks for",
        "add a certificate for it";
    TlsFailed = "tls_failed", "the TLS handshake failed",
        "see the log for the cause";

    // Requests: clients.
    ClientGone = "client_gone", "the client left before its response was whole",
        "nothing to do: clients do";
    HeadTimeout = "request_head_timeout", "the head of a request was not whole in time",
        "nothing to do: slow clients and scans do so";
    BodyTimeout = "request_body_timeout", "the client stopped sending a request's body",
        "nothing to do: clients with a bad link do so";
    BodyTooSlow = "request_body_too_slow", "the client sends a body too slowly",
        "lower `min-rate` if your clients have slow links";
    ClientStalled = "client_stalled", "the client took nothing of a response for too long",
        "nothing to do: clients with a bad link do so";
    ClientTooSlow = "client_too_slow", "the client takes a response too slowly",
        "lower `min-rate` if your clients have slow links";
    Http2Error = "http2_error", "the client violates HTTP/2",
        "see the log for how";
    Http2Excess = "http2_excess", "the client floods its connection with empty HTTP/2 frames",
        "ban it: truepeer ban ADDRESS";
    Http2RapidReset = "http2_rapid_reset", "the client cancels most of its requests (HTTP/2)",
        "ban it: truepeer ban ADDRESS";
    Http2Malformed = "http2_malformed", "a request of HTTP/2 is malformed",
        "nothing to do: the client is at fault";
    BodyTooLarge = "body_too_large", "a request's body is longer than allowed",
        "raise `max-body`";
    MethodNotAllowed = "method_not_allowed", "a request's method is not allowed",
        "add it to `methods`";
    Misdirected = "misdirected", "a request for another site than its connection's",
        "nothing to do: the client asks again by a connection of its own";
    Expectation = "unknown_expectation", "a request has an unknown Expect field",
        "nothing to do: the client is at fault";

    // Requests: heads and bodies (`truepeer_http`).
    BareLf = "bare_lf", "a line of a request ends in LF without CR",
        "nothing to do: the client is at fault";
    EmptyLines = "empty_lines", "empty lines before a request",
        "nothing to do: the client is at fault";
    HeadTooLong = "head_too_long", "a request's head is too long",
        "raise `max-head`";
    TooManyFields = "too_many_fields", "a request's head has too many fields",
        "raise `max-fields`";
    TargetTooLong = "target_too_long", "a request's target is too long",
        "raise `max-head`";
    FirstLine = "first_line", "a request's first line is not one of HTTP/1",
        "nothing to do: scans do so";
    HttpVersion = "http_version", "HTTP of an unknown version",
        "nothing to do: the client is at fault";
    InvalidField = "invalid_field", "a field has a character that is not allowed, or a folded line",
        "nothing to do: the client is at fault";
    ContentLength = "content_length", "Content-Length is not one number in one field",
        "nothing to do: it may be an attack, and is refused";
    TwoLengths = "two_lengths", "Content-Length beside Transfer-Encoding",
        "nothing to do: it may be an attack, and is refused";
    TransferEncoding = "transfer_encoding", "Transfer-Encoding is not \"chunked\" in one field",
        "nothing to do: it may be an attack, and is refused";
    HostMissing = "host_missing", "a request has no Host",
        "nothing to do: the client is at fault";
    HostRepeated = "host_repeated", "a request has several Hosts",
        "nothing to do: it may be an attack, and is refused";
    HostInvalid = "host_invalid", "Host is not a host and port",
        "nothing to do: the client is at fault";
    HostDisagrees = "host_disagrees", "the target names another host than Host",
        "nothing to do: it may be an attack, and is refused";
    InvalidTarget = "invalid_target", "a request's target is no path, or has a raw character",
        "nothing to do: the client is at fault";
    InvalidStatus = "invalid_status", "a status that HTTP does not have",
        "mend the origin";
    ChunkSize = "chunk_size", "a chunk's size is not a hexadecimal number",
        "nothing to do: it may be an attack, and is refused";
    ChunkExtension = "chunk_extension", "a chunk extension has a character that is not allowed",
        "nothing to do: the client is at fault";
    ChunkExtensionsTooLong = "chunk_extensions_too_long", "chunk extensions are too long",
        "nothing to do: the client is at fault";
    ChunkEnd = "chunk_end", "a chunk does not end in CR and LF",
        "nothing to do: it may be an attack, and is refused";
    TrailersTooLong = "trailers_too_long", "trailers are too long",
        "nothing to do: the client is at fault";
    InvalidTrailers = "invalid_trailers", "a trailer is invalid",
        "nothing to do: the client is at fault";

    // Requests: origins.
    OriginTls = "origin_tls", "TLS with the backend failed",
        "see the log: most often its certificate is not trusted";
    OriginUnreachable = "origin_unreachable", "the origin could not be connected to",
        "see that it runs and listens there";
    OriginNoResources = "origin_no_resources", "no descriptor or port is left for a connection to the origin",
        "raise the limit of open files (LimitNOFILE=, ulimit -n)";
    OriginConnectTimeout = "origin_connect_timeout", "the origin did not take the connection in time",
        "see that it is up, and that its replies come back here: truepeer doctor";
    OriginClosed = "origin_closed", "the origin closed the connection without a response",
        "see the origin's own log";
    OriginNotHttp2 = "origin_not_http2", "the origin does not speak HTTP/2",
        "let truepeer speak HTTP/1.1 with it";
    OriginNotHttp1 = "origin_not_http1", "the origin does not speak HTTP/1.1",
        "let truepeer speak HTTP/2 with it";
    OriginNoStreams = "origin_no_streams", "the origin allows no requests (HTTP/2)",
        "mend the origin: SETTINGS_MAX_CONCURRENT_STREAMS is 0";
    OriginFamily = "origin_family", "the origin has no address of the client's family",
        "give it one, or send it a PROXY header instead";
    OriginProxyHeader = "origin_proxy_header", "no PROXY header could be made for the origin",
        "see the log for why";
    OriginStalled = "origin_stalled", "the origin stopped taking a request",
        "see the origin's own log";
    OriginTimeout = "origin_timeout", "the origin did not answer in time",
        "see the origin's own log; raise the time-out if it is slow";
    OriginDown = "origin_down", "the origin's health checks have failed",
        "see that it runs; see the log for the check that failed";
    OriginRefused = "origin_refused_stream", "the origin refused a request without processing it (HTTP/2)",
        "nothing to do if it was restarting";
    OriginWantsHttp1 = "origin_wants_http1", "the origin wants HTTP/1.1 for a request",
        "let truepeer speak HTTP/1.1 with it";
    OriginReset = "origin_reset_stream", "the origin reset a request's stream (HTTP/2)",
        "see the origin's own log";
    OriginHttp2Error = "origin_http2_error", "the origin violates HTTP/2",
        "see the log for how; mend the origin";
    OriginBadResponse = "origin_bad_response", "the origin's response is not HTTP, or is ambiguous",
        "see the log for how; mend the origin";
    OriginBadBody = "origin_bad_body", "the body of the origin's response is not HTTP",
        "see the log for how; mend the origin";
    OriginInterim = "origin_too_many_interim", "the origin sends interim responses (1xx) without end",
        "mend the origin";
    OriginTruncated = "origin_truncated", "the origin closed the connection within its response",
        "see the origin's own log";
    OriginNoSwitch = "origin_no_switch", "the origin opened no WebSocket",
        "see that the path is one of its WebSockets";
    OriginUnaskedSwitch = "origin_unasked_switch", "the origin switched protocols without being asked",
        "mend the origin";
}

impl Reason {
    /// The reason with this code.
    #[must_use]
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }

    /// `None`: no complaint is needed, as for a port scan that only connects.
    #[must_use]
    pub fn of_header(error: &HeaderError) -> Option<Self> {
        Some(match error {
            HeaderError::Invalid { error, .. } => error.kind.into(),
            HeaderError::Absent => return None,
            HeaderError::CutShort { .. } => Self::HeaderCutShort,
            HeaderError::Late { .. } => Self::HeaderTimeout,
            HeaderError::AfterWait { .. } => Self::HeaderAfterWait,
        })
    }
}

impl From<&Refusal> for Reason {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::SenderNotAllowed { .. } => Self::SenderNotAllowed,
            Refusal::HeaderMissing { .. } => Self::HeaderMissing,
            Refusal::HeaderForbidden { .. } => Self::HeaderForbidden,
            Refusal::HeaderUnproved { .. } => Self::HeaderUnproved,
            Refusal::ClaimRefused { .. } => Self::ClaimRefused,
            Refusal::ClientDenied { .. } => Self::ClientDenied,
            Refusal::ClientBanned { .. } => Self::ClientBanned,
            Refusal::ClientIsBackend { .. } => Self::ClientIsBackend,
            Refusal::ClientLinkLocal { .. } => Self::ClientLinkLocal,
            Refusal::NoBackend { .. } => Self::NoBackend,
            Refusal::BackendIsIpv6 { .. } => Self::BackendIsIpv6,
            Refusal::BackendIsIpv4 { .. } => Self::BackendIsIpv4,
            Refusal::DestinationNotAllowed { .. } => Self::DestinationNotAllowed,
            Refusal::DestinationUnusable { .. } => Self::DestinationUnusable,
            Refusal::DestinationLoops { .. } => Self::DestinationLoops,
        }
    }
}

impl From<DecodeErrorKind> for Reason {
    fn from(kind: DecodeErrorKind) -> Self {
        match kind {
            DecodeErrorKind::NotProxy => Self::NotProxy,
            DecodeErrorKind::VersionNotAccepted => Self::VersionNotAccepted,
            DecodeErrorKind::Truncated => Self::Truncated,
            DecodeErrorKind::V1Protocol => Self::V1Protocol,
            DecodeErrorKind::V1Space => Self::V1Space,
            DecodeErrorKind::V1Address => Self::V1Address,
            DecodeErrorKind::V1Port => Self::V1Port,
            DecodeErrorKind::V1LineEnd => Self::V1LineEnd,
            DecodeErrorKind::V1TooLong => Self::V1TooLong,
            DecodeErrorKind::V2Version => Self::V2Version,
            DecodeErrorKind::V2Command => Self::V2Command,
            DecodeErrorKind::V2Family => Self::V2Family,
            DecodeErrorKind::V2Transport => Self::V2Transport,
            DecodeErrorKind::V2AddressTooShort => Self::V2AddressTooShort,
            DecodeErrorKind::V2TooLong => Self::V2TooLong,
            DecodeErrorKind::TlvOverrun => Self::TlvOverrun,
            DecodeErrorKind::Crc32cLength => Self::Crc32cLength,
            DecodeErrorKind::Crc32cTwice => Self::Crc32cTwice,
            DecodeErrorKind::Crc32cMismatch => Self::Crc32cMismatch,
            DecodeErrorKind::UniqueIdTooLong => Self::UniqueIdTooLong,
            DecodeErrorKind::SslTooShort => Self::SslTooShort,
            DecodeErrorKind::SslOverrun => Self::SslOverrun,
            DecodeErrorKind::SppMagic => Self::SppMagic,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What `truepeer status` has room for in two lines of 80 columns, the number and the code among it.
    const MOST: usize = 130;

    #[test]
    fn each_code_is_unique_and_has_a_sentence_with_what_to_do() {
        let codes: HashSet<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let (code, meaning, advice) = (reason.code(), reason.meaning(), reason.advice());
            assert_eq!(Reason::of_code(code), Some(reason));
            assert!(code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{code}");
            for words in [meaning, advice] {
                assert!(words.contains(' '), "{code}: {words}");
                assert!(!words.ends_with('.') && !words.contains("  "), "{code}: {words}");
            }
            assert!(!meaning.contains(code), "{code} is in its own words");
            assert!(meaning.len() + advice.len() <= MOST, "{code}: too long");
        }
        assert_eq!(Reason::of_code("no_such_code"), None);
    }

    #[test]
    fn the_codes_of_headers_and_of_the_policy_are_their_own() {
        for kind in DecodeErrorKind::ALL {
            assert_eq!(Reason::from(kind).code(), kind.as_str());
        }
        for code in Refusal::REASONS {
            assert_eq!(Reason::of_code(code).map(Reason::code), Some(code));
        }
        let late = std::time::Duration::from_secs(3);
        for error in [
            HeaderError::Absent,
            HeaderError::CutShort { received: 1 },
            HeaderError::Late { waited: late, received: 1 },
            HeaderError::AfterWait { waited: late },
        ] {
            assert_eq!(Reason::of_header(&error).map(Reason::code), error.complaint());
        }
    }
}
