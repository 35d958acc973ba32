//! How we write heads and chunks. Framing is always our own; a field that came is written as it came.

use std::io::Write as _;

use super::framing::BodyLength;
use super::request::{Expectation, HttpVersion, RequestHead};
use super::response::ResponseHead;
use crate::decimal;
use crate::fields::forwarded::Forwarding;
use crate::fields::{FieldList, FieldName, hop};

/// Writes a request for the origin. `length` is that of the body as it will be sent.
pub fn request(out: &mut Vec<u8>, head: &RequestHead, forwarding: &Forwarding<'_>, length: BodyLength) {
    line(out, &[head.method(), b" ", head.target(), b" HTTP/1.1"]);
    line(out, &[b"Host: ", head.host()]);
    fields(out, hop::onward(&head.fields).filter(|field| forwarding.keeps(field)));
    forwarding.write(&head.fields, out);
    match length {
        BodyLength::Known(length) => content_length(out, length),
        BodyLength::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyLength::None | BodyLength::UntilClose => {}
    }
    if head.expectation == Expectation::Continue && length != BodyLength::None {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    if head.wants_upgrade {
        upgrade(out, &head.fields);
    } else if hop::takes_trailers(&head.fields) {
        out.extend_from_slice(b"TE: trailers\r\nConnection: te\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// A response as its client gets it.
#[derive(Debug, Clone, Copy)]
pub struct ResponseFraming {
    /// How its body will be sent.
    pub length: BodyLength,
    /// The client's version.
    pub version: HttpVersion,
    /// Whether the connection will take another request.
    pub keep_alive: bool,
}

/// Writes a final response's head for a client of HTTP/1.
pub fn response(out: &mut Vec<u8>, head: &ResponseHead, answer: ResponseFraming) {
    status_line(out, head.status, head.reason());
    fields(out, hop::onward(&head.fields));
    match (answer.length, head.announced) {
        (BodyLength::Known(length), _) | (BodyLength::None, Some(length)) => content_length(out, length),
        (BodyLength::Chunked, _) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        (BodyLength::None | BodyLength::UntilClose, _) => {}
    }
    match (answer.keep_alive, answer.version) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, HttpVersion::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, _) => {}
    }
    // RFC 9110 15.5.22: 426 says which protocol is required.
    if head.status == 426 && head.fields.has(FieldName::Upgrade) {
        upgrade(out, &head.fields);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of a 1xx response other than 101.
pub fn interim(out: &mut Vec<u8>, head: &ResponseHead) {
    status_line(out, head.status, head.reason());
    fields(out, hop::onward(&head.fields));
    out.extend_from_slice(b"\r\n");
}

/// Writes a 101, after which the connection speaks another protocol.
pub fn switching(out: &mut Vec<u8>, head: &ResponseHead) {
    status_line(out, head.status, head.reason());
    fields(out, hop::onward(&head.fields));
    upgrade(out, &head.fields);
    out.extend_from_slice(b"\r\n");
}

/// Writes the start of a chunk of `len` bytes (at least one), which have to follow, and then CRLF.
pub fn chunk_start(out: &mut Vec<u8>, len: usize) {
    // A vector takes everything.
    let _ = write!(out, "{len:x}\r\n");
}

/// Writes the end of a chunked body.
pub fn chunks_end(out: &mut Vec<u8>, trailers: &FieldList) {
    out.extend_from_slice(b"0\r\n");
    fields(out, trailers.iter());
    out.extend_from_slice(b"\r\n");
}

fn status_line(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal::push(out, status.into());
    line(out, &[b" ", reason]);
}

fn fields<'a>(out: &mut Vec<u8>, fields: impl Iterator<Item = crate::fields::Field<'a>>) {
    fields.for_each(|field| match field.line() {
        Some(line) => out.extend_from_slice(line),
        None => line(out, &[field.spelt, b": ", field.value]),
    });
}

fn upgrade(out: &mut Vec<u8>, fields: &FieldList) {
    out.extend_from_slice(b"Connection: upgrade\r\n");
    fields.values(FieldName::Upgrade).for_each(|value| line(out, &[b"Upgrade: ", value]));
}

fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    decimal::push(out, length);
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}
