//! Origins that misbehave. No request hangs, none is answered wrongly, and one that may be repeated is.

use std::cell::Cell;
use std::rc::Rc;

use truepeer_stream::reactor::Reactor;

use super::*;

/// What the client of `request` reads up to the end of the head, where the first connection does `fault` and
/// a second one would serve it; and the number of connections.
pub(super) fn answer(
    bed: &Bed,
    request: &'static str,
    fault: impl AsyncFnOnce(&mut Raw, u32) + 'static,
) -> (String, usize) {
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    let answer = bed.run(async move {
        reactor.spawn(async move {
            let mut first = Raw::begin(first, &[]).await;
            let stream = first.request().await;
            fault(&mut first, stream).await;
            while first.next().await.is_some() {}
        });
        reactor.spawn(async move {
            let mut second = Raw::begin(second, &[]).await;
            while let Some(frame) = second.next().await {
                if frame.kind == HEADERS {
                    second.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK).await;
                }
            }
        });
        say(&mut client, request).await;
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            let Ok(byte) = client.read_u8().await else { break };
            text.push(byte);
        }
        String::from_utf8(text).unwrap()
    });
    (answer, bed.origin.dialled.get())
}

pub(super) fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

/// Each request, whether its client may repeat it or not, is sent again: the origin has not processed it.
#[test]
fn unprocessed_requests_are_sent_again() {
    for request in [GET, POST] {
        let gone = answer(&bed(), request, async |origin, _| origin.go_away(0).await);
        assert_eq!((status(&gone.0), gone.1), ("200", 2));
        let (text, _) = answer(&bed(), request, async |origin, stream| {
            origin.reset(stream, REFUSED_STREAM).await;
            let again = origin.request().await;
            origin.answer(again, b"").await;
        });
        assert_eq!(status(&text), "200");
    }
}

#[test]
fn a_request_whose_connection_breaks_is_repeated_only_if_it_is_idempotent() {
    for (request, expected) in [(GET, ("200", 2)), (POST, ("502", 1))] {
        let (text, dialled) = answer(&bed(), request, async |origin, _| origin.cut().await);
        assert_eq!((status(&text), dialled), expected, "{text}");
    }
}

/// An origin that answers requests for `/slow` after a while, and ends the connection at one for `/poison`,
/// as NGINX does at a field that is too long for it. `seen` counts those.
async fn poisoned(stream: DuplexStream, reactor: Reactor, seen: Rc<Cell<u32>>) {
    const ENHANCE_YOUR_CALM: u32 = 11;
    let mut origin = Raw::begin(stream, &[]).await;
    let mut slow = Vec::new();
    loop {
        let frame = match reactor.timeout(Duration::from_millis(300), origin.next()).await {
            Ok(None) => return,
            Ok(Some(frame)) => frame,
            Err(_) => {
                for stream in slow.drain(..) {
                    origin.answer(stream, b"slow").await;
                }
                continue;
            }
        };
        if frame.kind != HEADERS {
            continue;
        }
        if frame.payload.windows(7).any(|part| part == b"/poison") {
            seen.set(seen.get() + 1);
            let payload = [frame.stream.to_be_bytes(), ENHANCE_YOUR_CALM.to_be_bytes()].concat();
            origin.send(GOAWAY, 0, 0, &payload).await;
            return origin.cut().await;
        }
        slow.push(frame.stream);
    }
}

/// The others on its connection are sent again, too, and must not meet it there.
#[test]
fn a_request_that_ends_its_connection_takes_others_with_it_once() {
    let (bed, seen) = (bed(), Rc::new(Cell::new(0)));
    for _ in 0..50 {
        let (stream, reactor) = (bed.origin.next_connection(), bed.reactor.clone());
        bed.reactor.spawn(poisoned(stream, reactor, Rc::clone(&seen)));
    }
    let (mut poison, mut other, reactor) = (bed.client(), bed.client(), bed.reactor.clone());
    let counted = Rc::clone(&seen);
    bed.run(async move {
        say(&mut other, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
        reactor.sleep(Duration::from_millis(50)).await;
        say(&mut poison, "GET /poison HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let text = head(&mut other).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(head(&mut poison).await.starts_with("HTTP/1.1 502"));
        assert!((2..=3).contains(&counted.get()), "sent {} times", counted.get());
    });
    assert_eq!(bed.service.journal.refusals()["origin_closed"], 1);
    assert!(bed.origin.dialled.get() <= 4, "{} connections", bed.origin.dialled.get());
}

/// GOAWAY names the stream as processed, so its answer comes.
#[test]
fn a_request_in_progress_is_answered_after_go_away() {
    let (text, dialled) = answer(&bed(), POST, async |origin, stream| {
        origin.go_away(stream).await;
        origin.answer(stream, b"").await;
    });
    assert_eq!((status(&text), dialled), ("200", 1));
}

/// It answers one request of each connection, and no other. Each round of connections that are shared serves
/// one of the requests.
#[test]
fn an_origin_that_answers_one_request_of_a_connection_serves_all_clients() {
    for count in [50, 100] {
        let bed = bed();
        for _ in 0..count + 10 {
            let stream = bed.origin.next_connection();
            bed.reactor.spawn(async move {
                let mut origin = Raw::begin(stream, &[]).await;
                let served = origin.request().await;
                origin.go_away(served).await;
                origin.answer(served, b"").await;
                while origin.next().await.is_some() {}
            });
        }
        let mut clients: Vec<_> = (0..count).map(|_| bed.client()).collect();
        bed.run(async move {
            for client in &mut clients {
                say(client, POST).await;
            }
            for client in &mut clients {
                let text = head(client).await;
                assert!(text.starts_with("HTTP/1.1 200"), "of {count} clients: {text}");
            }
        });
    }
}

#[test]
fn requests_after_go_away_use_another_connection() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (mut one, mut two) = (bed.client(), bed.client());
    bed.run(async move {
        say(&mut one, GET).await;
        let mut first = Raw::begin(first, &[]).await;
        let open = first.request().await;
        first.go_away(open).await;
        say(&mut two, POST).await;
        let mut second = Raw::begin(second, &[]).await;
        let stream = second.request().await;
        second.answer(stream, b"").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
        first.answer(open, b"").await;
        assert!(head(&mut one).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn an_origin_that_refuses_every_stream_fails_the_request() {
    let bed = bed();
    for _ in 0..2 {
        bed.reactor.spawn(refusing(bed.origin.next_connection()));
    }
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, GET).await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 502"));
    });
    assert_eq!(bed.service.journal.refusals()["origin_refused_stream"], 1);
}

/// It refuses every stream, up to the end of its connection.
async fn refusing(stream: DuplexStream) {
    let mut origin = Raw::begin(stream, &[]).await;
    while let Some(frame) = origin.next().await {
        if frame.kind == HEADERS {
            origin.reset(frame.stream, REFUSED_STREAM).await;
        }
    }
}

/// Another one may serve it.
#[test]
fn a_connection_that_refuses_every_stream_is_left() {
    let bed = bed();
    bed.reactor.spawn(refusing(bed.origin.next_connection()));
    let second = bed.origin.next_connection();
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, POST).await;
        let mut second = Raw::begin(second, &[]).await;
        let stream = second.request().await;
        second.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

#[test]
fn a_request_that_needs_http_1_1_is_sent_by_it() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, GET).await;
        let mut first = Raw::begin(first, &[]).await;
        let stream = first.request().await;
        first.reset(stream, HTTP_1_1_REQUIRED).await;
        let mut second = second;
        assert!(until(&mut second, "\r\n\r\n").await.starts_with("GET /page HTTP/1.1\r\n"));
        say(&mut second, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

/// None of these may be repeated or taken for a whole response.
#[test]
fn faulty_responses_are_refused() {
    type Fault = fn(u32) -> Vec<u8>;
    let faults: [(&str, Fault, &str); 9] = [
        ("a reset", |stream| frame(RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes()), "502"),
        ("no status", |stream| frame(HEADERS, END_HEADERS, stream, &field("a", "b")), "502"),
        (
            "two lengths",
            |stream| {
                let length = field("content-length", "5");
                frame(HEADERS, END_HEADERS, stream, &[OK, &length, &field("content-length", "6")].concat())
            },
            "502",
        ),
        (
            "a length of another kind",
            |stream| frame(HEADERS, END_HEADERS, stream, &[OK, &field("content-length", "+5")].concat()),
            "502",
        ),
        (
            "a transfer coding",
            |stream| {
                frame(HEADERS, END_HEADERS, stream, &[OK, &field("transfer-encoding", "chunked")].concat())
            },
            "502",
        ),
        (
            "a field of the connection",
            |stream| frame(HEADERS, END_HEADERS, stream, &[OK, &field("connection", "close")].concat()),
            "502",
        ),
        (
            "a name in upper case",
            |stream| frame(HEADERS, END_HEADERS, stream, &[OK, &field("A", "b")].concat()),
            "502",
        ),
        (
            "a line end in a value",
            |stream| frame(HEADERS, END_HEADERS, stream, &[OK, &field("a", "b\r\nx: y")].concat()),
            "502",
        ),
        ("a change of protocol", |stream| frame(HEADERS, END_HEADERS, stream, b"\x08\x03101"), "502"),
    ];
    for (name, fault, expected) in faults {
        let (text, _) = answer(&bed(), POST, async move |origin, stream| {
            let _ = origin.0.write_all(&fault(stream)).await;
        });
        assert_eq!(status(&text), expected, "{name}: {text}");
    }
}

#[test]
fn heads_have_limits() {
    let many: Vec<u8> = (0..300).flat_map(|number| field(&format!("a{number}"), "b")).collect();
    let long: Vec<u8> = (0..200).flat_map(|number| field(&format!("a{number}"), &"b".repeat(200))).collect();
    for fields in [many, long] {
        let (text, _) = answer(&bed(), POST, async move |origin, stream| {
            let block = [OK, &fields].concat();
            let (first, rest) = block.split_at(block.len().min(16_000));
            if rest.is_empty() {
                return origin.send(HEADERS, END_HEADERS, stream, first).await;
            }
            origin.send(HEADERS, 0, stream, first).await;
            for (at, piece) in rest.chunks(16_000).enumerate() {
                let is_last = (at + 1) * 16_000 >= rest.len();
                origin.send(9, if is_last { END_HEADERS } else { 0 }, stream, piece).await;
            }
        });
        assert_eq!(status(&text), "502");
    }
}

#[test]
fn a_response_may_set_as_many_cookies_as_browsers_keep() {
    let cookies: Vec<u8> =
        (0..180).flat_map(|number| field("set-cookie", &format!("name{number}=value"))).collect();
    let (text, _) = answer(&bed(), GET, async move |origin, stream| {
        origin.send(HEADERS, END_HEADERS | END_STREAM, stream, &[OK, &cookies].concat()).await;
    });
    assert_eq!((status(&text), text.matches("\r\nset-cookie: name").count()), ("200", 180), "{text}");
}

#[test]
fn interim_responses_without_end_fail_the_request() {
    let (text, _) = answer(&bed(), POST, async |origin, stream| {
        let processing = frame(HEADERS, END_HEADERS, stream, b"\x08\x03100");
        for _ in 0..100_000 {
            if origin.0.write_all(&processing).await.is_err() {
                break;
            }
        }
    });
    assert_eq!(status(&text), "502");
}

/// A response that broke off ends without its last chunk.
#[test]
fn an_incomplete_response_is_not_completed() {
    type Break = fn(u32) -> Vec<u8>;
    let breaks: [(&str, Break); 5] = [
        ("a reset", |stream| frame(RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes())),
        ("a reset that claims no error", |stream| frame(RST_STREAM, 0, stream, &NO_ERROR.to_be_bytes())),
        ("data on stream 0", |_| frame(DATA, 0, 0, b"x")),
        ("an unknown stream", |_| frame(HEADERS, END_HEADERS, 77, OK)),
        ("a frame that is too long", |stream| frame(DATA, 0, stream, &[0; 20_000])),
    ];
    for (name, fault) in breaks {
        let bed = bed();
        let origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, GET).await;
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.send(HEADERS, END_HEADERS, stream, OK).await;
            origin.send(DATA, 0, stream, b"half").await;
            until(&mut client, "4\r\nhalf\r\n").await;
            let _ = origin.0.write_all(&fault(stream)).await;
            assert_eq!(rest(&mut client).await, "", "{name}");
        });
    }
}

#[test]
fn fewer_or_more_bytes_than_announced_are_not_taken_for_the_response() {
    for body in [&b"1234"[..], b"123456"] {
        let bed = bed();
        let origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, GET).await;
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.send(HEADERS, END_HEADERS, stream, &[OK, &field("content-length", "5")].concat()).await;
            origin.send(DATA, END_STREAM, stream, body).await;
            // Either it is refused, or it ends before its length.
            let text = rest(&mut client).await;
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            assert!(text.starts_with("HTTP/1.1 502") || body.len() < 5, "{text}");
        });
    }
}

#[test]
fn an_origin_that_does_not_speak_http_2_is_named() {
    for words in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", &[0; 32], b""] {
        let bed = impatient_bed();
        let mut origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, GET).await;
            origin.write_all(words).await.unwrap();
            let status = if words.is_empty() { "504" } else { "502" };
            let text = head(&mut client).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{words:?}: {text}");
        });
        let reason = if words.is_empty() { "origin_connect_timeout" } else { "origin_not_http2" };
        assert_eq!(bed.service.journal.refusals()[reason], 1);
    }
}

/// It answers neither the request nor pings.
#[test]
fn an_origin_that_vanishes_is_given_up_and_the_request_repeated() {
    let (text, dialled) = answer(&impatient_bed(), GET, async |_, _| {});
    assert_eq!((status(&text), dialled), ("200", 2));
}

#[test]
fn a_slow_origin_that_answers_pings_is_waited_for() {
    let (text, dialled) = answer(&impatient_bed(), GET, async |origin, stream| {
        for _ in 0..5 {
            let ping = origin.next_of(PING).await;
            origin.send(PING, ACK, 0, &ping.payload).await;
            // More than an acknowledgement: it may fall silent again.
            origin.settings(&[]).await;
        }
        origin.answer(stream, b"").await;
    });
    assert_eq!((status(&text), dialled), ("200", 1));
}

#[test]
fn an_origin_that_takes_no_body_fails_only_that_request() {
    let bed = impatient_bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two) = (bed.client(), bed.client());
    bed.run(async move {
        say(&mut one, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").await;
        let mut origin = Raw::begin(origin, &[(4, 0)]).await;
        origin.request().await;
        say(&mut two, GET).await;
        let stream = origin.request().await;
        origin.answer(stream, b"").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
        assert!(head(&mut one).await.starts_with("HTTP/1.1 504"));
    });
    assert_eq!(bed.service.journal.refusals()["origin_stalled"], 1);
}

/// Settings that change, acknowledgements that never come, and frames after the end of a stream.
#[test]
fn odd_but_harmless_origins_are_served() {
    let (text, _) = answer(&bed(), GET, async |origin, stream| {
        for window in [0, 1 << 20, 1, (1 << 31) - 1] {
            origin.settings(&[(1, 0), (3, window), (4, window), (5, 16_384), (6, 1), (99, 7)]).await;
        }
        origin.send(0xfe, 0xff, 0, b"of an unknown kind").await;
        origin.send(WINDOW_UPDATE, 0, stream, &1u32.to_be_bytes()).await;
        origin.answer(stream, b"").await;
        origin.send(DATA, END_STREAM, stream, b"after the end").await;
        origin.reset(stream, NO_ERROR).await;
    });
    assert_eq!(status(&text), "200");
}
