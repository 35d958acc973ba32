//! Who shares a connection, and what one request can do to the others.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::early::{http2_client, upload};
use super::*;

#[test]
fn requests_of_several_clients_share_a_connection_and_leave_in_one_send() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two) = (bed.client(), bed.client());
    let (writes, reactor) = (bed.origin.writes(), bed.reactor.clone());
    bed.run(async move {
        say(&mut one, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let first = origin.request().await;
        origin.answer(first, b"1").await;
        until(&mut one, "1\r\n1\r\n0\r\n\r\n").await;
        let before = writes.get();
        // In a turn in which neither client's task has worked, they work in this order.
        reactor.yield_now().await;
        say(&mut one, GET).await;
        say(&mut two, GET).await;
        let (second, third) = (origin.request().await, origin.request().await);
        assert_eq!((first, second, third), (1, 3, 5));
        assert!(writes.get() - before <= 2, "{} writes", writes.get() - before);
        // In another order than asked.
        origin.answer(third, b"3").await;
        origin.answer(second, b"2").await;
        assert!(until(&mut one, "\r\n0\r\n\r\n").await.ends_with("\r\n\r\n1\r\n2\r\n0\r\n\r\n"));
        assert!(until(&mut two, "\r\n0\r\n\r\n").await.ends_with("\r\n\r\n1\r\n3\r\n0\r\n\r\n"));
        drop((one, two));
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

#[test]
fn requests_that_come_before_the_first_connection_wait_for_it() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let mut clients: Vec<_> = (0..10).map(|_| bed.client()).collect();
    bed.run(async move {
        for client in &mut clients {
            say(client, GET).await;
        }
        let mut origin = Raw::begin(origin, &[]).await;
        for _ in 0..clients.len() {
            let stream = origin.request().await;
            origin.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
        }
        for client in &mut clients {
            assert!(head(client).await.starts_with("HTTP/1.1 200 OK\r\n"));
        }
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

#[test]
fn the_origins_limit_of_streams_is_kept() {
    let bed = bed();
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (mut one, mut two) = (bed.client(), bed.client());
    bed.run(async move {
        say(&mut one, GET).await;
        let mut first = Raw::begin(first, &[(3, 1)]).await;
        let stream = first.request().await;
        say(&mut two, GET).await;
        let mut second = Raw::begin(second, &[(3, 1)]).await;
        let other = second.request().await;
        second.answer(other, b"two").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
        first.answer(stream, b"one").await;
        assert!(head(&mut one).await.starts_with("HTTP/1.1 200"));
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

/// The slow one takes nothing of more than a connection's default window.
#[test]
fn a_slow_client_stops_its_own_stream_only() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut slow, mut other) = (bed.client(), bed.client());
    bed.run(async move {
        say(&mut slow, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        // The windows of the client's SETTINGS apply from now on.
        origin.send(SETTINGS, ACK, 0, &[]).await;
        let stream = origin.request().await;
        origin.send(HEADERS, END_HEADERS, stream, OK).await;
        // As much as the stream's window allows. The client's buffer takes less.
        for _ in 0..8 {
            origin.send(DATA, 0, stream, &[b'x'; 16 << 10]).await;
        }
        for _ in 0..20 {
            say(&mut other, GET).await;
            let quick = origin.request().await;
            origin.send(HEADERS, END_HEADERS, quick, &[OK, &field("content-length", "16384")].concat()).await;
            origin.send(DATA, END_STREAM, quick, &[b'y'; 16 << 10]).await;
            head(&mut other).await;
            let mut body = vec![0; 16 << 10];
            other.read_exact(&mut body).await.unwrap();
        }
        // It goes on as soon as the client takes bytes.
        origin.send(DATA, END_STREAM, stream, b"").await;
        let text = until(&mut slow, "\r\n0\r\n\r\n").await;
        assert_eq!(text.matches('x').count(), 8 * (16 << 10));
    });
}

/// An origin that sends each stream this many bytes, as the windows allow, a frame of each in turn.
async fn endless(stream: DuplexStream, bytes: usize) {
    const MOST: usize = 16 << 10;
    let mut origin = Raw::begin(stream, &[]).await;
    let (mut connection, mut first) = (65_535, 65_535);
    // For each stream: how much of its body is not yet sent, and how much the window allows.
    let mut streams = BTreeMap::<u32, (usize, usize)>::new();
    while let Some(frame) = origin.next().await {
        let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap()) as usize;
        match (frame.kind, frame.stream) {
            // SETTINGS_INITIAL_WINDOW_SIZE; no request has come before.
            (SETTINGS, _) if frame.flags & ACK == 0 => {
                let at = frame.payload.chunks(6).position(|one| one[..2] == [0, 4]).unwrap();
                first = number(6 * at + 2);
                origin.send(SETTINGS, ACK, 0, &[]).await;
            }
            (PING, _) => origin.send(PING, ACK, 0, &frame.payload).await,
            (WINDOW_UPDATE, 0) => connection += number(0),
            (WINDOW_UPDATE, stream) => {
                streams.entry(stream).and_modify(|(_, window)| *window += number(0));
            }
            (HEADERS, stream) => {
                let head = [OK, &field("content-length", &bytes.to_string())].concat();
                origin.send(HEADERS, END_HEADERS, stream, &head).await;
                streams.insert(stream, (bytes, first));
            }
            _ => {}
        }
        loop {
            let before = connection;
            for (stream, (left, window)) in &mut streams {
                let piece = MOST.min(*left).min(*window).min(connection);
                if piece > 0 {
                    (*left, *window, connection) = (*left - piece, *window - piece, connection - piece);
                    let flags = if *left == 0 { END_STREAM } else { 0 };
                    origin.send(DATA, flags, *stream, &[b'x'; MOST][..piece]).await;
                }
            }
            if connection == before {
                break;
            }
        }
    }
}

/// They take nothing, and hold all that their windows allow.
#[test]
fn slow_clients_on_all_other_streams_stop_no_body() {
    const BYTES: usize = 20 << 20;
    let bed = bed();
    bed.reactor.spawn(endless(bed.origin.next_connection(), BYTES));
    let mut slow: Vec<_> = (0..127).map(|_| bed.client()).collect();
    let mut client = bed.client();
    bed.run(async move {
        for slow in &mut slow {
            say(slow, GET).await;
            assert!(head(slow).await.starts_with("HTTP/1.1 200"));
        }
        say(&mut client, GET).await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
        let mut body = vec![0; BYTES];
        client.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|&byte| byte == b'x'));
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

/// Node reads nothing while it writes. The body that waits for it must not stop what it writes.
#[test]
fn an_origin_that_writes_before_it_reads_is_read() {
    const PIECES: usize = 8;
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two, reactor) = (bed.client(), bed.client(), bed.reactor.clone());
    bed.run(async move {
        say(&mut one, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n").await;
        let mut origin = Raw::begin(origin, &[(4, 1 << 20)]).await;
        origin.send(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes()).await;
        origin.request().await;
        say(&mut two, GET).await;
        let second = origin.request().await;
        reactor.spawn(async move {
            let _ = one.write_all(&[b'x'; 500_000]).await;
        });
        // The body fills all buffers on its way.
        reactor.sleep(Duration::from_millis(20)).await;
        origin.send(HEADERS, END_HEADERS, second, OK).await;
        for _ in 0..PIECES {
            origin.send(DATA, 0, second, &[b'y'; 16 << 10]).await;
        }
        origin.send(DATA, END_STREAM, second, b"").await;
        let text = until(&mut two, "\r\n0\r\n\r\n").await;
        assert_eq!(text.matches('y').count(), PIECES * (16 << 10));
    });
}

/// Its body waits for the origin's window, and is noticed to be wanted by nobody.
#[test]
fn a_client_that_leaves_while_its_body_waits_resets_its_stream() {
    let bed = Rc::new(bed());
    let origin = bed.origin.next_connection();
    let of_test = Rc::clone(&bed);
    bed.run(async move {
        let (_answer, mut body) = upload(&of_test, http2_client(&of_test), 10).await;
        body.send_data("0123456789".into(), true).unwrap();
        let mut origin = Raw::begin(origin, &[(4, 0)]).await;
        let stream = origin.request().await;
        of_test.reactor.sleep(Duration::from_millis(5)).await;
        body.send_reset(h2::Reason::CANCEL);
        let reset = of_test.reactor.timeout(Duration::from_secs(10), origin.next_of(RST_STREAM)).await;
        assert_eq!(reset.expect("the stream stays open").stream, stream);
    });
}

/// It has sent all that it has to send, and reads on.
#[test]
fn a_client_that_ends_its_direction_while_its_body_waits_is_served() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    bed.run(async move {
        say(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789").await;
        let mut origin = Raw::begin(origin, &[(4, 4)]).await;
        let stream = origin.request().await;
        assert_eq!(origin.next_of(DATA).await.payload, b"0123");
        client.shutdown().await.unwrap();
        reactor.sleep(Duration::from_millis(5)).await;
        origin.send(WINDOW_UPDATE, 0, stream, &6u32.to_be_bytes()).await;
        assert_eq!(origin.next_of(DATA).await.payload, b"456789");
        origin.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn a_body_waits_for_the_origins_window() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let mut client = bed.client();
    bed.run(async move {
        // SETTINGS_INITIAL_WINDOW_SIZE: nothing may be sent at first.
        say(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789").await;
        let mut origin = Raw::begin(origin, &[(4, 0)]).await;
        let stream = origin.request().await;
        let mut body = Vec::new();
        for window in [4u32, 6] {
            origin.send(WINDOW_UPDATE, 0, stream, &window.to_be_bytes()).await;
            while body.len() % 10 != if window == 4 { 4 } else { 0 } || body.is_empty() {
                body.extend(origin.next_of(DATA).await.payload);
            }
        }
        assert_eq!(body, b"0123456789");
        origin.answer(stream, b"").await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn trailers_and_interim_responses_pass() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        let hints = [&b"\x08\x03103"[..], &field("link", "</a>")].concat();
        origin.send(HEADERS, END_HEADERS, stream, &hints).await;
        assert_eq!(head(&mut client).await, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        origin.send(HEADERS, END_HEADERS, stream, OK).await;
        origin.send(DATA, 0, stream, b"hello").await;
        origin.send(HEADERS, END_HEADERS | END_STREAM, stream, &field("x-sum", "5")).await;
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(until(&mut client, "\r\n\r\n").await, "5\r\nhello\r\n0\r\nx-sum: 5\r\n\r\n");
    });
}

/// Servers of gRPC answer a failed call so, in one segment.
#[test]
fn trailers_of_a_response_without_data_pass() {
    let answer = |stream| {
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &field("grpc-status", "5"));
        [frame(HEADERS, END_HEADERS, stream, OK), trailers].concat()
    };
    let bed = Rc::new(bed());
    let origin = bed.origin.next_connection();
    let of_test = Rc::clone(&bed);
    bed.run(async move {
        let mut client = of_test.client();
        say(&mut client, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        origin.0.write_all(&answer(stream)).await.unwrap();
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(until(&mut client, "\r\n\r\n").await, "0\r\ngrpc-status: 5\r\n\r\n");
        // A length that is not reached stays an error.
        say(&mut client, GET).await;
        let stream = origin.request().await;
        let short = [OK, &field("content-length", "5")].concat();
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &field("grpc-status", "5"));
        let cut = [frame(HEADERS, END_HEADERS, stream, &short), trailers].concat();
        origin.0.write_all(&cut).await.unwrap();
        assert!(head(&mut client).await.starts_with("HTTP/1.1 502"));
        let (response, mut body) = upload(&of_test, http2_client(&of_test), 0).await;
        body.send_data(Bytes::new(), true).unwrap();
        let stream = origin.request().await;
        origin.0.write_all(&answer(stream)).await.unwrap();
        let mut body = response.await.unwrap().into_body();
        assert!(body.data().await.is_none());
        let trailers = body.trailers().await.unwrap().expect("trailers");
        assert_eq!(trailers["grpc-status"], "5");
    });
}

#[test]
fn a_client_that_leaves_resets_its_stream_only() {
    let bed = bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two) = (bed.client(), bed.client());
    bed.run(async move {
        say(&mut one, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let left = origin.request().await;
        say(&mut two, GET).await;
        let stays = origin.request().await;
        one.shutdown().await.unwrap();
        drop(one);
        let reset = origin.next_of(RST_STREAM).await;
        assert_eq!(reset.stream, left);
        // The answer may have been on its way.
        origin.answer(left, b"late").await;
        origin.answer(stays, b"ok").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
    });
}
