//! A request as HTTP/2 carries it, and a response read from it.

use h2::Reason;
use http::uri::{Authority, PathAndQuery};
use truepeer_http::fields::forwarded::{FieldSink, Forwarding};
use truepeer_http::fields::hop;
use truepeer_http::{BodyLength, Expectation, HeadError, RequestHead};

use super::client::{StreamError, begin_field, is_in_value, is_name, write_field, write_indexed, write_text};
use crate::buffers::OutBuffer;
use crate::exchange::Failure;

/// Whether HTTP/2 can carry the request. A change to another protocol needs a connection of its own, and some paths are no
/// URI. HTTP/1.0 may name no host; `http` has no URI with a scheme for that, and `h2` then claims `http:`.
pub(crate) fn fits(request: &RequestHead, uses_tls: bool) -> bool {
    let lacks_authority = request.host().is_empty() && uses_tls;
    !request.wants_upgrade
        && !lacks_authority
        && (is_plain_path(request.target()) || PathAndQuery::try_from(request.target()).is_ok())
}

/// Whether it is a path, with or without a query, in the letters that most have.
fn is_plain_path(target: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/.-_~?=&%+:@,;!$'()*".contains(byte);
    target.starts_with(b"/") && target.iter().all(is_plain)
}

/// Whether it is a name, or an IPv4 address, with or without a port, in the letters that most have.
fn is_plain_host(host: &[u8]) -> bool {
    let mut parts = host.splitn(2, |&byte| byte == b':');
    let name = parts.next().unwrap_or_default();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let has_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    !name.is_empty() && name.iter().all(is_plain) && parts.next().is_none_or(has_port)
}

/// Appends the head for the origin: the same fields as for HTTP/1.1, except for those of a connection.
///
/// # Errors
/// A field or the target is none of HTTP/2's.
pub(super) fn write(
    block: &mut Vec<u8>,
    head: &RequestHead,
    forwarding: &Forwarding<'_>,
    uses_tls: bool,
) -> Result<(), HeadError> {
    const GET: u8 = 2;
    const POST: u8 = 3;
    const HTTP: u8 = 6;
    const HTTPS: u8 = 7;
    match head.method() {
        b"GET" => write_indexed(block, GET),
        b"POST" => write_indexed(block, POST),
        method => write_field(block, b":method", method),
    }
    // The connection's, as servers check (RFC 9113 section 8.3.1). `X-Forwarded-Proto` tells the client's.
    write_indexed(block, if uses_tls { HTTPS } else { HTTP });
    if !head.host().is_empty() {
        if !is_plain_host(head.host()) {
            Authority::try_from(head.host()).map_err(|_| HeadError::HostInvalid)?;
        }
        write_field(block, b":authority", head.host());
    }
    if is_plain_path(head.target()) {
        write_field(block, b":path", head.target());
    } else {
        let target = PathAndQuery::try_from(head.target()).map_err(|_| HeadError::Target)?;
        write_field(block, b":path", target.as_str().as_bytes());
    }
    fields(block, head, forwarding)
}

fn fields(block: &mut Vec<u8>, head: &RequestHead, forwarding: &Forwarding<'_>) -> Result<(), HeadError> {
    let mut lower = OutBuffer::take();
    for field in hop::onward(&head.fields).filter(|field| forwarding.keeps(field)) {
        lower.clear();
        lower.extend(field.spelt.iter().map(u8::to_ascii_lowercase));
        if !is_name(&lower) || !field.value.iter().all(|&byte| is_in_value(byte)) {
            return Err(HeadError::Field);
        }
        write_field(block, &lower, field.value);
    }
    lower.clear();
    let mut sink = BlockSink { block, value: lower, is_invalid: false };
    forwarding.write(&head.fields, &mut sink);
    if sink.is_invalid {
        return Err(HeadError::Field);
    }
    if let BodyLength::Known(length) = head.length {
        write_field(block, b"content-length", length.to_string().as_bytes());
    }
    if head.expectation == Expectation::Continue && head.length != BodyLength::None {
        write_field(block, b"expect", b"100-continue");
    }
    if hop::takes_trailers(&head.fields) {
        write_field(block, b"te", b"trailers");
    }
    Ok(())
}

/// Takes truepeer's own fields.
struct BlockSink<'a> {
    block: &'a mut Vec<u8>,
    value: OutBuffer,
    is_invalid: bool,
}

impl FieldSink for BlockSink<'_> {
    fn begin(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.value.clear();
        self.value.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        begin_field(self.block, &self.value);
        self.value.clear();
        &mut self.value
    }

    fn end(&mut self) {
        self.is_invalid |= !self.value.iter().all(|&byte| is_in_value(byte));
        write_text(self.block, &self.value);
    }
}

/// What an error of a stream without a response means for its request.
pub(super) fn failure(error: StreamError) -> Failure {
    match error {
        // RFC 9113 8.7: the origin has not processed it.
        StreamError::Unprocessed | StreamError::Reset(Reason::REFUSED_STREAM) => Failure::OriginRefused,
        StreamError::Reset(Reason::HTTP_1_1_REQUIRED) => Failure::OriginWantsHttp1,
        StreamError::Reset(reason) => Failure::OriginReset(reason),
        StreamError::Violation(reason) => Failure::OriginHttp2(reason),
        StreamError::BadHead(error) => Failure::BadResponse(error),
        StreamError::Closed => Failure::OriginClosed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser of `http` accepts every text that passes without a closer look.
    #[test]
    fn plain_hosts_and_paths_are_valid_ones() {
        for host in ["a", "a.example", "a-1.example:8443", "192.0.2.1:80"] {
            assert!(is_plain_host(host.as_bytes()) && Authority::try_from(host).is_ok(), "{host}");
        }
        for host in ["", ":80", "a:", "a:b", "a:1:2", "[::1]:443", "a@b", "a b", "a/b", "ä"] {
            assert!(!is_plain_host(host.as_bytes()), "{host}");
        }
        for path in ["/", "/a/b.c?d=e&f=%20", "/~a:b@c,d;e!$'()*+-_"] {
            assert!(is_plain_path(path.as_bytes()), "{path}");
            assert_eq!(PathAndQuery::try_from(path).unwrap().as_str(), path);
        }
        for path in ["", "*", "a", "/a#b", "/a b", "/a\\b", "/ä", "/a\"b"] {
            assert!(!is_plain_path(path.as_bytes()), "{path}");
        }
    }
}
