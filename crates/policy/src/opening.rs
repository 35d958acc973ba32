//! The start of a connection: the one implementation of `--header` for every way of delivery.
//!
//! Nothing here reads, waits or stores bytes. The caller passes all bytes so far, tells when no more will
//! come, and how long it has waited. The relay, TLS and `run` use it. The matrix of behaviours compares the
//! kernel programs of `attach` with the same table (docs/senders.md).
//!
//! ```text
//!             on_bytes ──▶ Header, NoHeader, Refused
//! NeedMore ─┤ on_end   ──▶ NoHeader, Refused
//!             on_timeout ▶ NoHeader, Refused, or NeedMore: there is time left
//! after on_timeout's NoHeader: on_late_bytes ▶ NoHeader, Refused
//! ```

use core::time::Duration;

use truepeer_proto::{
    DecodeError, DecodeErrorKind, Decoded, Header, Limits, Quote, V2_SIGNATURE, begins_header, decode, sniff,
};

use crate::senders::HeaderRule;

/// How long to wait for a header, counted from `accept()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderTimes {
    /// Until a header is complete (`--header-timeout`).
    pub timeout: Duration,
    /// Until the first byte if a header is optional (`--header-wait`): the client may wait for the backend
    /// to send first.
    pub wait: Duration,
}

impl Default for HeaderTimes {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5), wait: Duration::from_secs(1) }
    }
}

/// With this many bytes [`HeaderReader::on_late_bytes`] always decides.
pub const LATE_BYTES: usize = V2_SIGNATURE.len();

/// How to read the first bytes of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderReader {
    /// The sender's rule ([`crate::Policy::admit`]).
    pub rule: HeaderRule,
    /// The accepted headers, and their longest length.
    pub limits: Limits,
    /// How long to wait for one.
    pub times: HeaderTimes,
}

/// The result for the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening<'a> {
    /// More bytes must come.
    NeedMore,
    /// A header.
    Header {
        /// The header.
        header: Header<'a>,
        /// Its length in bytes. Data follows.
        consumed: usize,
    },
    /// No header, and none is required: all bytes are data.
    NoHeader,
    /// The connection is refused.
    Refused(HeaderError),
}

/// Why a connection has no header, although it needs one or started one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Something else than a header, or a wrong one.
    #[error("{error}{}{}", says(.quote), seems(.looks_like))]
    Invalid {
        /// The error.
        error: DecodeError,
        /// The field that is wrong, as the sender wrote it.
        quote: Option<Quote>,
        /// The protocol that the first bytes belong to.
        looks_like: Option<&'static str>,
    },
    /// The sender closed the connection before the first byte.
    #[error("closed before a header came")]
    Absent,
    /// The sender closed the connection within a header.
    #[error("closed after {received} bytes of a PROXY header")]
    CutShort {
        /// How many bytes came.
        received: usize,
    },
    /// No complete header came in time.
    #[error("no whole PROXY header within {} s: {received} bytes came; {}", waited.as_secs_f32(), advises(*.received))]
    Late {
        /// The time limit.
        waited: Duration,
        /// How many bytes came.
        received: usize,
    },
    /// A header was optional, none came in time, and one came when the backend was already served without it.
    #[error("a PROXY header came after {} s of silence, when the connection was served without one; {NLB}", waited.as_secs_f32())]
    AfterWait {
        /// The time limit.
        waited: Duration,
    },
}

/// AWS's documentation of target groups, attribute proxy_protocol_v2.client_to_server.header_placement.
const NLB: &str = "if the sender is AWS NLB and the server speaks first, \
    proxy_protocol_v2.client_to_server.header_placement must be on_first_ack";

fn advises(received: usize) -> String {
    let question = "is the PROXY protocol on at the sender?";
    if received == 0 { format!("{question} {NLB}") } else { question.into() }
}

fn says(quote: &Option<Quote>) -> String {
    quote.map_or_else(String::new, |quote| format!("; the header says {quote}"))
}

fn seems(looks_like: &Option<&str>) -> String {
    looks_like
        .map_or_else(String::new, |name| format!("; the first bytes look like: {name}; is send-proxy on?"))
}

impl HeaderError {
    /// Whether the only thing wrong is that the header is longer than it may be.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Invalid { error, .. } if error.kind == DecodeErrorKind::V2TooLong)
    }

    /// A label to group complaints by. `None`: no complaint is needed, as for a port scan or a health check
    /// that only connects.
    pub fn complaint(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { error, .. } => Some(error.kind.as_str()),
            Self::Absent => None,
            Self::CutShort { .. } => Some("header_cut_short"),
            Self::Late { .. } => Some("header_timeout"),
            Self::AfterWait { .. } => Some("header_after_wait"),
        }
    }
}

impl HeaderReader {
    /// Call it with all bytes so far, from the connection's first one on. More may come.
    pub fn on_bytes<'a>(&self, bytes: &'a [u8]) -> Opening<'a> {
        if self.rule == HeaderRule::Forbid {
            return Opening::NoHeader;
        }
        match decode(bytes, self.limits) {
            Ok(Decoded::NeedMore { .. }) => Opening::NeedMore,
            Ok(Decoded::Done { header, consumed }) => Opening::Header { header, consumed },
            Err(error) if self.rule == HeaderRule::Optional && is_no_header(error) => Opening::NoHeader,
            Err(error) => {
                let (quote, looks_like) = (error.quote(bytes), sniff(bytes));
                Opening::Refused(HeaderError::Invalid { error, quote, looks_like })
            }
        }
    }

    /// The sender has ended its direction: no more bytes will come.
    pub fn on_end<'a>(&self, bytes: &'a [u8]) -> Opening<'a> {
        match self.on_bytes(bytes) {
            Opening::NeedMore => match bytes.len() {
                0 if self.rule == HeaderRule::Optional => Opening::NoHeader,
                0 => Opening::Refused(HeaderError::Absent),
                received => Opening::Refused(HeaderError::CutShort { received }),
            },
            decided => decided,
        }
    }

    /// The connection was reset: nothing can be served.
    pub fn on_reset(&self) -> HeaderError {
        HeaderError::Absent
    }

    /// This long after `accept()`, these bytes have come, on which [`Self::on_bytes`] could not decide.
    pub fn on_timeout<'a>(&self, bytes: &'a [u8], waited: Duration) -> Opening<'a> {
        let received = bytes.len();
        if waited < self.deadline(received) {
            return Opening::NeedMore;
        }
        if received == 0 && self.rule == HeaderRule::Optional {
            return Opening::NoHeader;
        }
        Opening::Refused(HeaderError::Late { waited: self.times.timeout, received })
    }

    /// Call it with the first bytes of a connection for which [`Self::on_timeout`] has returned
    /// [`Opening::NoHeader`]; [`LATE_BYTES`] of them are enough. A header among them names a client that the
    /// backend does not know of, so it is never data.
    pub fn on_late_bytes<'a>(&self, bytes: &'a [u8]) -> Opening<'a> {
        match begins_header(bytes, self.limits.versions) {
            _ if self.rule == HeaderRule::Forbid => Opening::NoHeader,
            Some(true) => Opening::Refused(HeaderError::AfterWait { waited: self.deadline(0) }),
            Some(false) => Opening::NoHeader,
            None => Opening::NeedMore,
        }
    }

    /// How long after `accept()` [`Self::on_timeout`] decides if no more than these bytes have come.
    pub fn deadline(&self, received: usize) -> Duration {
        match self.rule {
            HeaderRule::Optional if received == 0 => self.times.wait.min(self.times.timeout),
            _ => self.times.timeout,
        }
    }
}

/// A header of an excluded version counts as none, as with libproxyproto's variable.
fn is_no_header(error: DecodeError) -> bool {
    matches!(error.kind, DecodeErrorKind::NotProxy | DecodeErrorKind::VersionNotAccepted)
}

#[cfg(test)]
mod tests {
    use HeaderRule::{Forbid, Optional, Require};
    use truepeer_proto::Versions;

    use super::*;

    const V1: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n";
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\x03\xe8\x01\xbb";

    fn reader(rule: HeaderRule) -> HeaderReader {
        HeaderReader { rule, limits: Limits::default(), times: HeaderTimes::default() }
    }

    fn consumed(opening: &Opening<'_>) -> Option<usize> {
        if let Opening::Header { consumed, .. } = opening { Some(*consumed) } else { None }
    }

    #[test]
    fn a_header_is_read_however_it_is_cut() {
        for header in [V1, V2] {
            for rule in [Require, Optional] {
                for cut in 0..header.len() {
                    assert_eq!(reader(rule).on_bytes(&header[..cut]), Opening::NeedMore, "{cut}");
                }
                let with_data = [header, b"data"].concat();
                assert_eq!(consumed(&reader(rule).on_bytes(&with_data)), Some(header.len()));
                assert_eq!(consumed(&reader(rule).on_end(header)), Some(header.len()));
            }
            assert_eq!(reader(Forbid).on_bytes(header), Opening::NoHeader);
        }
    }

    /// docs/senders.md, row by row.
    #[test]
    fn what_can_not_be_a_header_any_more_is_data_at_once() {
        for data in [&b"GET / HTTP/1.1\r\n"[..], b"x", b"PROXIMITY", b"\r\n\r\n\0\r\nQUIX", b"\r\n\r\nx"] {
            assert_eq!(reader(Optional).on_bytes(data), Opening::NoHeader, "{}", data.escape_ascii());
            assert_eq!(reader(Optional).on_end(data), Opening::NoHeader, "{}", data.escape_ascii());
            let Opening::Refused(HeaderError::Invalid { error, .. }) = reader(Require).on_bytes(data) else {
                panic!("{}", data.escape_ascii())
            };
            assert_eq!(error.kind, DecodeErrorKind::NotProxy);
        }
    }

    #[test]
    fn a_client_that_says_nothing_is_served_as_itself_where_it_may_be() {
        let second = Duration::from_secs(1);
        let (optional, require) = (reader(Optional), reader(Require));
        assert_eq!(optional.on_end(b""), Opening::NoHeader);
        assert_eq!(require.on_end(b""), Opening::Refused(HeaderError::Absent));
        assert_eq!(optional.on_timeout(b"", second / 2), Opening::NeedMore);
        assert_eq!(optional.on_timeout(b"", second), Opening::NoHeader);
        assert_eq!(require.on_timeout(b"", second), Opening::NeedMore);
        let late = Opening::Refused(HeaderError::Late { waited: 5 * second, received: 0 });
        assert_eq!(require.on_timeout(b"", 5 * second), late);
        let hasty = HeaderTimes { timeout: second / 2, wait: second };
        assert_eq!(HeaderReader { times: hasty, ..optional }.on_timeout(b"", second / 2), Opening::NoHeader);
    }

    #[test]
    fn what_began_as_a_header_and_was_not_completed_is_refused() {
        let second = Duration::from_secs(1);
        for rule in [Require, Optional] {
            let reader = reader(rule);
            for header in [V1, V2] {
                for received in 1..header.len() {
                    let part = &header[..received];
                    assert_eq!(reader.on_end(part), Opening::Refused(HeaderError::CutShort { received }));
                    assert_eq!(reader.on_timeout(part, 4 * second), Opening::NeedMore);
                    let late = HeaderError::Late { waited: 5 * second, received };
                    assert_eq!(reader.on_timeout(part, 5 * second), Opening::Refused(late));
                    assert_eq!(reader.deadline(received), 5 * second);
                }
            }
        }
        assert_eq!(reader(Optional).deadline(0), second);
    }

    #[test]
    fn a_header_after_the_wait_is_refused_and_anything_else_is_data() {
        let reader = reader(Optional);
        let refused = Opening::Refused(HeaderError::AfterWait { waited: reader.times.wait });
        for (header, signature) in [(V1, 6), (V2, 12), (b"PROXY junk", 6)] {
            for received in 0..header.len() {
                let opening = reader.on_late_bytes(&header[..received]);
                assert_eq!(opening, if received < signature { Opening::NeedMore } else { refused.clone() });
                let other = [&header[..received], b"x"].concat();
                if received < signature {
                    assert_eq!(reader.on_late_bytes(&other), Opening::NoHeader, "{}", other.escape_ascii());
                }
            }
        }
        let limits = Limits { versions: Versions::V2, ..Limits::default() };
        assert_eq!(HeaderReader { limits, ..reader }.on_late_bytes(V1), Opening::NoHeader);
        assert_eq!(HeaderReader { rule: Forbid, ..reader }.on_late_bytes(V1), Opening::NoHeader);
        let said = HeaderError::AfterWait { waited: reader.times.wait }.to_string();
        assert!(said.contains("after 1 s of silence") && said.contains("on_first_ack"), "{said}");
        let late = |received| HeaderError::Late { waited: reader.times.timeout, received }.to_string();
        assert!(late(0).contains("on_first_ack") && !late(5).contains("on_first_ack"), "{}", late(0));
    }

    #[test]
    fn a_refusal_quotes_the_field_that_is_wrong() {
        let long = format!("PROXY TCP6 {} ::1 1000 443\r\n", "1".repeat(60));
        for (header, said) in [
            ("PROXY TCP4 192.0.2.300 198.51.100.1 1000 443\r\n", "; the header says \"192.0.2.300\""),
            ("PROXY TCP4 192.0.2.1 my-host.example 1000 443\r\n", "; the header says \"my-host.example\""),
            ("PROXY TCP6 fe80::1%eth0 ::1 1000 443\r\n", "; the header says \"fe80::1%eth0\""),
            ("PROXY TCP4 192.0.2.1 198.51.100.1 1000 70000\r\n", "; the header says \"70000\""),
            ("PROXY UDP4 192.0.2.1 198.51.100.1 1000 443\r\n", "; the header says \"UDP4\""),
            ("PROXY TCP4 192.0.2.\x1b[2J", "; the header says \"192.0.2.\\u{1b}[2J\""),
            (&long, &format!("; the header says \"{}…\"", "1".repeat(45))),
        ] {
            let Opening::Refused(error) = reader(Require).on_bytes(header.as_bytes()) else {
                panic!("{header}")
            };
            assert!(error.to_string().ends_with(said), "{error}");
        }
    }

    #[test]
    fn a_refusal_names_the_protocol_that_came_instead() {
        let said = |bytes: &[u8]| match reader(Require).on_bytes(bytes) {
            Opening::Refused(error) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let http = said(b"GET / HTTP/1.1\r\n");
        assert!(http.ends_with("; the first bytes look like: HTTP request; is send-proxy on?"), "{http}");
        let unknown = said(b"abc");
        assert!(!unknown.contains("look like"), "{unknown}");
    }

    #[test]
    fn a_malformed_header_is_refused_and_one_of_another_version_is_none() {
        for rule in [Require, Optional] {
            let opening = reader(rule).on_bytes(b"PROXY TCP5 192.0.2.1 198.51.100.1 1000 443\r\n");
            assert!(matches!(opening, Opening::Refused(HeaderError::Invalid { .. })), "{opening:?}");
        }
        let limits = Limits { versions: Versions::V2, ..Limits::default() };
        let only_v2 = HeaderReader { limits, ..reader(Optional) };
        assert_eq!(only_v2.on_bytes(V1), Opening::NoHeader);
        let only_v2 = HeaderReader { limits, ..reader(Require) };
        assert!(matches!(only_v2.on_bytes(V1), Opening::Refused(HeaderError::Invalid { .. })));
    }
}
