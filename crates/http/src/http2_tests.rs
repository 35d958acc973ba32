//! Heads that came by HTTP/2, and what else is written for HTTP/1.

use super::*;
use crate::fields::{FieldList, FieldName};

fn request(
    target: &str,
    host: &str,
    fields: &[(&str, &str)],
    has_body: bool,
) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::default();
    head.begin_http2(b"PUT", target.as_bytes(), host.as_bytes());
    fields.iter().for_each(|(name, value)| head.fields.push(name.as_bytes(), value.as_bytes()));
    head.finish_http2(has_body).map(|()| head)
}

fn response(status: u16, fields: &[(&str, &str)], has_body: bool) -> Result<ResponseHead, HeadError> {
    let mut head = ResponseHead::default();
    head.begin_http2(status, b"Fine");
    fields.iter().for_each(|(name, value)| head.fields.push(name.as_bytes(), value.as_bytes()));
    head.finish_http2(has_body, false).map(|()| head)
}

fn length_of(status: u16, fields: &[(&str, &str)], has_body: bool) -> BodyLength {
    response(status, fields, has_body).unwrap_or_else(|error| panic!("{fields:?}: {error}")).length
}

#[test]
fn a_request_by_http2_is_one_by_http1() {
    let head =
        request("/a?b", "a.example", &[("x", "y"), ("expect", "100-continue")], false).expect("a request");
    assert_eq!((head.method(), head.target(), head.host()), (&b"PUT"[..], &b"/a?b"[..], &b"a.example"[..]));
    assert_eq!((head.version, head.length, head.keep_alive), (HttpVersion::Http2, BodyLength::None, true));
    assert_eq!((head.expectation, head.wants_upgrade), (Expectation::Continue, false));
    assert!(head.is_idempotent());
}

#[test]
fn lengths_of_requests() {
    let length = |fields: &[_], has_body| request("/", "a", fields, has_body).map(|head| head.length);
    assert_eq!(length(&[("content-length", "3")], true), Ok(BodyLength::Known(3)));
    assert_eq!(length(&[], true), Ok(BodyLength::Chunked));
    assert_eq!(length(&[], false), Ok(BodyLength::None));
    assert_eq!(length(&[("content-length", "+3")], true), Err(HeadError::ContentLength));
    assert_eq!(length(&[("transfer-encoding", "chunked")], true), Err(HeadError::TransferEncoding));
}

#[test]
fn a_request_by_http2_is_held_to_the_same_rules() {
    assert_eq!(request("/", "a b", &[], false).err(), Some(HeadError::HostInvalid));
    assert!(request("a b", "a", &[], false).is_err());
    assert!(request("", "a", &[], false).is_err());
    // A scheme and a host have fields of their own.
    for target in ["http://a/", "https://a", "*"] {
        assert_eq!(request(target, "a", &[], false).err(), Some(HeadError::Target), "{target}");
    }
}

#[test]
fn lengths_of_responses() {
    assert_eq!(length_of(200, &[("content-length", "3")], true), BodyLength::Known(3));
    assert_eq!(length_of(200, &[], true), BodyLength::Chunked);
    assert_eq!(length_of(200, &[], false), BodyLength::Known(0));
    assert_eq!(length_of(204, &[], false), BodyLength::None);
    assert_eq!(
        response(200, &[("transfer-encoding", "chunked")], true).err(),
        Some(HeadError::TransferEncoding)
    );
    assert_eq!(response(200, &[("content-length", "1, 1")], true).err(), Some(HeadError::ContentLength));
    let head = response(200, &[], true).expect("a response");
    assert_eq!((head.reason(), head.keep_alive, head.is_interim()), (&b"Fine"[..], true, false));
}

fn written(length: BodyLength, version: HttpVersion, keep_alive: bool) -> String {
    let head = response(200, &[("x", "y"), ("connection", "z"), ("z", "hop")], true).expect("a response");
    let mut out = Vec::new();
    write::response(&mut out, &head, write::ResponseFraming { length, version, keep_alive });
    String::from_utf8(out).expect("text")
}

#[test]
fn each_framing_is_written_for_each_client() {
    use BodyLength::{Chunked, Known, UntilClose};
    assert_eq!(
        written(Known(12), HttpVersion::Http11, true),
        "HTTP/1.1 200 Fine\r\nx: y\r\nContent-Length: 12\r\n\r\n"
    );
    assert_eq!(
        written(Chunked, HttpVersion::Http11, false),
        "HTTP/1.1 200 Fine\r\nx: y\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        written(Known(0), HttpVersion::Http10, true),
        "HTTP/1.1 200 Fine\r\nx: y\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    );
    assert_eq!(
        written(UntilClose, HttpVersion::Http10, false),
        "HTTP/1.1 200 Fine\r\nx: y\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn interim_responses_have_no_framing() {
    let mut head = ResponseHead::default();
    let early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: upgrade\r\nUpgrade: w\r\n\r\n";
    let len = head.read(early, &mut HeadEnd::default(), false, &HttpLimits::default());
    assert_eq!((len, head.is_interim()), (Ok(Some(early.len())), true));
    let mut out = Vec::new();
    write::interim(&mut out, &head);
    assert_eq!(String::from_utf8_lossy(&out), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
}

#[test]
fn a_switch_of_protocols_keeps_its_two_fields() {
    let mut head = ResponseHead::default();
    let switching =
        b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
    head.read(switching, &mut HeadEnd::default(), false, &HttpLimits::default()).expect("a head");
    let mut out = Vec::new();
    write::switching(&mut out, &head);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "HTTP/1.1 101 Go\r\nSec-WebSocket-Accept: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
}

#[test]
fn what_is_written_in_chunks_is_read_again() {
    let mut trailers = FieldList::default();
    trailers.push(b"X-Sum", b"1");
    let mut out = Vec::new();
    write::chunk_start(&mut out, 26);
    out.extend_from_slice(b"abcdefghijklmnopqrstuvwxyz\r\n");
    write::chunks_end(&mut out, &trailers);
    assert!(out.starts_with(b"1a\r\n") && out.ends_with(b"\r\n0\r\nX-Sum: 1\r\n\r\n"));
    let (mut body, limits, mut at, mut data) =
        (BodyDecoder::new(BodyLength::Chunked), HttpLimits::default(), 0, Vec::new());
    let end = loop {
        match body.next(&out[at..], &limits).expect("a body") {
            Piece::Data { skip, len } => {
                data.extend_from_slice(&out[at + skip..at + skip + len]);
                at += skip + len;
            }
            Piece::End { skip } => break at + skip,
            Piece::More { .. } => panic!("{}", out[at..].escape_ascii()),
        }
    };
    assert_eq!((end, data.len()), (out.len(), 26));
    assert_eq!(body.trailers.iter().map(|field| field.value).collect::<Vec<_>>(), [&b"1"[..]]);
    // Asked again, an ended body has nothing more.
    assert_eq!(body.next(b"rest", &limits), Ok(Piece::End { skip: 0 }));
}

#[test]
fn an_empty_line_before_a_head_is_nothing() {
    let (mut head, mut end, limits) = (RequestHead::default(), HeadEnd::default(), HttpLimits::default());
    assert!(!end.has_begun());
    assert_eq!(head.read(b"\r\n", &mut end, &limits), Ok(None));
    assert!(!end.has_begun());
    assert_eq!(head.read(b"\r\nG", &mut end, &limits), Ok(None));
    assert!(end.has_begun());
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let heads = HeadError::ALL.iter().map(|error| error.reason());
    let bodies = BodyError::ALL.iter().map(|error| error.reason());
    let mut names: Vec<_> = heads.chain(bodies).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(all > 20 && names.len() == all, "{names:?}");
    assert!(names.iter().all(|name| {
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    }));
}

#[test]
fn faults_are_answered_by_their_status() {
    for (error, status) in [
        (HeadError::TooLong, 431),
        (HeadError::TooManyFields, 431),
        (HeadError::TargetTooLong, 414),
        (HeadError::Version, 505),
        (HeadError::TwoLengths, 400),
    ] {
        assert_eq!(error.status(), status, "{error}");
    }
}

#[test]
fn the_fields_that_name_the_client_are_known_however_they_are_written() {
    for name in ["Forwarded", "x-forwarded-for", "X-Forwarded-Proto", "X-FORWARDED-HOST"] {
        assert!(FieldName::of(name.as_bytes()).names_the_client(), "{name}");
    }
    for name in ["Host", "Forward", "Accept"] {
        assert!(!FieldName::of(name.as_bytes()).names_the_client(), "{name}");
    }
}
