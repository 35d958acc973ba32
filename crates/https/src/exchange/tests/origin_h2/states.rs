//! Faults in each state of a stream and of its connection.

use tokio::io::AsyncRead as _;

use super::faults::{answer, status};
use super::*;

/// How far the origin gets with its answer before it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Nothing,
    Interim,
    Head,
    HalfABody,
}

impl Reached {
    const ALL: [Self; 4] = [Self::Nothing, Self::Interim, Self::Head, Self::HalfABody];

    async fn reach(self, origin: &mut Raw, stream: u32) {
        if self == Self::Interim {
            origin.send(HEADERS, END_HEADERS, stream, b"\x08\x03103").await;
        }
        if matches!(self, Self::Head | Self::HalfABody) {
            let head = [OK, &field("content-length", "10")].concat();
            origin.send(HEADERS, END_HEADERS, stream, &head).await;
        }
        if self == Self::HalfABody {
            origin.send(DATA, 0, stream, b"01234").await;
        }
    }
}

/// A response that was begun is never completed by another one, and one that was not is as the request
/// allows.
#[test]
fn a_reset_in_each_state_ends_that_request_only() {
    for reached in Reached::ALL {
        for (code, request, repeated) in [
            (INTERNAL_ERROR, GET, false),
            (NO_ERROR, GET, false),
            (REFUSED_STREAM, GET, true),
            (REFUSED_STREAM, POST, true),
        ] {
            let bed = bed();
            let origin = bed.origin.next_connection();
            let (mut client, mut other) = (bed.client(), bed.client());
            bed.run(async move {
                say(&mut client, request).await;
                let mut origin = Raw::begin(origin, &[]).await;
                let stream = origin.request().await;
                say(&mut other, POST).await;
                let beside = origin.request().await;
                reached.reach(&mut origin, stream).await;
                let has_begun = matches!(reached, Reached::Head | Reached::HalfABody);
                if reached != Reached::Nothing {
                    // Otherwise the client may see nothing of it before the end.
                    let first = if has_begun { "HTTP/1.1 200" } else { "HTTP/1.1 103" };
                    assert!(head(&mut client).await.starts_with(first));
                }
                origin.reset(stream, code).await;
                if repeated && !has_begun {
                    let again = origin.request().await;
                    origin.answer(again, b"").await;
                }
                origin.answer(beside, b"beside").await;
                if has_begun {
                    let body = rest(&mut client).await;
                    assert!(body.len() < 10 && "01234".starts_with(&body), "{reached:?} {code}: {body}");
                } else {
                    let text = head(&mut client).await;
                    let expected = if repeated { "200" } else { "502" };
                    assert_eq!(status(&text), expected, "{reached:?} {code} {request}: {text}");
                }
                assert!(head(&mut other).await.starts_with("HTTP/1.1 200"), "{reached:?} {code}");
            });
        }
    }
}

/// truepeer learns of the request and of the end in one turn. Nothing of the request has left.
#[test]
fn a_request_that_meets_the_end_of_an_idle_connection_is_sent_over_another_one() {
    for request in [GET, POST] {
        let bed = bed();
        let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        bed.run(async move {
            say(&mut client, GET).await;
            let mut first = Raw::begin(first, &[]).await;
            let stream = first.request().await;
            first.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
            // The client's task works before the connection's.
            reactor.yield_now().await;
            say(&mut client, request).await;
            first.cut().await;
            let mut second = Raw::begin(second, &[]).await;
            let stream = second.request().await;
            second.answer(stream, b"").await;
            let text = head(&mut client).await;
            assert!(text.starts_with("HTTP/1.1 200"), "{request}: {text}");
            while let Some(frame) = first.next().await {
                assert_ne!(frame.kind, HEADERS, "it was sent twice");
            }
        });
    }
}

/// Of three requests the origin has processed the first two. The third is sent again, whatever its method.
#[test]
fn go_away_in_the_middle_loses_no_request() {
    for twice in [false, true] {
        let bed = bed();
        let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let mut clients = [bed.client(), bed.client(), bed.client()];
        bed.run(async move {
            for client in &mut clients {
                say(client, POST).await;
            }
            let mut first = Raw::begin(first, &[]).await;
            let streams = [first.request().await, first.request().await, first.request().await];
            if twice {
                // RFC 9113 6.8: it announces its end first.
                first.go_away(u32::MAX >> 1).await;
            }
            first.go_away(streams[1]).await;
            let mut second = Raw::begin(second, &[]).await;
            let again = second.request().await;
            second.answer(again, b"").await;
            first.answer(streams[0], b"").await;
            first.answer(streams[1], b"").await;
            for client in &mut clients {
                assert!(head(client).await.starts_with("HTTP/1.1 200"));
            }
            // The connection ends with its last answer.
            while first.next().await.is_some() {}
        });
    }
}

/// The connection ends at each byte of the answer: it is whole, or it does not look whole, or another
/// connection gives it.
#[test]
fn an_answer_that_is_cut_at_any_byte_is_repeated_or_incomplete() {
    let whole = [
        frame(HEADERS, END_HEADERS, 1, b"\x08\x03103"),
        frame(HEADERS, END_HEADERS, 1, OK),
        frame(DATA, 0, 1, b"hel"),
        frame(DATA, 0, 1, b"lo"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &field("x-sum", "5")),
    ]
    .concat();
    for cut in 0..=whole.len() {
        let bed = bed();
        let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        let bytes = whole[..cut].to_vec();
        let text = bed.run(async move {
            say(&mut client, "GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
            let mut first = Raw::begin(first, &[]).await;
            first.request().await;
            first.0.write_all(&bytes).await.unwrap();
            first.cut().await;
            reactor.spawn(async move {
                let mut second = Raw::begin(second, &[]).await;
                let stream = second.request().await;
                second.answer(stream, b"other").await;
                while second.next().await.is_some() {}
            });
            rest(&mut client).await
        });
        let is_whole = text.ends_with("0\r\n\r\n") || text.ends_with("0\r\nx-sum: 5\r\n\r\n");
        if is_whole {
            let (hello, other) = (
                text.contains("3\r\nhel\r\n2\r\nlo\r\n") || text.contains("5\r\nhello\r\n"),
                text.contains("other"),
            );
            assert!(hello != other, "cut at {cut}: {text}");
            assert!(!hello || cut == whole.len(), "cut at {cut}: {text}");
        } else {
            assert!(!text.contains("other"), "cut at {cut}: {text}");
        }
    }
}

/// The window shrinks below zero in the middle of a body, and opens again. Every byte arrives once.
#[test]
fn settings_may_change_in_the_middle_of_a_body() {
    const BODY: usize = 100_000;
    let bed = bed();
    let origin = bed.origin.next_connection();
    let mut client = bed.client();
    bed.run(async move {
        let body: String = (0..BODY).map(|at| char::from(b'a' + u8::try_from(at % 23).unwrap())).collect();
        say(&mut client, &format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n")).await;
        let (mut writing, mut came) = (body.clone(), Vec::new());
        let mut origin = Raw::begin(origin, &[(4, 1000)]).await;
        let stream = origin.request().await;
        let first = writing.drain(..60_000).collect::<String>();
        say(&mut client, &first).await;
        came.extend(origin.next_of(DATA).await.payload);
        // 1000 bytes are out: the window is at -1000, then at 59,000, then at -40,000, and opens.
        origin.settings(&[(4, 0)]).await;
        origin.settings(&[(4, 60_000)]).await;
        while came.len() < 60_000 {
            came.extend(origin.next_of(DATA).await.payload);
        }
        origin.settings(&[(4, 20_000), (3, 1), (1, 0), (5, 1 << 20)]).await;
        say(&mut client, &writing).await;
        for (stream, more) in [(0, 50_000u32), (stream, 30_000), (stream, 50_000)] {
            origin.send(WINDOW_UPDATE, 0, stream, &more.to_be_bytes()).await;
        }
        while came.len() < BODY {
            came.extend(origin.next_of(DATA).await.payload);
        }
        assert!(came == body.as_bytes());
        origin.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

/// Answered before the body was sent, and then the origin wants no more of it: the answer stays whole.
#[test]
fn an_early_answer_stays_whole_whatever_becomes_of_the_body() {
    for code in [NO_ERROR, INTERNAL_ERROR] {
        let bed = bed();
        let origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin").await;
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.answer(stream, b"no").await;
            origin.reset(stream, code).await;
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200"), "{code}");
            assert_eq!(until(&mut client, "0\r\n\r\n").await, "2\r\nno\r\n0\r\n\r\n");
        });
    }
}

/// Frames without a request: each is answered or ignored, what waits to be sent stays small, and the request
/// is answered.
#[test]
fn floods_of_frames_delay_no_request() {
    let floods = [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0x10, 0])),
        ("acknowledgements", frame(SETTINGS, ACK, 0, &[])),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())),
        ("priorities", frame(2, 0, 1, &[0; 5])),
        ("unknown frames", frame(0xfe, 0xff, 7, &[0; 100])),
    ];
    for (name, flood) in floods {
        let (text, dialled) = answer(&bed(), POST, async move |origin, stream| {
            origin.send(HEADERS, END_HEADERS, stream, OK).await;
            let (mut reading, mut writing) = tokio::io::split(&mut origin.0);
            let write = async {
                for _ in 0..20_000 {
                    writing.write_all(&flood).await.unwrap();
                }
            };
            let mut discarded = vec![0; 1 << 16];
            let mut write = std::pin::pin!(write);
            // It reads what truepeer answers, or truepeer reads no more.
            std::future::poll_fn(|cx| {
                loop {
                    let mut buffer = tokio::io::ReadBuf::new(&mut discarded);
                    let read = std::pin::Pin::new(&mut reading).poll_read(cx, &mut buffer);
                    if read.is_pending() || buffer.filled().is_empty() {
                        return write.as_mut().poll(cx);
                    }
                }
            })
            .await;
            origin.send(DATA, END_STREAM, stream, b"").await;
        });
        assert_eq!((status(&text), dialled), ("200", 1), "{name}");
    }
}

/// Frames that go on without an end are an end of the connection. Nobody waits for them.
#[test]
fn a_head_without_end_fails_its_request() {
    for piece in [&b""[..], &[0; 1000]] {
        let (text, dialled) = answer(&bed(), GET, async move |origin, stream| {
            origin.send(HEADERS, 0, stream, OK).await;
            for _ in 0..1000 {
                origin.send(9, 0, stream, piece).await;
            }
        });
        assert_eq!((status(&text), dialled), ("502", 1), "{text}");
    }
}

/// The head of one response is far too long. It is decoded, and its connection goes on.
#[test]
fn a_head_far_beyond_the_limits_fails_only_its_request() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two, mut three) = (bed.client(), bed.client(), bed.client());
    let dialled = std::rc::Rc::clone(&bed.origin.dialled);
    bed.run(async move {
        say(&mut one, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let long = origin.request().await;
        say(&mut two, POST).await;
        let usual = origin.request().await;
        origin.send(HEADERS, 0, long, OK).await;
        // 900 KB, of which the last field is added to the table.
        let filler = field("x-long", &"v".repeat(90)).repeat(150);
        for _ in 0..60 {
            origin.send(9, 0, long, &filler).await;
        }
        origin.send(9, END_HEADERS, long, b"\x40\x01a\x01b").await;
        assert!(head(&mut one).await.starts_with("HTTP/1.1 502"));
        assert_eq!(origin.next_of(RST_STREAM).await.stream, long);
        origin.send(HEADERS, END_HEADERS | END_STREAM, usual, &[OK, &[0xbe]].concat()).await;
        let text = head(&mut two).await;
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\r\na: b\r\n"), "{text}");
        say(&mut three, POST).await;
        let last = origin.request().await;
        origin.answer(last, b"").await;
        assert!(head(&mut three).await.starts_with("HTTP/1.1 200"));
    });
    assert_eq!(dialled.get(), 1);
    assert_eq!(bed.service.journal.refusals()["origin_bad_response"], 1);
}

/// A table that is larger than truepeer's, and a head of many references to one long field.
#[test]
fn a_header_table_stays_within_its_limits() {
    // RFC 7541 6.3: 0x3f begins a number; this is 2^20.
    let (text, _) = answer(&bed(), POST, async |origin, stream| {
        origin.send(HEADERS, END_HEADERS, stream, &[&[0x3f, 0xe1, 0xff, 0x3f][..], OK].concat()).await;
    });
    assert_eq!(status(&text), "502");
    let bed = bed();
    let (text, dialled) = answer(&bed, GET, async |origin, stream| {
        // A field of 4000 bytes that is added to the table (6.2.1), and 10,000 references to it (6.1).
        let value = [&[0x7f, 0xa1, 0x1e][..], &[b'v'; 4000]].concat();
        let bomb = [OK, &[0x40, 1, b'a'], &value, &[0xbe; 10_000]].concat();
        origin.send(HEADERS, END_HEADERS, stream, &bomb).await;
    });
    assert_eq!((status(&text), dialled), ("502", 1));
    assert_eq!(bed.service.journal.refusals()["origin_bad_response"], 1);
}

/// The limit is advisory for an origin, so beyond it is no violation, and the reason is named.
#[test]
fn a_head_beyond_the_limits_is_named_and_not_asked_for_again() {
    let many: Vec<u8> = (0..150).flat_map(|number| field(&format!("a{number}"), "b")).collect();
    let long: Vec<u8> = (0..90).flat_map(|number| field(&format!("a{number}"), &"b".repeat(120))).collect();
    for fields in [many, long] {
        let settings = HttpSettings {
            limits: truepeer_http::HttpLimits {
                head_bytes: 10 << 10,
                fields: 100,
                ..truepeer_http::HttpLimits::default()
            },
            ..HttpSettings::default()
        };
        let bed = http2_bed(settings);
        let (text, dialled) = answer(&bed, GET, async move |origin, stream| {
            let block = [OK, &fields].concat();
            let (first, rest) = block.split_at(block.len().min(16_000));
            origin.send(HEADERS, if rest.is_empty() { END_HEADERS } else { 0 }, stream, first).await;
            if !rest.is_empty() {
                origin.send(9, END_HEADERS, stream, rest).await;
            }
        });
        assert_eq!((status(&text), dialled), ("502", 1), "{text}");
        assert_eq!(bed.service.journal.refusals()["origin_bad_response"], 1);
    }
}

/// A connection that may carry no request yet is not used: the next attempt is.
#[test]
fn an_origin_that_allows_no_streams_is_asked_again() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, POST).await;
        let mut first = Raw::begin(first, &[(3, 0)]).await;
        while let Some(frame) = first.next().await {
            assert_ne!(frame.kind, HEADERS);
        }
        let mut second = Raw::begin(second, &[]).await;
        let stream = second.request().await;
        second.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

/// The origin reads nothing, and its buffers are full. GOAWAY can't be sent, and nobody waits for it for
/// long.
#[test]
fn a_connection_that_cannot_be_ended_in_order_is_dropped() {
    let bed = bed_of(HttpTimeouts { half_closed: Duration::from_millis(1), ..impatient() });
    let origin = bed.origin.next_connection();
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    let service = std::rc::Rc::clone(&bed.service);
    bed.run(async move {
        say(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n").await;
        let mut origin = Raw::begin(origin, &[(4, 1 << 20)]).await;
        origin.request().await;
        origin.send(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes()).await;
        say(&mut client, &"x".repeat(250_000)).await;
        reactor.sleep(Duration::from_millis(20)).await;
        drop(client);
        reactor.sleep(Duration::from_millis(20)).await;
        service.origins.at(0).http2.forget(truepeer_origin::KeptBy::Everybody);
        reactor.sleep(2 * impatient().ping + Duration::from_millis(100)).await;
        assert!(origin.0.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_err(), "it is open still");
    });
}
