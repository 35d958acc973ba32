//! What must not reach an origin, and what must not cost us much.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, DuplexStream, split};

use super::frames::*;
use super::*;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")];

/// `GET`, with one field replaced, or with more of them.
fn with(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut all: Vec<_> =
        GET.iter().filter(|(name, _)| !fields.iter().any(|(other, _)| other == name)).copied().collect();
    all.splice(0..0, fields.iter().filter(|(name, _)| name.starts_with(':')).copied());
    all.extend(fields.iter().filter(|(name, _)| !name.starts_with(':')).copied());
    block(&all)
}

/// Whether the first answer to a request is a refusal: 400, a reset of the stream, or the connection's end.
async fn is_refused(stream: &mut DuplexStream) -> bool {
    match next_of(stream, &[HEADERS, RST_STREAM, GOAWAY]).await {
        Some(frame) if frame.kind == HEADERS => frame.payload[0] == STATUS_400,
        _ => true,
    }
}

#[test]
fn what_could_be_read_in_two_ways_reaches_no_origin() {
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
        with(&[(":method", "CONNECT"), (":protocol", "websocket")]),
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
        let bed = bed(Settings::default());
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

#[test]
fn a_body_that_is_not_as_long_as_it_says_is_never_whole() {
    for data in [&b"four"[..], b"sixsix"] {
        let bed = bed(Settings::default());
        let (mut stream, mut origin) = (connect(&bed), bed.origin.next_connection());
        bed.run(async move {
            let head = with(&[(":method", "POST"), ("content-length", "5")]);
            let asked = [preface(), frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, data)];
            assert!(send(&mut stream, &asked.concat()).await);
            assert!(is_refused(&mut stream).await);
            // The origin may have got the head, but no five bytes after it.
            let got = rest(&mut origin).await;
            assert!(
                got.is_empty() || got.split("\r\n\r\n").nth(1).is_none_or(|body| body.len() < 5),
                "{got}"
            );
        });
    }
}

/// Sends `bytes` again and again, and reads meanwhile, until the connection is ended for it.
async fn flood(
    reactor: &Reactor,
    stream: DuplexStream,
    mut bytes: impl FnMut() -> Vec<u8> + 'static,
) -> Frame {
    let (mut from, mut to) = split(stream);
    let is_over = Rc::new(Cell::new(false));
    let seen = Rc::clone(&is_over);
    reactor.spawn(async move { while !seen.get() && to.write_all(&bytes()).await.is_ok() {} });
    let mut kept = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let len = from.read(&mut piece).await.unwrap();
        assert!(len > 0, "ended without a word");
        kept.extend_from_slice(&piece[..len]);
        while let Some((frame, len)) = parse(&kept) {
            kept.drain(..len);
            if frame.kind == GOAWAY {
                is_over.set(true);
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
fn who_asks_only_to_take_it_back_is_sent_away() {
    let bed = bed(Settings::default());
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
fn a_head_without_an_end_is_ended() {
    let bed = bed(Settings::default());
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
fn data_without_data_is_ended() {
    let bed = bed(Settings::default());
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let _origin = bed.origin.next_connection();
    let mut first = [preface(), frame(HEADERS, END_HEADERS, 1, &with(&[(":method", "POST")]))].concat();
    let goaway = bed.run(async move {
        flood(&reactor, stream, move || [std::mem::take(&mut first), frame(DATA, 0, 1, &[])].concat()).await
    });
    assert_eq!(goaway.error(), ENHANCE_YOUR_CALM);
}

/// Pings are answered, but don't keep a connection that asks for nothing.
#[test]
fn what_is_no_request_keeps_nothing_alive() {
    let timeouts = Timeouts { keep_alive: Duration::from_millis(200), ..Timeouts::default() };
    let bed = bed(Settings { timeouts, ..Settings::default() });
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    let mut first = preface();
    let goaway = bed.run(async move {
        flood(&reactor, stream, move || [std::mem::take(&mut first), frame(PING, 0, 0, &[7; 8])].concat())
            .await
    });
    assert_eq!(goaway.error(), 0);
}
