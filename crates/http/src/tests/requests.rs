//! Heads of requests.

use super::*;

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
        ("GET /a b HTTP/1.1", HeadError::FirstLine),
        ("GET /a b HTTP/1.2", HeadError::FirstLine),
        ("GET / HTTP/1", HeadError::FirstLine),
        ("GET / HTTP/ 1.1", HeadError::FirstLine),
        ("GET / HTTP/1.20", HeadError::FirstLine),
        ("GET /# HTTP/1.2", HeadError::Target),
        ("GET / HTTP/2.0", HeadError::Version),
        ("GET / http/1.1", HeadError::FirstLine),
        ("GET /", HeadError::FirstLine),
        ("G(T / HTTP/1.1", HeadError::FirstLine),
        ("GET http://\u{e4}/ HTTP/1.1", HeadError::HostInvalid),
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

/// Each is compared with each field.
#[test]
fn connection_has_a_limited_number_of_options() {
    let with = |others: usize| {
        format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}close\r\n\r\n", "x,".repeat(others))
    };
    assert!(!read(with(63).as_bytes()).unwrap().unwrap().1.keep_alive);
    assert_eq!(refusal(&with(64)), HeadError::TooManyFields);
}

#[test]
fn higher_minor_versions_are_served_as_the_highest_known_one() {
    for minor in 2..=9 {
        let text = format!("GET /x HTTP/1.{minor}\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
        let (len, head) = read(text.as_bytes()).expect("served").expect("whole");
        assert_eq!((len, head.version, head.target()), (text.len(), HttpVersion::Http11, &b"/x"[..]));
        assert_eq!((head.length, head.keep_alive), (BodyLength::Known(2), true));
    }
}

#[test]
fn a_target_may_be_utf8_and_nothing_else_beyond_ascii() {
    let text = "GET /\u{e4}?q=\u{1f980} HTTP/1.1\r\nHost: a\r\n\r\n";
    let (_, head) = read(text.as_bytes()).expect("taken").expect("whole");
    assert_eq!(head.target(), "/\u{e4}?q=\u{1f980}".as_bytes());
    for target in [&b"/\xe4"[..], b"/\xc3", b"/\xed\xa0\x80"] {
        let text = [b"GET ", target, b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(read(&text).expect_err("refused"), HeadError::FirstLine, "{target:?}");
        let mut http2 = RequestHead::default();
        http2.begin_http2(b"GET", target, b"a");
        assert_eq!(http2.finish_http2(false), Err(HeadError::Target), "{target:?}");
    }
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
    assert!(asks("Connection: upgrade\r\nUpgrade: tailscale-control-protocol\r\nContent-Length: 0\r\n"));
    assert!(asks("Connection: upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 1\r\n"));
    assert!(!asks("Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n"));
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
