//! Frames that no origin may send, at a time when two requests are open: each violation has one end, and
//! takes no more requests with it than it must.

use super::faults::{answer, status};
use super::*;

const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 8;

/// Codes of RFC 9113 section 7.
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A request whose body does not come to its end.
const HALF_A_POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ";

fn number(kind: u8, stream: u32, value: u32) -> Vec<u8> {
    frame(kind, 0, stream, &value.to_be_bytes())
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// The code of the next GOAWAY.
async fn goaway(origin: &mut Raw) -> u32 {
    let goaway = origin.next_of(GOAWAY).await;
    u32::from_be_bytes(goaway.payload[4..8].try_into().unwrap())
}

/// The idempotent request is sent again, and the other one fails: nobody knows whether the origin has
/// processed it.
#[test]
fn violations_of_a_connection_end_it() {
    let open = |kind, flags, payload: &[u8]| frame(kind, flags, 1, payload);
    let largest = u32::MAX >> 1;
    let violations = [
        ("a push promise", open(PUSH_PROMISE, END_HEADERS, &[0, 0, 0, 2, 0x88]), PROTOCOL_ERROR),
        ("a push promise without a stream", frame(PUSH_PROMISE, END_HEADERS, 0, &[0; 4]), PROTOCOL_ERROR),
        ("CONTINUATION alone", open(CONTINUATION, END_HEADERS, OK), PROTOCOL_ERROR),
        (
            "a frame within a block",
            [open(HEADERS, 0, OK), frame(PING, 0, 0, &[0; 8])].concat(),
            PROTOCOL_ERROR,
        ),
        (
            "a block that goes on elsewhere",
            [open(HEADERS, 0, OK), frame(CONTINUATION, END_HEADERS, 3, &[])].concat(),
            PROTOCOL_ERROR,
        ),
        ("a second block within a block", open(HEADERS, 0, OK).repeat(2), PROTOCOL_ERROR),
        ("DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        ("HEADERS on stream 0", frame(HEADERS, END_HEADERS, 0, OK), PROTOCOL_ERROR),
        ("RST_STREAM on stream 0", number(RST_STREAM, 0, NO_ERROR), PROTOCOL_ERROR),
        ("DATA on an idle stream", frame(DATA, 0, 77, b"x"), PROTOCOL_ERROR),
        ("HEADERS on an idle stream", frame(HEADERS, END_HEADERS, 77, OK), PROTOCOL_ERROR),
        ("RST_STREAM on an idle stream", number(RST_STREAM, 77, NO_ERROR), PROTOCOL_ERROR),
        ("WINDOW_UPDATE on an idle stream", number(WINDOW_UPDATE, 77, 1), PROTOCOL_ERROR),
        ("a stream of the origin's", frame(HEADERS, END_HEADERS, 2, OK), PROTOCOL_ERROR),
        ("SETTINGS on a stream", open(SETTINGS, 0, &[]), PROTOCOL_ERROR),
        ("half a setting", frame(SETTINGS, 0, 0, &[0; 5]), FRAME_SIZE_ERROR),
        ("an acknowledgement with settings", frame(SETTINGS, ACK, 0, &[0; 6]), FRAME_SIZE_ERROR),
        ("push by an origin", setting(2, 1), PROTOCOL_ERROR),
        ("a window that is too large", setting(4, largest + 1), FLOW_CONTROL_ERROR),
        ("frames that are too short", setting(5, 16_383), PROTOCOL_ERROR),
        ("frames that are too long", setting(5, 1 << 24), PROTOCOL_ERROR),
        (
            "a stream's window that SETTINGS overflow",
            [number(WINDOW_UPDATE, 3, largest - 65_535), setting(4, 65_536 + 5)].concat(),
            FLOW_CONTROL_ERROR,
        ),
        ("PING on a stream", open(PING, 0, &[0; 8]), PROTOCOL_ERROR),
        ("a short PING", frame(PING, 0, 0, &[0; 7]), FRAME_SIZE_ERROR),
        ("GOAWAY on a stream", open(GOAWAY, 0, &[0; 8]), PROTOCOL_ERROR),
        ("a short GOAWAY", frame(GOAWAY, 0, 0, &[0; 7]), FRAME_SIZE_ERROR),
        ("a short RST_STREAM", open(RST_STREAM, 0, &[0; 3]), FRAME_SIZE_ERROR),
        ("a window that opens by nothing", number(WINDOW_UPDATE, 0, 0), PROTOCOL_ERROR),
        ("a window that overflows", number(WINDOW_UPDATE, 0, largest), FLOW_CONTROL_ERROR),
        ("a short WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), FRAME_SIZE_ERROR),
        ("a frame that is too long", open(DATA, 0, &[0; 20_000]), FRAME_SIZE_ERROR),
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), FRAME_SIZE_ERROR),
        ("an index of no field", open(HEADERS, END_HEADERS, &[0x80]), COMPRESSION_ERROR),
        ("half a field", open(HEADERS, END_HEADERS, &[0x00, 5, b'a']), COMPRESSION_ERROR),
        ("more padding than there is", open(DATA, PADDED, &[5, 0, 0]), PROTOCOL_ERROR),
        ("a priority that is cut off", open(HEADERS, END_HEADERS | 0x20, &[0; 4]), FRAME_SIZE_ERROR),
    ];
    for (name, bytes, code) in violations {
        let bed = bed();
        let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let (mut one, mut two) = (bed.client(), bed.client());
        bed.run(async move {
            say(&mut one, GET).await;
            let mut first = Raw::begin(first, &[]).await;
            assert_eq!(first.request().await, 1);
            say(&mut two, HALF_A_POST).await;
            assert_eq!(first.request().await, 3);
            first.0.write_all(&bytes).await.unwrap();
            assert_eq!(goaway(&mut first).await, code, "{name}");
            let mut second = Raw::begin(second, &[]).await;
            let again = second.request().await;
            second.answer(again, b"").await;
            assert_eq!(status(&head(&mut one).await), "200", "{name}");
            assert_eq!(status(&head(&mut two).await), "502", "{name}");
            // Nothing follows the GOAWAY.
            assert!(first.next().await.is_none(), "{name}");
        });
        assert_eq!(bed.origin.dialled.get(), 2, "{name}");
    }
}

/// The request beside it, on the same connection, is answered.
#[test]
fn violations_of_a_stream_end_that_request_only() {
    let largest = u32::MAX >> 1;
    let interim = b"\x08\x03103";
    let head_of = |flags, block: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, block);
    let violations = [
        ("a body without a head", frame(DATA, END_STREAM, 1, b"x"), PROTOCOL_ERROR, "502"),
        ("a head without a status", head_of(0, &field("a", "b")), PROTOCOL_ERROR, "502"),
        (
            "a pseudo-field of requests",
            head_of(0, &[OK, &field(":path", "/")].concat()),
            PROTOCOL_ERROR,
            "502",
        ),
        ("two statuses", head_of(0, &[OK, OK].concat()), PROTOCOL_ERROR, "502"),
        ("a status after a field", head_of(0, &[&field("a", "b"), OK].concat()), PROTOCOL_ERROR, "502"),
        ("an interim response at the end", head_of(END_STREAM, interim), PROTOCOL_ERROR, "502"),
        ("a window that opens by nothing", number(WINDOW_UPDATE, 1, 0), PROTOCOL_ERROR, "502"),
        ("a window that overflows", number(WINDOW_UPDATE, 1, largest), FLOW_CONTROL_ERROR, "502"),
        ("trailers that are not the end", [head_of(0, OK), head_of(0, &[])].concat(), PROTOCOL_ERROR, "502"),
        (
            "a status among the trailers",
            [head_of(0, OK), head_of(END_STREAM, OK)].concat(),
            PROTOCOL_ERROR,
            "502",
        ),
        (
            "more data than the window allows",
            [head_of(0, OK), frame(DATA, 0, 1, &[b'x'; 16_000]).repeat(40)].concat(),
            FLOW_CONTROL_ERROR,
            "200",
        ),
    ];
    for (name, bytes, code, expected) in violations {
        let bed = bed();
        let origin = bed.origin.next_connection();
        let (mut one, mut two) = (bed.client(), bed.client());
        let reactor = bed.reactor.clone();
        bed.run(async move {
            // With a body, so that its windows count.
            say(&mut one, HALF_A_POST).await;
            let mut origin = Raw::begin(origin, &[]).await;
            assert_eq!(origin.request().await, 1);
            say(&mut two, GET).await;
            assert_eq!(origin.request().await, 3);
            origin.0.write_all(&bytes).await.unwrap();
            let reset = origin.next_of(RST_STREAM).await;
            assert_eq!((reset.stream, &reset.payload[..]), (1, &code.to_be_bytes()[..]), "{name}");
            origin.answer(3, b"beside").await;
            assert_eq!(status(&head(&mut two).await), "200", "{name}");
            // The client reads only now; a response that has begun does not look whole.
            reactor.spawn_attendant(async move { while origin.next().await.is_some() {} });
            let mut text = Vec::new();
            let _ = one.read_to_end(&mut text).await;
            let text = String::from_utf8(text).unwrap();
            if text.is_empty() {
                assert_eq!(expected, "200", "{name}: reset before its head was sent");
            } else {
                assert_eq!(status(&text), expected, "{name}: {text:.200}");
            }
            assert!(expected == "502" || !text.ends_with("0\r\n\r\n"), "{name}");
        });
        assert_eq!(bed.origin.dialled.get(), 1, "{name}");
    }
}

/// RFC 9113 5.1: such frames may have been on their way. Their fields are decoded, and their bytes count.
#[test]
fn frames_of_closed_streams_do_no_harm() {
    let late = [
        ("HEADERS", frame(HEADERS, END_HEADERS, 1, OK)),
        ("trailers", frame(HEADERS, END_HEADERS | END_STREAM, 1, &field("x-sum", "5"))),
        (
            "a block in pieces",
            [frame(HEADERS, 0, 1, OK), frame(CONTINUATION, END_HEADERS, 1, &field("a", "b"))].concat(),
        ),
        // 20 MB: more than the connection's window.
        ("DATA", frame(DATA, 0, 1, &[0; 16_000]).repeat(1250)),
        ("the end again", frame(DATA, END_STREAM, 1, &[])),
        ("RST_STREAM", number(RST_STREAM, 1, INTERNAL_ERROR).repeat(2)),
        ("WINDOW_UPDATE", number(WINDOW_UPDATE, 1, u32::MAX >> 1).repeat(2)),
        ("a window that opens by nothing", number(WINDOW_UPDATE, 1, 0)),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0; 5])),
        ("a field for the table", frame(HEADERS, END_HEADERS, 1, b"\x88\x40\x01a\x01b")),
    ];
    for (name, bytes) in late {
        let bed = bed();
        let origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, POST).await;
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
            head(&mut client).await;
            // The windows of DATA open again only when truepeer is read.
            let (mut reading, mut writing) = tokio::io::split(&mut origin.0);
            let mut seen = vec![0; 1 << 16];
            for piece in bytes.chunks(16_009) {
                writing.write_all(piece).await.unwrap();
                std::future::poll_fn(|cx| {
                    let mut buffer = tokio::io::ReadBuf::new(&mut seen);
                    let _ =
                        tokio::io::AsyncRead::poll_read(std::pin::Pin::new(&mut reading), cx, &mut buffer);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            say(&mut client, POST).await;
            let next = origin.request().await;
            assert_eq!(next, 3, "{name}");
            let fields: &[u8] = if name == "a field for the table" { &[0xbe] } else { &[] };
            origin.send(HEADERS, END_HEADERS | END_STREAM, next, &[OK, fields].concat()).await;
            let text = head(&mut client).await;
            assert_eq!(status(&text), "200", "{name}");
            assert!(fields.is_empty() || text.contains("\r\na: b\r\n"), "{text}");
        });
        assert_eq!(bed.origin.dialled.get(), 1, "{name}");
    }
}

/// Only two codes mean that a request may be sent again, one way or another: REFUSED_STREAM,
/// HTTP_1_1_REQUIRED.
#[test]
fn a_reset_with_any_other_code_fails_its_request() {
    for code in
        (0..=14).chain([255, u32::MAX]).filter(|code| ![REFUSED_STREAM, HTTP_1_1_REQUIRED].contains(code))
    {
        for request in [GET, POST] {
            let (text, dialled) =
                answer(&bed(), request, async move |origin, stream| origin.reset(stream, code).await);
            assert_eq!((status(&text), dialled), ("502", 1), "{code}: {text}");
        }
    }
}

/// Whatever the reason of a GOAWAY, it says which requests were not processed.
#[test]
fn a_go_away_with_any_code_loses_no_request() {
    for code in (0..=14).chain([u32::MAX]) {
        for (last, request) in [(0u32, GET), (0, POST), (1, GET), (1, POST)] {
            let bed = bed();
            let (text, dialled) = answer(&bed, request, async move |origin, stream| {
                let words = [&last.to_be_bytes()[..], &code.to_be_bytes(), b"too many of them"].concat();
                origin.send(GOAWAY, 0, 0, &words).await;
                if stream <= last {
                    origin.answer(stream, b"").await;
                }
                origin.cut().await;
            });
            assert_eq!((status(&text), dialled), ("200", if last == 0 { 2 } else { 1 }), "{code}, {last}");
        }
    }
}

/// An origin that is ending begins by saying so. It is dialled again, whatever the request's method.
#[test]
fn an_origin_that_goes_away_at_once_is_dialled_again() {
    for request in [GET, POST] {
        let bed = bed();
        let ending = [bed.origin.next_connection(), bed.origin.next_connection()];
        let last = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, request).await;
            for stream in ending {
                let mut origin = Raw::begin(stream, &[]).await;
                origin.go_away(0).await;
                while origin.next().await.is_some() {}
            }
            let mut origin = Raw::begin(last, &[]).await;
            let stream = origin.request().await;
            origin.answer(stream, b"").await;
            assert_eq!(status(&head(&mut client).await), "200");
        });
    }
}

/// Says how many streams the origin takes, and waits until truepeer knows.
async fn limit_streams(origin: &mut Raw, most: u32) {
    origin.settings(&[(3, most)]).await;
    origin.send(PING, 0, 0, &[7; 8]).await;
    while origin.next_of(PING).await.flags != ACK {}
}

/// Such an origin takes no further request on that connection, until it says otherwise. Those that it has are
/// answered.
#[test]
fn a_limit_of_no_streams_holds_for_further_requests() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let mut clients = [bed.client(), bed.client(), bed.client()];
    bed.run(async move {
        let [one, two, three] = &mut clients;
        say(one, POST).await;
        let mut first = Raw::begin(first, &[]).await;
        let open = first.request().await;
        limit_streams(&mut first, 0).await;
        say(two, POST).await;
        let mut second = Raw::begin(second, &[(3, 1)]).await;
        let other = second.request().await;
        // The second is full, and the first may be used again.
        limit_streams(&mut first, 2).await;
        say(three, POST).await;
        let third = first.request().await;
        for (origin, stream) in [(&mut first, open), (&mut second, other)] {
            origin.answer(stream, b"").await;
        }
        first.answer(third, b"").await;
        for client in &mut clients {
            assert_eq!(status(&head(client).await), "200");
        }
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

/// Where an answer stops, and whether its head has come.
fn stalls() -> [(&'static str, Vec<u8>, bool); 7] {
    let head = frame(HEADERS, END_HEADERS, 1, OK);
    let data = frame(DATA, 0, 1, b"0123456789");
    [
        ("before its first byte", Vec::new(), false),
        ("in a frame's header", head[..4].to_vec(), false),
        ("in a frame", [&frame(HEADERS, END_HEADERS, 1, &[0; 50])[..20]].concat(), false),
        ("in a block", frame(HEADERS, 0, 1, OK), false),
        ("after an interim response", frame(HEADERS, END_HEADERS, 1, b"\x08\x03103"), false),
        ("after its head", head.clone(), true),
        ("in its body", [&head[..], &data, &data[..12]].concat(), true),
    ]
}

/// The origin is there no more: it answers no PING.
#[test]
fn an_origin_that_stalls_for_ever_is_given_up() {
    for (name, bytes, has_head) in stalls() {
        let bed = impatient_bed();
        let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        let text = bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
            let mut first = Raw::begin(first, &[]).await;
            first.request().await;
            first.0.write_all(&bytes).await.unwrap();
            reactor.spawn_attendant(async move {
                let mut second = Raw::begin(second, &[]).await;
                let stream = second.request().await;
                second.answer(stream, b"again").await;
                while second.next().await.is_some() {}
            });
            let text = rest(&mut client).await;
            // truepeer has closed the first connection.
            while first.next().await.is_some() {}
            text
        });
        let is_whole = text.ends_with("5\r\nagain\r\n0\r\n\r\n");
        assert!(is_whole != has_head && (is_whole || !text.ends_with("0\r\n\r\n")), "{name}: {text}");
    }
}

/// It answers PINGs, and nothing else any more.
#[test]
fn an_origin_that_stalls_and_answers_pings_has_the_time_of_a_response() {
    for (name, bytes, has_head) in stalls() {
        // A frame that has begun must end before a PING can be answered.
        if name.starts_with("in a") {
            continue;
        }
        let bed = bed_of(HttpTimeouts { response: Duration::from_millis(500), ..impatient() });
        let origin = bed.origin.next_connection();
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        let text = bed.run(async move {
            say(&mut client, GET).await;
            let mut origin = Raw::begin(origin, &[]).await;
            origin.request().await;
            origin.0.write_all(&bytes).await.unwrap();
            reactor.spawn_attendant(async move {
                while let Some(frame) = origin.next().await {
                    if frame.kind == PING {
                        origin.send(PING, ACK, 0, &frame.payload).await;
                    }
                }
            });
            if has_head {
                return rest(&mut client).await;
            }
            final_head(&mut client).await
        });
        if has_head {
            assert!(!text.ends_with("0\r\n\r\n"), "{name}: {text}");
        } else {
            assert_eq!(status(&text), "504", "{name}");
        }
        assert_eq!(bed.origin.dialled.get(), 1, "{name}");
    }
}

/// The connection ends at each byte of each kind of frame, before an answer has begun.
#[test]
fn a_connection_that_is_cut_in_any_frame_loses_no_idempotent_request() {
    let frames = [
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9]),
        frame(SETTINGS, ACK, 0, &[]),
        frame(PING, 0, 0, &[7; 8]),
        frame(GOAWAY, 0, 0, &[[0; 4], NO_ERROR.to_be_bytes()].concat()),
        frame(GOAWAY, 0, 0, &[1u32.to_be_bytes(), ENHANCE_YOUR_CALM.to_be_bytes()].concat()),
        number(RST_STREAM, 1, REFUSED_STREAM),
        number(WINDOW_UPDATE, 0, 1),
        number(WINDOW_UPDATE, 1, 1),
        frame(PRIORITY, 0, 1, &[0; 5]),
        frame(HEADERS, END_HEADERS, 1, b"\x08\x03103"),
        [frame(HEADERS, 0, 1, b"\x08"), frame(CONTINUATION, END_HEADERS, 1, b"\x03103")].concat(),
        frame(0xfe, 0xff, 7, &[0; 3]),
    ];
    for bytes in frames {
        for cut in 0..=bytes.len() {
            let bed = bed();
            let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
            let (mut client, reactor) = (bed.client(), bed.reactor.clone());
            let piece = bytes[..cut].to_vec();
            let text = bed.run(async move {
                say(&mut client, GET).await;
                let mut first = Raw::begin(first, &[]).await;
                first.request().await;
                first.0.write_all(&piece).await.unwrap();
                first.cut().await;
                reactor.spawn_attendant(async move {
                    let mut second = Raw::begin(second, &[]).await;
                    let stream = second.request().await;
                    second.answer(stream, b"").await;
                    while second.next().await.is_some() {}
                });
                final_head(&mut client).await
            });
            assert_eq!(status(&text), "200", "{bytes:?} cut at {cut}");
        }
    }
}

/// The head behind interim ones.
async fn final_head(client: &mut DuplexStream) -> String {
    loop {
        let text = head(client).await;
        if status(&text) != "103" {
            return text;
        }
    }
}
