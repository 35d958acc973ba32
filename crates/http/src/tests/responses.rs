//! Heads of responses.

use super::*;

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
fn a_reason_is_kept_in_any_encoding() {
    for reason in ["OK", "", "Nicht gefunden \u{e4}\u{f6}", " two  words "] {
        let text = format!("HTTP/1.1 404 {reason}\r\nContent-Length: 0\r\n\r\n");
        let (_, head) = read_response(text.as_bytes(), false).expect(reason).expect("whole");
        assert_eq!(head.reason(), reason.as_bytes());
    }
    let latin = b"HTTP/1.1 200 fran\xe7ais\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(read_response(latin, false).unwrap().expect("whole").1.reason(), b"fran\xe7ais");
    let (_, none) =
        read_response(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false).unwrap().expect("whole");
    assert_eq!(none.reason(), b"");
}

#[test]
fn higher_minor_versions_are_read_as_the_highest_known_one() {
    for minor in 2..=9 {
        let text = format!("HTTP/1.{minor} 200 OK\r\nContent-Length: 2\r\n\r\n");
        let (len, head) = read_response(text.as_bytes(), false).expect("read").expect("whole");
        assert_eq!((len, head.status, head.reason()), (text.len(), 200, &b"OK"[..]));
        assert_eq!((head.length, head.keep_alive), (BodyLength::Known(2), true));
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
        ("HTTP/1.20 200 OK\r\n\r\n", HeadError::Version),
        ("HTTP/1.2\t200 OK\r\n\r\n", HeadError::Version),
        ("HTTP/1.1 20 OK\r\n\r\n", HeadError::Status),
        ("HTTP/1.1 099 OK\r\n\r\n", HeadError::Status),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", HeadError::EmptyLines),
        ("SSH-2.0-OpenSSH\r\n\r\n", HeadError::Version),
    ] {
        assert_eq!(read_response(text.as_bytes(), false).expect_err(text), error, "{text:?}");
    }
}
