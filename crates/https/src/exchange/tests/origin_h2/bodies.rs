//! Requests with bodies that an origin did not process or did not answer: which of them are sent again, body
//! and all.

use super::*;

/// How the first connection treats a request.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    GoAway,
    RefusedStream,
    /// The connection ends without a word.
    Cut,
}

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";
const PUT: &str = "PUT / HTTP/1.1\r\nHost: a\r\n";
const BOTH: [Refusal; 2] = [Refusal::GoAway, Refusal::RefusedStream];

/// Sends a request whose body comes in two halves. The first connection refuses it after the first half; the
/// second one takes it. Returns the status and the body that the second one received.
fn halves(head: &str, refusal: Refusal, half: usize) -> (String, Vec<u8>) {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    let head = format!("{head}Content-Length: {}\r\n\r\n", half * 2);
    bed.run(async move {
        let body = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let received = std::rc::Rc::clone(&body);
        reactor.spawn(async move {
            let mut second = Raw::begin(second, &[(4, 1 << 20)]).await;
            while let Some(frame) = second.next().await {
                received.borrow_mut().extend(frame.payload.iter().filter(|_| frame.kind == DATA));
                if frame.flags & END_STREAM != 0 && matches!(frame.kind, DATA | HEADERS) {
                    second.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK).await;
                }
            }
        });
        say(&mut client, &head).await;
        let mut first = Raw::begin(first, &[(4, 1 << 20)]).await;
        first.send(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes()).await;
        let stream = first.request().await;
        say(&mut client, &"a".repeat(half)).await;
        let mut got = 0;
        while got < half {
            got += first.next_of(DATA).await.payload.len();
        }
        match refusal {
            Refusal::GoAway => first.go_away(0).await,
            Refusal::RefusedStream => {
                first.reset(stream, REFUSED_STREAM).await;
                // The next stream of this connection would be served.
                first.go_away(stream).await;
            }
            Refusal::Cut => first.cut().await,
        }
        let _ = client.write_all("b".repeat(half).as_bytes()).await;
        let status = head_of(&mut client).await;
        (status, body.take())
    })
}

/// The status; a refused client may be reset while it still sends.
async fn head_of(client: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { break };
        text.push(byte);
    }
    String::from_utf8(text).unwrap().split(' ').nth(1).unwrap_or("none").to_owned()
}

fn whole(half: usize) -> Vec<u8> {
    [vec![b'a'; half], vec![b'b'; half]].concat()
}

#[test]
fn a_body_that_was_not_processed_is_sent_again() {
    for refusal in BOTH {
        for half in [1, 100, 30_000] {
            assert_eq!(halves(POST, refusal, half), ("200".to_owned(), whole(half)), "{refusal:?} {half}");
        }
    }
}

/// Memory for it is limited.
#[test]
fn a_body_that_is_too_long_to_be_kept_fails_its_request() {
    for refusal in BOTH {
        let (status, _) = halves(POST, refusal, 100_000);
        assert_eq!(status, "502", "{refusal:?}");
    }
}

#[test]
fn only_an_idempotent_request_is_repeated_when_its_connection_breaks() {
    assert_eq!(halves(PUT, Refusal::Cut, 100), ("200".to_owned(), whole(100)));
    assert_eq!(halves(POST, Refusal::Cut, 100), ("502".to_owned(), Vec::new()));
}

#[test]
fn chunks_and_trailers_are_sent_again() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let mut client = bed.client();
    bed.run(async move {
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\nx-sum: 6\r\n\r\n";
        say(&mut client, request).await;
        let mut first = Raw::begin(first, &[]).await;
        first.request().await;
        // The trailers: the body has ended before the origin refuses it.
        first.request().await;
        first.go_away(0).await;
        let mut second = Raw::begin(second, &[]).await;
        let (stream, mut body) = (second.request().await, Vec::new());
        while body.len() < 6 {
            body.extend(second.next_of(DATA).await.payload);
        }
        assert_eq!(body, b"onetwo");
        assert_eq!(second.request().await, stream);
        second.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn a_body_goes_by_http1_where_the_origin_requires_that() {
    let bed = bed();
    let (first, mut second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let mut client = bed.client();
    bed.run(async move {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        say(&mut client, post).await;
        let mut first = Raw::begin(first, &[]).await;
        let stream = first.request().await;
        first.next_of(DATA).await;
        first.reset(stream, HTTP_1_1_REQUIRED).await;
        assert!(until(&mut second, "\r\n\r\nhello").await.starts_with("POST / HTTP/1.1\r\n"));
        say(&mut second, ok).await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
        // Remembered: this client connection asks by HTTP/1.1 from now on.
        say(&mut client, post).await;
        assert!(until(&mut second, "\r\n\r\nhello").await.starts_with("POST / HTTP/1.1\r\n"));
        say(&mut second, ok).await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}
