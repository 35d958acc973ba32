//! Origins that answer before they have read the request. The response arrives whole, however they stop
//! reading, and however the client stops sending.

use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::Request;
use tokio::io::{WriteHalf, duplex, split};

use super::*;
use crate::exchange::tests::client_info;
use crate::http2::serve_http2;

const BODY: usize = 500_000;
/// What the origin has answered, and how it goes on once the client has the head. `true`: then it closes the
/// connection.
type Answer = (&'static str, Vec<u8>, Vec<u8>, bool);

/// `:status: 413` with the length of `no`.
fn refusal(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &[b"\x08\x03413", &field("content-length", "2")[..]].concat())
}

fn early_answers(stream: u32) -> Vec<Answer> {
    let head = refusal(stream);
    let (open, end) = (frame(DATA, 0, stream, b"no"), frame(DATA, END_STREAM, stream, b"no"));
    let reset = frame(RST_STREAM, 0, stream, &NO_ERROR.to_be_bytes());
    let error = frame(RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes());
    let going = frame(GOAWAY, 0, 0, &[stream.to_be_bytes(), NO_ERROR.to_be_bytes()].concat());
    let all = |parts: &[&Vec<u8>]| parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
    vec![
        ("all, and a reset", all(&[&head, &end, &reset]), Vec::new(), false),
        ("all, and a reset for an error", all(&[&head, &end, &error]), Vec::new(), false),
        ("all, then a reset", all(&[&head, &end]), reset.clone(), false),
        ("the head, then the rest and a reset", head.clone(), all(&[&end, &reset]), false),
        ("no end, and a reset", all(&[&head, &open, &reset]), Vec::new(), false),
        ("the head, then no end and a reset", head.clone(), all(&[&open, &reset]), false),
        ("all, and GOAWAY", all(&[&head, &end, &going]), Vec::new(), false),
        ("all, a reset, GOAWAY, and the end", all(&[&head, &end, &reset, &going]), Vec::new(), true),
        ("all, and the end", all(&[&head, &end]), Vec::new(), true),
        ("the head, then the rest and the end", head.clone(), end, true),
        ("no end, and the connection's", all(&[&head, &open]), Vec::new(), true),
        ("the head, then no end and the connection's", head, open, true),
    ]
}

fn lingering_bed() -> Bed {
    let linger = Duration::from_millis(50);
    bed_of(HttpTimeouts { linger, linger_pause: linger, ..HttpTimeouts::default() })
}

/// Sends as long as anybody takes it.
async fn keep_sending(mut client: WriteHalf<DuplexStream>) {
    for _ in 0..BODY / 1000 {
        if client.write_all(&[b'x'; 1000]).await.is_err() {
            return;
        }
    }
}

#[test]
fn http1_clients_that_still_send_get_a_whole_answer() {
    for number in 0..early_answers(1).len() {
        let bed = lingering_bed();
        let (origin, client, reactor) = (bed.origin.next_connection(), bed.client(), bed.reactor.clone());
        bed.run(async move {
            let (mut reading, mut writing) = split(client);
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n");
            writing.write_all(head.as_bytes()).await.unwrap();
            reactor.spawn(keep_sending(writing));
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            let (name, first, then, cut) = early_answers(stream).swap_remove(number);
            origin.0.write_all(&first).await.unwrap();
            let mut text = Vec::new();
            if !then.is_empty() {
                while !text.ends_with(b"\r\n\r\n") {
                    text.push(reading.read_u8().await.unwrap());
                }
                origin.0.write_all(&then).await.unwrap();
            }
            if cut {
                origin.cut().await;
            }
            reading.read_to_end(&mut text).await.unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.starts_with("HTTP/1.1 413 ") && text.ends_with("\r\n\r\nno"), "{name}: {text}");
        });
        assert!(bed.service.journal.refusals().is_empty(), "{number}: {:?}", bed.service.journal.refusals());
    }
}

/// A client by HTTP/2 and its upload, of this length.
pub(super) async fn upload(
    bed: &Bed,
    client: DuplexStream,
    length: usize,
) -> (ResponseFuture, SendStream<Bytes>) {
    let (client, connection) = h2::client::handshake(client).await.unwrap();
    bed.reactor.spawn(async move {
        let _ = connection.await;
    });
    let request = Request::post("https://a/x").header("content-length", length).body(()).unwrap();
    client.ready().await.unwrap().send_request(request, false).unwrap()
}

pub(super) fn http2_client(bed: &Bed) -> DuplexStream {
    let (client, ours) = duplex(1 << 16);
    bed.reactor.spawn(serve_http2(ours, client_info(), Rc::clone(&bed.service), None));
    client
}

async fn body_of(response: http::Response<h2::RecvStream>) -> Result<String, h2::Error> {
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data?);
    }
    Ok(String::from_utf8(text).unwrap())
}

async fn keep_uploading(mut body: SendStream<Bytes>) {
    for _ in 0..BODY / 1000 {
        body.reserve_capacity(1000);
        if !matches!(poll_fn(|cx| body.poll_capacity(cx)).await, Some(Ok(_))) {
            return;
        }
        let piece = vec![b'x'; body.capacity().min(1000)];
        if body.send_data(piece.into(), false).is_err() {
            return;
        }
    }
    // An end before the length is another test's.
    let _ = poll_fn(|cx| body.poll_reset(cx)).await;
}

#[test]
fn http2_clients_that_still_send_get_a_whole_answer() {
    for number in 0..early_answers(1).len() {
        let bed = Rc::new(lingering_bed());
        let (origin, client) = (bed.origin.next_connection(), http2_client(&bed));
        let of_test = Rc::clone(&bed);
        bed.run(async move {
            let (answer, body) = upload(&of_test, client, BODY).await;
            of_test.reactor.spawn(keep_uploading(body));
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            let (name, first, then, cut) = early_answers(stream).swap_remove(number);
            origin.0.write_all(&first).await.unwrap();
            let answer = if then.is_empty() {
                if cut {
                    origin.cut().await;
                }
                answer.await
            } else {
                let answer = answer.await;
                origin.0.write_all(&then).await.unwrap();
                if cut {
                    origin.cut().await;
                }
                answer
            };
            let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(answer.status(), 413, "{name}");
            assert_eq!(
                body_of(answer).await.map_err(|error| format!("{name}: {error}")),
                Ok("no".to_owned())
            );
        });
        assert!(bed.service.journal.refusals().is_empty(), "{number}: {:?}", bed.service.journal.refusals());
    }
}

/// The origin has answered and closed the connection, and truepeer, which has not read it yet, writes. In the
/// second round the answer stands behind more PINGs than truepeer holds answers to.
#[test]
fn an_answer_is_read_although_nothing_can_be_sent_any_more() {
    for pings in [0, 3000] {
        let bed = lingering_bed();
        let (origin, is_broken) = (bed.origin.next_connection(), Rc::clone(&bed.origin.is_broken));
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        bed.run(async move {
            say(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbegin").await;
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.next_of(DATA).await;
            is_broken.set(true);
            origin.0.write_all(&frame(PING, 0, 0, &[7; 8]).repeat(pings)).await.unwrap();
            origin.0.write_all(&refusal(stream)).await.unwrap();
            origin.send(DATA, END_STREAM, stream, b"no").await;
            origin.cut().await;
            reactor.sleep(Duration::from_millis(10)).await;
            say(&mut client, "more").await;
            let text = rest(&mut client).await;
            assert!(
                text.starts_with("HTTP/1.1 413 ") && text.ends_with("\r\n\r\nno"),
                "{pings} PINGs: {text}"
            );
        });
    }
}

/// As curl does: it has seen the status, and ends its body before the length. `h2` would reset the stream,
/// with the rest of the answer.
#[test]
fn a_client_that_ends_its_body_early_gets_the_whole_answer() {
    for by_http2 in [false, true] {
        let settings = HttpSettings::default();
        let bed = if by_http2 { http2_bed(settings) } else { crate::exchange::tests::bed(settings) };
        let bed = Rc::new(bed);
        let (mut origin, client) = (bed.origin.next_connection(), http2_client(&bed));
        let of_test = Rc::clone(&bed);
        bed.run(async move {
            let (answer, mut body) = upload(&of_test, client, BODY).await;
            body.send_data("begin".into(), false).unwrap();
            let (first, then) = if by_http2 {
                let mut raw = Raw::begin(origin, &[]).await;
                let stream = raw.request().await;
                origin = raw.0;
                (refusal(stream), frame(DATA, END_STREAM, stream, b"no"))
            } else {
                until(&mut origin, "\r\n\r\n").await;
                (b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n".to_vec(), b"no".to_vec())
            };
            origin.write_all(&first).await.unwrap();
            let answer = answer.await.unwrap();
            body.send_data(Bytes::new(), true).unwrap();
            of_test.reactor.sleep(Duration::from_millis(20)).await;
            origin.write_all(&then).await.unwrap();
            assert_eq!(body_of(answer).await.map_err(|error| error.to_string()), Ok("no".to_owned()));
        });
        assert!(bed.service.journal.refusals().is_empty(), "{:?}", bed.service.journal.refusals());
    }
}

/// RFC 9113 8.1.1: without an answer that has begun, such a request is malformed.
#[test]
fn a_body_that_ends_early_before_the_answer_is_malformed() {
    let bed = Rc::new(bed());
    let (origin, client) = (bed.origin.next_connection(), http2_client(&bed));
    let of_test = Rc::clone(&bed);
    bed.run(async move {
        let (answer, mut body) = upload(&of_test, client, BODY).await;
        body.send_data("begin".into(), false).unwrap();
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(answer.await.unwrap_err().reason(), Some(Reason::PROTOCOL_ERROR));
        assert_eq!(origin.next_of(RST_STREAM).await.stream, stream);
    });
}

/// A body whose end comes after the answer has begun reaches the origin whole.
#[test]
fn a_body_may_end_after_the_answer_began() {
    let bed = Rc::new(bed());
    let (origin, client) = (bed.origin.next_connection(), http2_client(&bed));
    let of_test = Rc::clone(&bed);
    bed.run(async move {
        let (answer, mut body) = upload(&of_test, client, 10).await;
        body.send_data("begin".into(), false).unwrap();
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        origin.send(HEADERS, END_HEADERS, stream, OK).await;
        let answer = answer.await.unwrap();
        body.send_data("-ends".into(), true).unwrap();
        let mut came = Vec::new();
        loop {
            let data = origin.next_of(DATA).await;
            came.extend(data.payload);
            if data.flags & END_STREAM != 0 {
                break;
            }
        }
        assert_eq!(came, b"begin-ends");
        origin.send(DATA, END_STREAM, stream, b"ok").await;
        assert_eq!(body_of(answer).await.unwrap(), "ok");
    });
}

/// The answer takes longer than the client may take for its body.
#[test]
fn a_body_that_has_ended_early_is_not_waited_for() {
    let bed = Rc::new(bed_of(HttpTimeouts { body: Duration::from_millis(50), ..HttpTimeouts::default() }));
    let (origin, client) = (bed.origin.next_connection(), http2_client(&bed));
    let of_test = Rc::clone(&bed);
    bed.run(async move {
        let (answer, mut body) = upload(&of_test, client, BODY).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        origin.0.write_all(&refusal(stream)).await.unwrap();
        let answer = answer.await.unwrap();
        body.send_data(Bytes::new(), true).unwrap();
        of_test.reactor.sleep(Duration::from_millis(150)).await;
        origin.send(DATA, END_STREAM, stream, b"no").await;
        assert_eq!(body_of(answer).await.map_err(|error| error.to_string()), Ok("no".to_owned()));
    });
}
