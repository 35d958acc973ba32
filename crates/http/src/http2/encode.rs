//! Writes header blocks (HPACK, RFC 7541) without a table of the connection's: messages differ, and a table
//! would cost more time than it saves.

use super::heads::is_of_handshake;
use super::static_table;
use super::text::{is_token, is_value};
use crate::decimal;
use crate::fields::forwarded::{FieldSink, Forwarding};
use crate::fields::{Field, FieldList, hop};
use crate::framing::BodyLength;
use crate::{Expectation, HeadError, RequestHead, ResponseHead};

/// Sets the size of the table to 0, at the start of a connection's first block. Later settings of the other
/// end change nothing then (RFC 7541 section 4.2).
pub(super) const NO_TABLE: u8 = 0x20;
/// A literal that no table may keep (RFC 7541 section 6.2.3).
const NEVER_KEPT: u8 = 0x10;

/// Indices of the static table.
const METHOD: usize = 2;
const GET: u8 = 2;
const POST: u8 = 3;
const PATH: usize = 4;
const HTTP: u8 = 6;
const HTTPS: u8 = 7;
const STATUS: usize = 8;
const AUTHORITY: usize = 1;

/// Whether HTTP/2 can carry the request: a change to another protocol needs a connection of its own, and some
/// paths are no URI (RFC 3986), as strict origins check. HTTP/1.0 may name no host; a URI with `https` has
/// one.
#[must_use]
pub fn fits(request: &RequestHead, uses_tls: bool) -> bool {
    let lacks_authority = request.host().is_empty() && uses_tls;
    let is_odd = |byte: u8| matches!(byte, b'"' | b'<' | b'>' | b'`');
    !request.wants_upgrade && !lacks_authority && !request.target().iter().any(|&byte| is_odd(byte))
}

/// Appends a request's head for an origin: the same fields as for HTTP/1.1, except for those of a connection.
///
/// # Errors
/// A field is none of HTTP/2's.
pub fn request(
    block: &mut Vec<u8>,
    head: &RequestHead,
    forwarding: &Forwarding<'_>,
    uses_tls: bool,
) -> Result<(), HeadError> {
    match head.method() {
        b"GET" => indexed(block, GET),
        b"POST" => indexed(block, POST),
        method => literal(block, METHOD, method),
    }
    // The connection's, as servers check (RFC 9113 section 8.3.1). `X-Forwarded-Proto` tells the client's.
    indexed(block, if uses_tls { HTTPS } else { HTTP });
    if !head.host().is_empty() {
        literal(block, AUTHORITY, head.host());
    }
    literal(block, PATH, head.target());
    for field in hop::onward(&head.fields).filter(|field| forwarding.keeps(field)) {
        if !write_field(block, field.spelt, field.value) {
            return Err(HeadError::Field);
        }
    }
    let mut sink = BlockSink { block, length_at: 0, is_invalid: false };
    forwarding.write(&head.fields, &mut sink);
    if sink.is_invalid {
        return Err(HeadError::Field);
    }
    if let BodyLength::Known(length) = head.length {
        content_length(block, length);
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
    /// Where the length of the last value stands.
    length_at: usize,
    is_invalid: bool,
}

impl FieldSink for BlockSink<'_> {
    fn begin(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.is_invalid |= !field_name(self.block, name.as_bytes());
        self.length_at = self.block.len();
        self.block.push(0);
        self.block
    }

    fn end(&mut self) {
        let value = self.length_at + 1;
        let length = self.block.len() - value;
        self.is_invalid |= !is_value(&self.block[value..]);
        match u8::try_from(length) {
            Ok(short @ ..127) => self.block[self.length_at] = short,
            // The length needs more than its one byte.
            _ => {
                let mut written = Vec::new();
                integer(&mut written, 0, 7, length);
                self.block.splice(self.length_at..value, written);
            }
        }
    }
}

/// Appends a response's head, without fields that HTTP/2 can't carry.
pub fn response(block: &mut Vec<u8>, head: &ResponseHead) {
    status(block, head.status);
    fields(block, hop::onward(&head.fields));
    if let (BodyLength::Known(length), _) | (BodyLength::None, Some(length)) = (head.length, head.announced) {
        content_length(block, length);
    }
}

/// Appends the head of a response that opens a WebSocket.
pub fn opened(block: &mut Vec<u8>, fields_of: &FieldList) {
    status(block, 200);
    fields(block, hop::onward(fields_of).filter(|field| !is_of_handshake(field.spelt)));
}

/// Appends the head of a 1xx response: it has no length.
pub fn interim(block: &mut Vec<u8>, number: u16, fields_of: &FieldList) {
    status(block, number);
    fields(block, hop::onward(fields_of));
}

/// Appends trailers.
pub(super) fn trailers(block: &mut Vec<u8>, list: &FieldList) {
    fields(block, list.iter());
}

fn fields<'a>(block: &mut Vec<u8>, fields: impl Iterator<Item = Field<'a>>) {
    for field in fields {
        write_field(block, field.spelt, field.value);
    }
}

/// Appends a status.
pub fn status(block: &mut Vec<u8>, number: u16) {
    let index = match number {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            integer(block, 0, 4, STATUS);
            block.push(3);
            return decimal::push(block, number.into());
        }
    };
    indexed(block, index);
}

/// Appends a length of a body.
fn content_length(block: &mut Vec<u8>, length: u64) {
    field_name(block, b"content-length");
    let at = block.len();
    block.push(0);
    decimal::push(block, length);
    // At most 20 digits.
    block[at] = u8::try_from(block.len() - at - 1).unwrap_or_default();
}

/// Appends a field. `false`: it is none, and nothing was appended.
pub fn write_field(block: &mut Vec<u8>, spelt: &[u8], value: &[u8]) -> bool {
    let is_field = is_value(value) && field_name(block, spelt);
    if is_field {
        text(block, value);
    }
    is_field
}

/// Appends a name in lower case. A text must follow. `false`: it is none, and nothing was appended.
fn field_name(block: &mut Vec<u8>, spelt: &[u8]) -> bool {
    let kept = if is_secret(spelt) { NEVER_KEPT } else { 0 };
    if let Some(index) = static_table::index_of(spelt) {
        integer(block, kept, 4, index.into());
        return true;
    }
    if !is_token(spelt) {
        return false;
    }
    block.push(kept);
    integer(block, 0, 7, spelt.len());
    block.extend(spelt.iter().map(u8::to_ascii_lowercase));
    true
}

/// Appends the field that the static table has at `index`.
pub(super) fn indexed(block: &mut Vec<u8>, index: u8) {
    block.push(0x80 | index);
}

/// Appends a value after the name that the static table has at `index`.
fn literal(block: &mut Vec<u8>, index: usize, value: &[u8]) {
    integer(block, 0, 4, index);
    text(block, value);
}

/// Appends a text, not compressed.
fn text(block: &mut Vec<u8>, text: &[u8]) {
    integer(block, 0, 7, text.len());
    block.extend_from_slice(text);
}

/// RFC 7541 section 5.1.
fn integer(block: &mut Vec<u8>, first: u8, prefix: u32, number: usize) {
    let most = (1_usize << prefix) - 1;
    let low = |number: usize| u8::try_from(number & 0x7f).unwrap_or_default();
    if number < most {
        return block.push(first | low(number));
    }
    block.push(first | low(most));
    let mut rest = number - most;
    while rest >= 0x80 {
        block.push(low(rest) | 0x80);
        rest >>= 7;
    }
    block.push(low(rest));
}

fn is_secret(name: &[u8]) -> bool {
    [&b"authorization"[..], b"cookie", b"proxy-authorization", b"set-cookie"]
        .iter()
        .any(|secret| secret.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::super::hpack::Decoder;
    use super::*;

    fn read(block: &[u8]) -> Vec<(String, String)> {
        let mut read = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut decoder = Decoder::new();
        decoder.read(block, |field| read.push((text(field.name), text(field.value)))).expect("a block");
        read
    }

    #[test]
    fn what_is_written_can_be_read() {
        let (long, edge) = ("x".repeat(70_000), "y".repeat(127));
        let all = [
            ("cookie", "a=b"),
            ("x-own", ""),
            ("user-agent", edge.as_str()),
            (edge.as_str(), "1"),
            ("via", long.as_str()),
        ];
        let mut block = vec![NO_TABLE];
        indexed(&mut block, GET);
        for (name, value) in all {
            assert!(write_field(&mut block, name.to_ascii_uppercase().as_bytes(), value.as_bytes()));
        }
        let read = read(&block);
        assert_eq!(read[0], (":method".to_owned(), "GET".to_owned()));
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read[1..], all);
    }

    #[test]
    fn what_is_no_field_is_not_written() {
        let mut block = Vec::new();
        for (name, value) in [("", "a"), (":path", "/"), ("a b", "c"), ("a", "b\r\nc: d"), ("a", "\0")] {
            assert!(!write_field(&mut block, name.as_bytes(), value.as_bytes()), "{name}: {value}");
        }
        assert!(block.is_empty());
    }

    #[test]
    fn a_response_has_its_status_its_fields_and_its_length() {
        let mut head = ResponseHead::default();
        for number in [100, 200, 204, 206, 304, 400, 404, 500, 503] {
            head.begin_http2(number, b"");
            head.fields.push(b"Server", b"a");
            head.fields.push(b"Connection", b"close");
            head.length = BodyLength::Known(1234);
            let mut block = Vec::new();
            response(&mut block, &head);
            let expected =
                [(":status", number.to_string()), ("server", "a".into()), ("content-length", "1234".into())];
            assert_eq!(read(&block), expected.map(|(name, value)| (name.to_owned(), value)));
        }
    }

    #[test]
    fn odd_paths_and_upgrades_do_not_fit() {
        let mut head = RequestHead::default();
        for (target, host, uses_tls, fits_in) in [
            ("/a/b.c?d=e&f=%20", "a", true, true),
            ("/\u{e4}{}|^\\~", "a", true, true),
            ("/a\"b", "a", false, false),
            ("/<", "a", false, false),
            ("/>", "a", false, false),
            ("/`", "a", false, false),
            ("/", "", true, false),
            ("/", "", false, true),
        ] {
            head.begin_http2(b"GET", target.as_bytes(), host.as_bytes());
            assert_eq!(fits(&head, uses_tls), fits_in, "{target}");
        }
        head.wants_upgrade = true;
        assert!(!fits(&head, false));
    }
}
