//! Heads and bodies, well and badly formed; every one at every cut.

use proptest::prelude::*;

use super::*;
use crate::fields::{FieldList, FieldName};

const NO_BODY: &str = "\r\n";

fn read(input: &[u8]) -> Result<Option<(usize, RequestHead)>, HeadError> {
    let mut head = RequestHead::default();
    let len = head.read(input, &mut HeadEnd::default(), &HttpLimits::default())?;
    Ok(len.map(|len| (len, head)))
}

fn read_response(input: &[u8], is_head: bool) -> Result<Option<(usize, ResponseHead)>, HeadError> {
    let mut head = ResponseHead::default();
    let len = head.read(input, &mut HeadEnd::default(), is_head, &HttpLimits::default())?;
    Ok(len.map(|len| (len, head)))
}

/// As [`read`], but the input comes byte by byte.
fn read_slowly(input: &[u8]) -> Result<Option<(usize, RequestHead)>, HeadError> {
    let (mut head, mut end) = (RequestHead::default(), HeadEnd::default());
    for cut in 0..=input.len() {
        if let Some(len) = head.read(&input[..cut], &mut end, &HttpLimits::default())? {
            return Ok(Some((len, head)));
        }
    }
    Ok(None)
}

fn refusal(input: &str) -> HeadError {
    let error = read(input.as_bytes()).expect_err(input);
    assert_eq!(read_slowly(input.as_bytes()).expect_err(input), error, "{input:?}");
    error
}

fn request(fields: &str) -> RequestHead {
    let text = format!("POST /path?query HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    read(text.as_bytes()).expect(fields).expect("whole").1
}

fn refused(fields: &str) -> HeadError {
    refusal(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

fn response(text: &str) -> ResponseHead {
    read_response(text.as_bytes(), false).expect(text).expect("whole").1
}

#[test]
fn a_request_is_its_parts() {
    let text = "GET /a?b=c HTTP/1.1\r\nHost: a.example:8443\r\nAccept:  */* \t\r\nEmpty:\r\n\r\nGET /next";
    let (len, head) = read(text.as_bytes()).unwrap().unwrap();
    assert_eq!(&text[len..], "GET /next");
    assert_eq!(
        (head.method(), head.target(), head.host()),
        (&b"GET"[..], &b"/a?b=c"[..], &b"a.example:8443"[..])
    );
    assert_eq!((head.version, head.length, head.keep_alive), (HttpVersion::Http11, BodyLength::None, true));
    let values: Vec<_> = head.fields.iter().map(|field| (field.spelt, field.value)).collect();
    assert_eq!(values[1..], [(&b"Accept"[..], &b"*/*"[..]), (b"Empty", b"")]);
}

#[test]
fn a_head_may_come_in_any_number_of_pieces() {
    let text = "\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    let (len, head) = read_slowly(text.as_bytes()).unwrap().unwrap();
    assert_eq!((&text[len..], head.length, head.method()), ("abc", BodyLength::Known(3), &b"POST"[..]));
    for cut in 0..len {
        assert!(read(&text.as_bytes()[..cut]).unwrap().is_none(), "{cut}");
    }
}

#[test]
fn memory_is_used_again() {
    let (mut head, limits) = (RequestHead::default(), HttpLimits::default());
    for round in 0..3 {
        let text = format!("GET /{round} HTTP/1.1\r\nHost: a{round}\r\n\r\n");
        head.read(text.as_bytes(), &mut HeadEnd::default(), &limits).unwrap().unwrap();
        assert_eq!(head.target(), format!("/{round}").as_bytes());
        assert_eq!(head.host(), format!("a{round}").as_bytes());
        assert_eq!(head.fields.len(), 1);
    }
}

#[test]
fn lengths_of_requests() {
    assert_eq!(request("").length, BodyLength::None);
    assert_eq!(request("Content-Length: 0\r\n").length, BodyLength::Known(0));
    assert_eq!(request("content-length:18 \r\n").length, BodyLength::Known(18));
    assert_eq!(request("Content-Length: 9223372036854775807\r\n").length, BodyLength::Known(i64::MAX as u64));
    assert_eq!(request("Transfer-Encoding: Chunked\r\n").length, BodyLength::Chunked);
}

#[test]
fn lengths_that_could_be_read_in_two_ways_are_refused() {
    for value in [
        "",
        "+1",
        "-1",
        "1 1",
        "1,1",
        "1, 1",
        "0x1",
        "1.0",
        "1e1",
        "9223372036854775808",
        "00000000000000000001",
    ] {
        assert_eq!(refused(&format!("Content-Length: {value}\r\n")), HeadError::ContentLength, "{value}");
    }
    assert_eq!(refused("Content-Length: 1\r\nContent-Length: 1\r\n"), HeadError::ContentLength);
    assert_eq!(refused("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), HeadError::TwoLengths);
    assert_eq!(refused("Transfer-Encoding: identity\r\nContent-Length: 1\r\n"), HeadError::TwoLengths);
    for value in [
        "",
        "identity",
        "gzip, chunked",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
    ] {
        assert_eq!(
            refused(&format!("Transfer-Encoding: {value}\r\n")),
            HeadError::TransferEncoding,
            "{value}"
        );
    }
    assert_eq!(
        refused("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        HeadError::TransferEncoding
    );
    assert_eq!(refusal("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), HeadError::TransferEncoding);
}

#[test]
fn fields_that_could_be_read_in_two_ways_are_refused() {
    for field in [
        "Content-Length : 1",
        " Content-Length: 1",
        "A: b\r\n c",
        "A: b\r\n\tc",
        "A",
        ": b",
        "A: \0",
        "A: b\rc",
        "A: \u{b}",
        "A\u{e4}: b",
        "A(: b",
        "A b: c",
        "A\t: b",
        "A: \u{7f}",
    ] {
        assert_eq!(refused(&format!("{field}\r\n")), HeadError::Field, "{field:?}");
    }
    assert_eq!(refused("A: b\nC: d\r\n"), HeadError::BareLf);
    assert_eq!(refusal("GET / HTTP/1.1\nHost: a\n\n"), HeadError::BareLf);
    assert_eq!(refusal("\nGET / HTTP/1.1\r\n"), HeadError::BareLf);
    assert_eq!(refusal("\r\n\r\nGET / HTTP/1.1\r\n"), HeadError::EmptyLines);
}

#[test]
fn first_lines_that_could_be_read_in_two_ways_are_refused() {
    for (line, error) in [
        ("GET  / HTTP/1.1", HeadError::FirstLine),
        (" GET / HTTP/1.1", HeadError::FirstLine),
        ("GET\t/ HTTP/1.1", HeadError::FirstLine),
        ("GET / HTTP/1.1 ", HeadError::Field),
        ("GET /a b HTTP/1.1", HeadError::Version),
        ("GET / HTTP/1.2", HeadError::Version),
        ("GET / HTTP/2.0", HeadError::Version),
        ("GET / http/1.1", HeadError::Version),
        ("GET /", HeadError::FirstLine),
        ("G(T / HTTP/1.1", HeadError::FirstLine),
        ("GET /\u{e4} HTTP/1.1", HeadError::Target),
        ("GET /# HTTP/1.1", HeadError::Target),
        ("GET http://a/x#y HTTP/1.1", HeadError::Target),
        ("GET http://a#y HTTP/1.1", HeadError::Target),
        ("GET a HTTP/1.1", HeadError::Target),
        ("GET * HTTP/1.1", HeadError::Target),
        ("CONNECT a:443 HTTP/1.1", HeadError::Target),
        ("CONNECT /x HTTP/1.1", HeadError::Target),
        ("CONNECT http://a/ HTTP/1.1", HeadError::Target),
        ("connect / HTTP/1.1", HeadError::Target),
        ("GET ftp://a/ HTTP/1.1", HeadError::Target),
        ("GET http://b/ HTTP/1.1", HeadError::HostDisagrees),
        ("GET http://a:80/ HTTP/1.1", HeadError::HostDisagrees),
        ("GET http://user@a/ HTTP/1.1", HeadError::HostInvalid),
        ("GET http:///x HTTP/1.1", HeadError::HostInvalid),
    ] {
        let text = format!("{line}\r\nHost: a\r\n\r\n");
        assert_eq!(read(text.as_bytes()).expect_err(line), error, "{line}");
        assert_eq!(read_slowly(text.as_bytes()).expect_err(line), error, "{line}");
    }
}

#[test]
fn a_whole_url_is_a_path_on_that_host() {
    for (line, path) in [
        ("GET http://A/x?y", "/x?y"),
        ("GET HTTPS://a", "/"),
        ("GET http://a?b", "/?b"),
        ("OPTIONS http://a", "*"),
        ("OPTIONS *", "*"),
    ] {
        let text = format!("{line} HTTP/1.1\r\nHost: a{NO_BODY}\r\n");
        let (_, head) = read(text.as_bytes()).expect(line).expect("whole");
        assert_eq!(head.target(), path.as_bytes(), "{line}");
        assert!(head.host().eq_ignore_ascii_case(b"a"));
    }
}

#[test]
fn there_is_one_host() {
    let with = |fields: &str| format!("GET / HTTP/1.1\r\n{fields}\r\n");
    assert_eq!(refusal(&with("")), HeadError::HostMissing);
    assert_eq!(refusal(&with("Host: a\r\nHost: a\r\n")), HeadError::HostRepeated);
    for host in ["", "a b", "a@b", "a,b", "a/b", "a:x"] {
        assert_eq!(refusal(&with(&format!("Host: {host}\r\n"))), HeadError::HostInvalid, "{host}");
    }
    let (_, head) = read(b"GET / HTTP/1.0\r\n\r\n").unwrap().unwrap();
    assert_eq!(head.host(), b"");
}

#[test]
fn connections_are_kept_as_both_sides_say() {
    let keeps = |version: &str, connection: &str| {
        let text = format!("GET / {version}\r\nHost: a\r\n{connection}\r\n");
        read(text.as_bytes()).unwrap().unwrap().1.keep_alive
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(!keeps("HTTP/1.1", "Connection: x, Close\r\n"));
    assert!(!keeps("HTTP/1.0", ""));
    assert!(keeps("HTTP/1.0", "Connection: Keep-Alive\r\n"));
    assert!(!keeps("HTTP/1.0", "Connection: keep-alive\r\nConnection: close\r\n"));
}

#[test]
fn upgrades_are_asked_for_by_two_fields_and_never_to_http2() {
    let asks = |fields: &str| request(fields).wants_upgrade;
    assert!(asks("Connection: Upgrade\r\nUpgrade: websocket\r\n"));
    assert!(asks("Connection: keep-alive, Upgrade\r\nUpgrade: a/1, b\r\n"));
    assert!(!asks("Upgrade: websocket\r\n"));
    assert!(!asks("Connection: upgrade\r\n"));
    assert!(!asks("Connection: upgrade\r\nUpgrade: h2c\r\n"));
    assert!(!asks("Connection: upgrade\r\nUpgrade: websocket, H2C\r\n"));
    assert!(!asks("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n"));
}

#[test]
fn one_expectation_is_known() {
    assert_eq!(request("").expectation, Expectation::None);
    assert_eq!(request("Expect: 100-Continue\r\n").expectation, Expectation::Continue);
    assert_eq!(request("Expect: x\r\n").expectation, Expectation::Unknown);
    assert_eq!(request("Expect: 100-continue\r\nExpect: 100-continue\r\n").expectation, Expectation::Unknown);
    let (_, head) = read(b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").unwrap().unwrap();
    assert_eq!(head.expectation, Expectation::None);
}

#[test]
fn what_changes_nothing_the_second_time_is_told_by_the_method() {
    for (method, is_idempotent) in [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("TRACE", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
        ("get", false),
    ] {
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (_, head) = read(text.as_bytes()).expect(method).expect("whole");
        assert_eq!(head.is_idempotent(), is_idempotent, "{method}");
    }
}

#[test]
fn heads_have_limits() {
    let limits = HttpLimits { head_bytes: 100, target_bytes: 20, fields: 2, ..HttpLimits::default() };
    let read = |text: &str| RequestHead::default().read(text.as_bytes(), &mut HeadEnd::default(), &limits);
    let long = "x".repeat(90);
    assert_eq!(read(&format!("GET /{long}{long}")), Err(HeadError::TargetTooLong));
    assert_eq!(
        read(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..20])),
        Err(HeadError::TargetTooLong)
    );
    assert_eq!(read(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}")), Err(HeadError::TooLong));
    assert_eq!(read(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")), Err(HeadError::TooLong));
    assert_eq!(read("GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY:\r\n\r\n"), Err(HeadError::TooManyFields));
    assert!(read("GET / HTTP/1.1\r\nHost: a\r\nX:\r\n\r\n").unwrap().is_some());
    assert_eq!(HeadError::TooLong.status(), 431);
    assert_eq!(HeadError::TargetTooLong.status(), 414);
}

#[test]
fn lengths_of_responses() {
    for (text, is_head, length, keep_alive) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false, BodyLength::Known(3), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, BodyLength::None, true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false, BodyLength::Chunked, true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, BodyLength::None, true),
        ("HTTP/1.1 200\r\n\r\n", false, BodyLength::UntilClose, false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", false, BodyLength::Known(3), false),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
            false,
            BodyLength::Known(3),
            true,
        ),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", false, BodyLength::None, true),
        (
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
            false,
            BodyLength::None,
            false,
        ),
        ("HTTP/1.1 100 Continue\r\n\r\n", false, BodyLength::None, true),
    ] {
        let (_, head) = read_response(text.as_bytes(), is_head).expect(text).expect("whole");
        assert_eq!((head.length, head.keep_alive), (length, keep_alive), "{text}");
    }
    for (status, is_head, announced) in [
        ("200 OK", true, Some(7)),
        ("304 Not Modified", true, Some(7)),
        ("304 Not Modified", false, Some(7)),
        ("200 OK", false, None),
        ("204 No Content", false, None),
    ] {
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\n");
        let (_, head) = read_response(text.as_bytes(), is_head).expect(status).expect("whole");
        assert_eq!(head.announced, announced, "{status}, to HEAD: {is_head}");
    }
}

#[test]
fn responses_are_held_to_the_same() {
    for (text, error) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", HeadError::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", HeadError::TwoLengths),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", HeadError::TransferEncoding),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HeadError::TransferEncoding),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", HeadError::Field),
        ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", HeadError::Field),
        ("HTTP/1.1 200 OK\nA: b\n\n", HeadError::BareLf),
        ("HTTP/2 200 OK\r\n\r\n", HeadError::Version),
        ("HTTP/1.1 20 OK\r\n\r\n", HeadError::Status),
        ("HTTP/1.1 099 OK\r\n\r\n", HeadError::Status),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", HeadError::EmptyLines),
        ("SSH-2.0-OpenSSH\r\n\r\n", HeadError::Version),
    ] {
        assert_eq!(read_response(text.as_bytes(), false).expect_err(text), error, "{text:?}");
    }
}

/// Takes a body that comes in pieces of `step` bytes: its data, its trailers, and how much of the input was its own.
fn decode(
    length: BodyLength,
    input: &[u8],
    step: usize,
) -> Result<Option<(Vec<u8>, FieldList, usize)>, BodyError> {
    let (mut decoder, mut data, limits) = (BodyDecoder::new(length), Vec::new(), HttpLimits::default());
    let (mut start, mut end) = (0, 0);
    loop {
        match decoder.next(&input[start..end], &limits)? {
            Piece::Data { skip, len } => {
                assert!(len > 0, "a piece of data without data, after {start} bytes");
                data.extend_from_slice(&input[start + skip..start + skip + len]);
                start += skip + len;
            }
            Piece::End { skip } => return Ok(Some((data, decoder.trailers, start + skip))),
            Piece::More { skip } => {
                start += skip;
                if end == input.len() {
                    return Ok(None);
                }
                end = (end + step).min(input.len());
            }
        }
    }
}

fn chunked(input: &str) -> Result<Option<(String, usize)>, BodyError> {
    let whole = decode(BodyLength::Chunked, input.as_bytes(), input.len().max(1));
    let slow = decode(BodyLength::Chunked, input.as_bytes(), 1);
    assert_eq!(whole.as_ref().err(), slow.as_ref().err(), "{input:?}");
    let (whole, slow) = (whole?, slow?);
    let told = |body: Option<(Vec<u8>, FieldList, usize)>| {
        body.map(|(data, _, len)| (String::from_utf8(data).unwrap(), len))
    };
    let (whole, slow) = (told(whole), told(slow));
    assert_eq!(whole, slow, "{input:?}");
    Ok(whole)
}

#[test]
fn chunks_are_put_together() {
    for (input, data) in [
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\nGET", "hello"),
        ("1\r\na\r\nA\r\n0123456789\r\n00\r\n\r\n", "a0123456789"),
        ("3;a=\"b\" ;c\r\nabc\r\n0;last\r\nA: b\r\n\r\n", "abc"),
    ] {
        let (found, len) = chunked(input).unwrap().expect(input);
        assert_eq!(found, data);
        assert!(input[len..].is_empty() || &input[len..] == "GET", "{input:?}");
    }
}

#[test]
fn unfinished_bodies_have_no_end() {
    let whole = "5;x\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for cut in 0..whole.len() {
        assert_eq!(chunked(&whole[..cut]), Ok(None), "{cut}");
    }
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused() {
    for (input, error) in [
        ("\r\n", BodyError::ChunkSize),
        ("x\r\n", BodyError::ChunkSize),
        ("+1\r\na", BodyError::ChunkSize),
        ("-1\r\na", BodyError::ChunkSize),
        (" 1\r\na", BodyError::ChunkSize),
        ("1 \r\na", BodyError::ChunkSize),
        ("1 ;x\r\na", BodyError::ChunkSize),
        ("0x1\r\na", BodyError::ChunkSize),
        ("1\na", BodyError::ChunkSize),
        ("1\rX", BodyError::ChunkSize),
        (";x\r\n", BodyError::ChunkSize),
        ("8000000000000000\r\n", BodyError::ChunkSize),
        ("10000000000000000\r\n", BodyError::ChunkSize),
        ("00000000000000001\r\n", BodyError::ChunkSize),
        ("1;a\nb\r\n", BodyError::ChunkExtension),
        ("1;\0\r\n", BodyError::ChunkExtension),
        ("1;\u{7f}\r\n", BodyError::ChunkExtension),
        ("1;a\rb", BodyError::ChunkSize),
        ("1\r\nab\r\n", BodyError::ChunkEnd),
        ("1\r\na\n0\r\n", BodyError::ChunkEnd),
        ("1\r\na\rX", BodyError::ChunkEnd),
        ("0\r\nA : b\r\n\r\n", BodyError::Trailers),
        ("0\r\nA: b\n\n", BodyError::Trailers),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", BodyError::Trailers),
    ] {
        assert_eq!(chunked(input), Err(error), "{input:?}");
    }
}

#[test]
fn what_surrounds_chunks_has_limits() {
    let long = "x".repeat(5000);
    assert_eq!(chunked(&format!("1;{long}\r\na\r\n")), Err(BodyError::ChunkExtensionsTooLong));
    assert_eq!(chunked(&"1;0123456789\r\na\r\n".repeat(500)), Err(BodyError::ChunkExtensionsTooLong));
    assert_eq!(chunked(&format!("0\r\nA: {long}{long}")), Err(BodyError::TrailersTooLong));
    assert_eq!(chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(101))), Err(BodyError::TrailersTooLong));
}

#[test]
fn trailers_may_not_say_what_heads_say() {
    let input = b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\nHost: b\r\nX-Forwarded-For: 1\r\nCookie: x\r\nDigest: y\r\n\r\n";
    let (_, trailers, _) = decode(BodyLength::Chunked, input, input.len()).unwrap().unwrap();
    let names: Vec<_> = trailers.iter().map(|field| field.spelt).collect();
    assert_eq!(names, [b"X-Sum".as_slice(), b"Digest"]);
}

#[test]
fn bodies_of_known_length_end_there() {
    assert_eq!(decode(BodyLength::Known(3), b"abcGET", 6).unwrap().unwrap().0, b"abc");
    assert_eq!(decode(BodyLength::None, b"GET", 3).unwrap().unwrap().2, 0);
    assert!(decode(BodyLength::Known(4), b"abc", 1).unwrap().is_none());
    assert!(decode(BodyLength::UntilClose, b"abc", 1).unwrap().is_none());
    assert!(BodyDecoder::new(BodyLength::UntilClose).ends_with_the_stream());
    assert!(!BodyDecoder::new(BodyLength::Chunked).ends_with_the_stream());
}

#[test]
fn what_is_written_is_what_was_read_with_framing_of_our_own() {
    let forwarding = fields::forwarded::Forwarding {
        client: "192.0.2.1".parse().unwrap(),
        proto: "https",
        host: b"a",
        client_subject: None,
        is_trusted: false,
        tells_the_client: false,
    };
    let head = request(
        "tRaNsfer-encoding: cHunked\r\nX: y\r\nTE: trailers\r\nConnection: te\r\nExpect: 100-continue\r\n",
    );
    let mut out = Vec::new();
    write::request(&mut out, &head, &forwarding, head.length);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "POST /path?query HTTP/1.1\r\nHost: a\r\nX: y\r\nX-Forwarded-Proto: https\r\nTransfer-Encoding: chunked\r\n\
         Expect: 100-continue\r\nTE: trailers\r\nConnection: te\r\n\r\n"
    );
    let head = response("HTTP/1.0 200 Fine\r\nA: b\r\nConnection: keep-alive\r\ncontent-length: 3\r\n\r\n");
    let mut out = Vec::new();
    let answer =
        write::ResponseFraming { length: head.length, version: HttpVersion::Http11, keep_alive: true };
    write::response(&mut out, &head, answer);
    assert_eq!(String::from_utf8(out).unwrap(), "HTTP/1.1 200 Fine\r\nA: b\r\nContent-Length: 3\r\n\r\n");
}

fn written(fields: &str) -> String {
    let forwarding = fields::forwarded::Forwarding {
        client: "192.0.2.1".parse().unwrap(),
        proto: "https",
        host: b"a",
        client_subject: None,
        is_trusted: false,
        tells_the_client: false,
    };
    let head = request(fields);
    let mut out = Vec::new();
    write::request(&mut out, &head, &forwarding, head.length);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_expectation_goes_on_only_with_a_body() {
    for (fields, goes_on) in [
        ("Content-Length: 1\r\nExpect: 100-continue\r\n", true),
        ("Expect: 100-continue\r\n", false),
        ("Content-Length: 1\r\n", false),
    ] {
        assert_eq!(written(fields).contains("\r\nExpect: 100-continue\r\n"), goes_on, "{fields:?}");
    }
}

#[test]
fn white_space_around_a_value_stays() {
    let plain = written("A: b\r\nC: d\r\n");
    for fields in ["A: b \r\nC: d\r\n", "A: b\t \r\nC: d  \r\n", "A:  b\r\nC:d\r\n"] {
        assert_eq!(written(fields), plain, "{fields:?}");
    }
}

/// Pieces of which requests are made, good and bad.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "GET",
        "POST",
        " ",
        "/",
        "/a?b",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: a\r\n",
        "Host: b:1\r\n",
        "\r\n",
        "\n",
        "\r",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "X: y\r\n",
        " folded\r\n",
        "5\r\nhello\r\n",
        "0\r\n",
        "hello",
        "\0",
        "http://a/",
        "*",
        "OPTIONS",
        ": ",
        "Expect: 100-continue\r\n",
    ])
}

fn pieces() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec!["GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\n", ""]);
    (line, prop::collection::vec(piece(), 0..12))
        .prop_map(|(line, pieces)| format!("{line}{}\r\n\r\n", pieces.concat()))
}

proptest! {
    #[test]
    fn pieces_do_not_change_what_is_read(text in pieces()) {
        let (whole, slow) = (read(text.as_bytes()), read_slowly(text.as_bytes()));
        match (whole, slow) {
            (Ok(Some((len, head))), Ok(Some((slow_len, slow_head)))) => {
                prop_assert_eq!(len, slow_len);
                prop_assert_eq!(head.target(), slow_head.target());
                prop_assert_eq!(head.length, slow_head.length);
            }
            (whole, slow) => prop_assert_eq!(whole.map(|_| ()), slow.map(|_| ())),
        }
    }

    /// A written message is parsed back with the same meaning: nothing in it changes its framing.
    #[test]
    fn what_is_written_says_the_same(text in pieces()) {
        let Ok(Some((_, head))) = read(text.as_bytes()) else { return Ok(()) };
        let forwarding = fields::forwarded::Forwarding {
            client: "2001:db8::1".parse().unwrap(), proto: "https", host: head.host(), client_subject: None, is_trusted: true, tells_the_client: true,
        };
        let mut out = Vec::new();
        write::request(&mut out, &head, &forwarding, head.length);
        if head.version == HttpVersion::Http10 && head.host().is_empty() { return Ok(()); }
        let (len, again) = read(&out).unwrap().unwrap();
        prop_assert_eq!(len, out.len());
        prop_assert_eq!((again.method(), again.target(), again.host()), (head.method(), head.target(), head.host()));
        prop_assert_eq!(again.length, head.length);
        prop_assert!(again.fields.values(FieldName::Forwarded).count() == 1);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = read_response(&bytes, false);
        let whole = decode(BodyLength::Chunked, &bytes, bytes.len().max(1)).map(|body| body.map(|(data, _, len)| (data, len)));
        let slow = decode(BodyLength::Chunked, &bytes, 1).map(|body| body.map(|(data, _, len)| (data, len)));
        prop_assert_eq!(whole, slow);
    }

    #[test]
    fn chunks_of_any_sizes_are_put_together(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..8), step in 1_usize..40) {
        let mut input = Vec::new();
        for chunk in &chunks {
            write::chunk_start(&mut input, chunk.len());
            input.extend_from_slice(chunk);
            input.extend_from_slice(b"\r\n");
        }
        write::chunks_end(&mut input, &FieldList::default());
        let (data, _, len) = decode(BodyLength::Chunked, &input, step).unwrap().unwrap();
        prop_assert_eq!(data, chunks.concat());
        prop_assert_eq!(len, input.len());
    }
}
