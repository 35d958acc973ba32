//! Messages as truepeer writes them for the next hop.

use super::*;

#[test]
fn what_is_written_is_what_was_read_with_framing_of_our_own() {
    let fields =
        "tRaNsfer-encoding: cHunked\r\nX: y\r\nTE: trailers\r\nConnection: te\r\nExpect: 100-continue\r\n";
    assert_eq!(
        written(fields),
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

/// RFC 9110 15.5.22.
#[test]
fn only_426_says_which_protocol_is_required() {
    for (status, says) in [("426 Upgrade Required", true), ("200 OK", false)] {
        let head = response(&format!(
            "HTTP/1.1 {status}\r\nUpgrade: x/1\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n"
        ));
        let mut out = Vec::new();
        let answer =
            write::ResponseFraming { length: head.length, version: HttpVersion::Http11, keep_alive: true };
        write::response(&mut out, &head, answer);
        let written = String::from_utf8(out).unwrap();
        assert_eq!(written.contains("\r\nConnection: upgrade\r\nUpgrade: x/1\r\n"), says, "{written}");
    }
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
