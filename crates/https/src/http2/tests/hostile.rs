//! Requests that must not reach an origin, and floods that must stay cheap.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, DuplexStream, split};
use truepeer_http::http2::huffman_coded;

use super::frames::*;
use super::*;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")];

/// A `GET` with one field replaced, or with additional ones.
fn with(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut all: Vec<_> =
        GET.iter().filter(|(name, _)| !fields.iter().any(|(other, _)| other == name)).copied().collect();
    all.splice(0..0, fields.iter().filter(|(name, _)| name.starts_with(':')).copied());
    all.extend(fields.iter().filter(|(name, _)| !name.starts_with(':')).copied());
    block(&all)
}

/// Whether the first answer to a request is a refusal: 400, a reset of the stream, or the end of the
/// connection.
async fn is_refused(stream: &mut DuplexStream) -> bool {
    match next_of(stream, &[HEADERS, RST_STREAM, GOAWAY]).await {
        // The first block begins with a size of the dynamic table.
        Some(frame) if frame.kind == HEADERS => frame.payload.starts_with(&[NO_TABLE, STATUS_400]),
        _ => true,
    }
}

#[test]
fn ambiguous_requests_reach_no_origin() {
    let heads = [
        with(&[("transfer-encoding", "chunked")]),
        with(&[("connection", "close")]),
        with(&[("keep-alive", "5")]),
        with(&[("upgrade", "websocket")]),
        with(&[("te", "gzip")]),
        with(&[("X-Upper", "1")]),
        with(&[("x-a", "1\r\ntransfer-encoding: chunked")]),
        with(&[("x-a", "1\n")]),
        with(&[("x-a", "1\0")]),
        with(&[("x-a: 1\r\nx-b", "1")]),
        with(&[("x-a:", "1")]),
        with(&[("x a", "1")]),
        with(&[("", "1")]),
        with(&[("content-length", "5"), ("content-length", "5")]),
        with(&[("content-length", "5, 5")]),
        with(&[("content-length", "+5")]),
        with(&[("content-length", "5")]),
        with(&[("host", "b")]),
        with(&[("host", "a"), ("host", "a")]),
        with(&[(":authority", "user@a")]),
        with(&[(":authority", "a b")]),
        with(&[(":path", "http://b/x")]),
        with(&[(":path", "x")]),
        with(&[(":path", "")]),
        with(&[(":path", "/x HTTP/1.1\r\nx-a: 1")]),
        with(&[(":path", "/a b")]),
        with(&[(":path", "*")]),
        with(&[(":method", "GE T")]),
        with(&[(":method", "CONNECT")]),
        with(&[(":method", "CONNECT"), (":protocol", "connect-udp")]),
        with(&[(":method", "CONNECT"), (":protocol", "websocket"), ("content-length", "0")]),
        with(&[(":method", "CONNECT"), (":protocol", "websocket"), ("upgrade", "other")]),
        with(&[(":protocol", "websocket")]),
        with(&[(":method", "connect")]),
        with(&[(":unknown", "1")]),
        with(&[(":path", "/a"), (":path", "/b")]),
        with(&[(":status", "200")]),
        [with(&[("x-a", "1")]), block(&[(":path", "/y")])].concat(),
        block(&GET[..3]),
        block(&GET[1..]),
        block(&[GET[0], GET[1], GET[3]]),
    ];
    for head in heads {
        let bed = bed(HttpSettings::default());
        let mut stream = connect(&bed);
        let said = String::from_utf8_lossy(&head).into_owned();
        bed.run(async move {
            let asked = [preface(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)].concat();
            assert!(send(&mut stream, &asked).await);
            assert!(is_refused(&mut stream).await, "{said:?}");
        });
        assert_eq!(bed.origin.dialled.get(), 0);
    }
}

/// RFC 9113 8.1.1: a malformed request is a stream error. The connection continues.
#[test]
fn invalid_pseudo_fields_end_their_stream() {
    let indexed = |more: &[(&str, &str)]| {
        // By the dynamic table: a literal with indexing, and its index in the next request.
        let mut bytes = block(&GET[..3]);
        for (name, value) in more {
            bytes.push(0x40);
            for text in [name, value] {
                bytes.push(u8::try_from(text.len()).unwrap());
                bytes.extend(text.as_bytes());
            }
        }
        bytes
    };
    let huffman = |text: &[u8]| {
        // RFC 7541 section 6.2.2 with index 4, `:path`; the codes of `/`, `x` and `#` are 011000, 1111001,
        // 111111111010.
        assert_eq!(text, b"/x#");
        [&block(&GET[..3])[..], &[0x04, 0x80 | 4, 0b0110_0011, 0b1100_1111, 0b1111_1101, 0b0111_1111]]
            .concat()
    };
    let no_authority = [(":method", "GET"), (":scheme", "ftp"), (":path", "/x"), ("host", "a")];
    let heads = [
        with(&[(":path", "/x#y")]),
        with(&[(":path", "/x?y#z")]),
        with(&[(":path", "#y")]),
        with(&[(":path", "/#")]),
        with(&[(":scheme", "ftp")]),
        with(&[(":scheme", "")]),
        with(&[(":scheme", "ws")]),
        block(&no_authority),
        block(&no_authority.map(|(name, value)| (name, if value == "ftp" { "" } else { value }))),
        indexed(&[(":path", "/x#y")]),
        huffman(b"/x#"),
    ];
    for head in heads {
        let bed = bed(HttpSettings::default());
        let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
        let said = String::from_utf8_lossy(&head).into_owned();
        bed.run(async move {
            let asked = [preface(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)].concat();
            assert!(send(&mut stream, &asked).await);
            let ended = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!(
                (ended.kind, ended.stream, ended.error_or_0()),
                (RST_STREAM, 1, PROTOCOL_ERROR),
                "{said:?}"
            );
            // The connection and its compression state still work.
            let asked = frame(HEADERS, END_HEADERS | END_STREAM, 3, &with(&[(":scheme", "HTTPS")]));
            assert!(send(&mut stream, &asked).await);
            assert!(until(&mut origin, "\r\n\r\n").await.starts_with("GET /x HTTP/1.1\r\nHost: a\r\n"));
            say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            let answer = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!((answer.kind, answer.stream), (HEADERS, 3), "{said:?}");
        });
        assert_eq!(bed.origin.dialled.get(), 1);
    }
}

/// A head whose path is coded in one of three ways: as it is, by Huffman's code, and to be kept in the
/// dynamic table.
fn with_path(path: &[u8], way: usize) -> Vec<u8> {
    let coded = huffman_coded(path);
    let (first, flag, text) = [(0x04, 0, path), (0x04, 0x80, &coded[..]), (0x44, 0x80, &coded[..])][way];
    [&block(&GET[..3])[..], &[first, flag | u8::try_from(text.len()).unwrap()], text].concat()
}

/// However they are coded and cut, the origin gets what was sent.
#[test]
fn paths_that_http1_takes_pass_over_http2() {
    let paths =
        ["/api/v1/query?query=up>0", "/a<b>c", "/`", "/>", "/?q={\"a\":1}", "/\u{e4}?q=\u{1f980}", "/plain"];
    let heads = paths.into_iter().flat_map(|path| (0..3).map(move |way| (path, way)));
    for (path, way) in heads {
        let bed = bed(HttpSettings::default());
        let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
        let reactor = bed.reactor.clone();
        bed.run(async move {
            let head = with_path(path.as_bytes(), way);
            assert!(send(&mut stream, &preface()).await);
            // In one piece; in two frames, the first padded and with a priority; byte by byte.
            let (start, rest) = head.split_at(head.len() - 2);
            let padded = [&[3][..], &[0, 0, 0, 0, 7], start, &[0; 3]].concat();
            let two = |stream| {
                let first = frame(HEADERS, END_STREAM | 0x28, stream, &padded);
                [first, frame(CONTINUATION, END_HEADERS, stream, rest)].concat()
            };
            let one = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &head);
            let pings = [frame(6, 0, 0, &[0; 8]), two(11), frame(6, 0, 0, &[0; 8])].concat();
            // The newest entry of the dynamic table, which is the path.
            let again =
                frame(HEADERS, END_HEADERS | END_STREAM, 13, &[&block(&GET[..3])[..], &[0x80 | 62]].concat());
            let sent =
                [(one(1), 1 << 16), (two(3), 1 << 16), (one(5), 1), (two(7), 1), (pings, 7), (again, 3)];
            for (number, (bytes, size)) in sent.into_iter().enumerate() {
                if number == 5 && way < 2 {
                    continue;
                }
                for piece in bytes.chunks(size) {
                    assert!(send(&mut stream, piece).await);
                    reactor.yield_now().await;
                    reactor.yield_now().await;
                }
                let asked = until(&mut origin, "\r\n\r\n").await;
                let line = format!("GET {path} HTTP/1.1\r\n");
                assert!(asked.starts_with(&line), "{path} {way} {number}: {asked}");
                say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
                let answer = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
                assert_eq!(answer.kind, HEADERS, "{path} {way} {number}");
            }
        });
    }
}

/// With a status where HTTP/1.1 has one.
#[test]
fn refused_requests_of_http2_are_counted() {
    for (head, kind, reason) in [
        (with_path(b"/a b", 0), HEADERS, "invalid_target"),
        (with_path(b"/a b", 1), HEADERS, "invalid_target"),
        (with_path(b"/\xe4", 0), HEADERS, "invalid_target"),
        (with_path(b"/a\r\nx: y", 0), HEADERS, "invalid_target"),
        (with_path(b"/\x02", 1), HEADERS, "invalid_target"),
        (with_path(b"/x>#", 1), RST_STREAM, "http2_malformed"),
        (with(&[("X-Upper", "1")]), RST_STREAM, "http2_malformed"),
        (with(&[("connection", "close")]), RST_STREAM, "http2_malformed"),
    ] {
        let bed = bed(HttpSettings::default());
        let mut stream = connect(&bed);
        let said: Rc<str> = String::from_utf8_lossy(&head).into();
        let (name, service) = (Rc::clone(&said), Rc::clone(&bed.service));
        bed.run(async move {
            let asked = [preface(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)].concat();
            assert!(send(&mut stream, &asked).await);
            let answer = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!(answer.kind, kind, "{name:?}");
            while !service.journal.refusals().contains_key(reason) {
                service.reactor.sleep(Duration::from_millis(5)).await;
            }
        });
        assert_eq!(bed.service.journal.refusals().get(reason), Some(&1), "{said:?}");
    }
}

/// Entries of the dynamic table keep their contents: an index alone repeats the fragment.
#[test]
fn a_fragment_from_the_dynamic_table_is_detected() {
    let bed = bed(HttpSettings::default());
    let mut stream = connect(&bed);
    bed.run(async move {
        let mut first = block(&GET[..3]);
        first.extend([0x44, 4]); // a literal with indexing whose name is static entry 4, `:path`
        first.extend(b"/x#y");
        let mut again = block(&GET[..3]);
        again.push(0x80 | 62); // the newest entry of the dynamic table
        let frames = [frame(HEADERS, END_HEADERS | END_STREAM, 1, &first), {
            // In pieces, padded and with a priority.
            let (start, rest) = again.split_at(5);
            let padded = [&[3][..], &[0, 0, 0, 0, 7], start, &[0; 3]].concat();
            [frame(HEADERS, END_STREAM | 0x28, 3, &padded), frame(CONTINUATION, END_HEADERS, 3, rest)]
                .concat()
        }];
        assert!(send(&mut stream, &[preface(), frames.concat()].concat()).await);
        for number in [1, 3] {
            let ended = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!((ended.kind, ended.stream, ended.error_or_0()), (RST_STREAM, number, PROTOCOL_ERROR));
        }
    });
    assert_eq!(bed.origin.dialled.get(), 0);
}

#[test]
fn pseudo_fields_in_trailers_end_their_stream_before_the_request_is_complete() {
    for trailer in [(":path", "/y"), (":status", "200"), (":authority", "b")] {
        let bed = bed(HttpSettings::default());
        let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
        bed.run(async move {
            let head = with(&[(":method", "POST"), ("te", "trailers")]);
            let trailers = block(&[trailer, ("x-sum", "1")]);
            let asked = [preface(), frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, 0, 1, b"four")];
            assert!(send(&mut stream, &asked.concat()).await);
            until(&mut origin, "four\r\n").await;
            assert!(send(&mut stream, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers)).await);
            let ended = next_of(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!((ended.kind, ended.error_or_0()), (RST_STREAM, PROTOCOL_ERROR), "{trailer:?}");
            let got = rest(&mut origin).await;
            assert_eq!(got, "", "the body has no end");
        });
    }
}

#[test]
fn a_body_of_the_wrong_length_never_completes_the_request() {
    for data in [&b"four"[..], b"sixsix"] {
        let bed = bed(HttpSettings::default());
        let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
        let dialled = Rc::clone(&bed.origin.dialled);
        bed.run(async move {
            let head = with(&[(":method", "POST"), ("content-length", "5")]);
            let asked = [preface(), frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, data)];
            assert!(send(&mut stream, &asked.concat()).await);
            assert!(is_refused(&mut stream).await);
            // The origin may have received the head, but no five bytes after it.
            if dialled.get() > 0 {
                let got = rest(&mut origin).await;
                let body = got.split("\r\n\r\n").nth(1);
                assert!(body.is_none_or(|body| body.len() < 5), "{got}");
            }
        });
        assert_eq!(
            bed.service.journal.refusals(),
            std::collections::BTreeMap::from([("http2_malformed", 1)])
        );
    }
}

/// Sends `bytes` repeatedly, and reads meanwhile, until the connection is ended because of it.
async fn flood(
    reactor: &Reactor,
    stream: DuplexStream,
    mut bytes: impl FnMut() -> Vec<u8> + 'static,
) -> Frame {
    let (mut from, mut to) = split(stream);
    let is_over = Rc::new(Cell::new(false));
    let seen = Rc::clone(&is_over);
    reactor.spawn(async move { while !seen.get() && to.write_all(&bytes()).await.is_ok() {} });
    let goaway = goaway(&mut from).await;
    is_over.set(true);
    goaway
}

async fn goaway(from: &mut (impl AsyncRead + Unpin)) -> Frame {
    let mut kept = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let len = from.read(&mut piece).await.unwrap();
        assert!(len > 0, "ended without a word");
        kept.extend_from_slice(&piece[..len]);
        while let Some((frame, len)) = parse(&kept) {
            kept.drain(..len);
            if frame.kind == GOAWAY {
                return frame;
            }
        }
    }
}

fn numbered(next: &mut u32) -> u32 {
    *next += 2;
    *next - 2
}

#[test]
fn rapid_resets_end_the_connection() {
    let bed = bed(HttpSettings::default());
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let (mut first, mut id) = (preface(), 1);
    let goaway = bed.run(async move {
        flood(&reactor, stream, move || {
            let id = numbered(&mut id);
            let reset = frame(RST_STREAM, 0, id, &8_u32.to_be_bytes());
            [std::mem::take(&mut first), frame(HEADERS, END_HEADERS | END_STREAM, id, &with(&[])), reset]
                .concat()
        })
        .await
    });
    assert_eq!(goaway.error(), ENHANCE_YOUR_CALM);
}

#[test]
fn an_endless_head_ends_the_connection() {
    let bed = bed(HttpSettings::default());
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let mut first = [preface(), frame(HEADERS, 0, 1, &with(&[]))].concat();
    let goaway = bed.run(async move {
        flood(&reactor, stream, move || {
            [std::mem::take(&mut first), frame(CONTINUATION, 0, 1, &block(&[("x-a", "1")]))].concat()
        })
        .await
    });
    assert_eq!(goaway.error(), ENHANCE_YOUR_CALM);
    assert_eq!(bed.origin.dialled.get(), 0);
}

#[test]
fn a_flood_of_empty_data_ends_the_connection() {
    let bed = bed(HttpSettings::default());
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let _origin = bed.origin.next_connection();
    let mut first = [preface(), frame(HEADERS, END_HEADERS, 1, &with(&[(":method", "POST")]))].concat();
    let goaway = bed.run(async move {
        flood(&reactor, stream, move || [std::mem::take(&mut first), frame(DATA, 0, 1, &[])].concat()).await
    });
    assert_eq!(goaway.error(), ENHANCE_YOUR_CALM);
}

/// During an open request, which would keep the connection alive.
#[test]
fn floods_of_control_frames_end_the_connection() {
    let single_byte = 1_u32.to_be_bytes();
    let floods = [
        frame(PING, 0, 0, &[7; 8]),
        frame(PING, 1, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &[]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]),
        frame(WINDOW_UPDATE, 0, 0, &single_byte),
        frame(WINDOW_UPDATE, 0, 1, &single_byte),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16]),
        frame(PRIORITY, 0, 77, &[0, 0, 0, 0, 16]),
        frame(0xee, 0, 1, b"of an unknown type"),
    ];
    for bytes in floods {
        let bed = bed(HttpSettings::default());
        let (mut stream, mut origin, reactor) =
            (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
        let kind = bytes[3];
        let goaway = bed.run(async move {
            let asked = [preface(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &with(&[]))].concat();
            assert!(send(&mut stream, &asked).await);
            until(&mut origin, "\r\n\r\n").await;
            let goaway = flood(&reactor, stream, move || bytes.clone()).await;
            // The request ends with the connection.
            assert_eq!(rest(&mut origin).await, "");
            goaway
        });
        assert_eq!(goaway.error(), ENHANCE_YOUR_CALM, "frames of type {kind}");
    }
}

/// Two windows are opened for each small piece of a response, as some clients do.
#[test]
fn window_updates_for_received_data_are_allowed() {
    const PIECES: usize = 3000;
    let bed = bed(HttpSettings::default());
    let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
    bed.run(async move {
        let asked = [preface(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &with(&[]))].concat();
        assert!(send(&mut stream, &asked).await);
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECES * 40)).await;
        for _ in 0..PIECES {
            say(&mut origin, &"x".repeat(40)).await;
            let piece = next_of(&mut stream, &[DATA, GOAWAY]).await.unwrap();
            assert_eq!(piece.kind, DATA);
            let more = u32::try_from(piece.payload.len()).unwrap().to_be_bytes();
            assert!(send(&mut stream, &frame(WINDOW_UPDATE, 0, 0, &more)).await);
            assert!(send(&mut stream, &frame(WINDOW_UPDATE, 0, 1, &more)).await);
        }
    });
}

/// Pings are answered, but don't keep an idle connection alive.
#[test]
fn only_requests_extend_the_keep_alive_timeout() {
    let timeouts = HttpTimeouts { keep_alive: Duration::from_millis(200), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let goaway = bed.run(async move {
        let (mut from, mut to) = split(stream);
        let is_over = Rc::new(Cell::new(false));
        let (seen, pinging) = (Rc::clone(&is_over), reactor.clone());
        reactor.spawn(async move {
            let _ = to.write_all(&preface()).await;
            while !seen.get() && to.write_all(&frame(PING, 0, 0, &[7; 8])).await.is_ok() {
                pinging.sleep(Duration::from_millis(15)).await;
            }
        });
        let goaway = goaway(&mut from).await;
        is_over.set(true);
        goaway
    });
    assert_eq!(goaway.error(), 0);
}
