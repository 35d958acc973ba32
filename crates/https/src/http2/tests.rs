//! HTTP/2 in memory: h2's own client or hand-made frames, and an origin that follows a script.

mod frames;
mod gives_way;
mod hostile;
mod slow;
mod uploads;

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
use truepeer_origin::{HttpSettings, HttpTimeouts};
use truepeer_session::budget::Budget;
use truepeer_stream::reactor::Reactor;

use super::serve_http2;
use crate::exchange::tests::{Bed, bed, client_info, http2_bed, rest, say, until};

/// A client's end of a new connection.
fn connect(bed: &Bed) -> DuplexStream {
    let (client, ours) = duplex(1 << 16);
    bed.reactor.spawn(serve_http2(ours, client_info(), Rc::clone(&bed.service), None));
    client
}

/// A client on `stream`, and the result of its connection.
async fn speak(
    reactor: &Reactor,
    stream: DuplexStream,
) -> (SendRequest<Bytes>, Rc<Cell<Option<Result<(), h2::Error>>>>) {
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let ended = Rc::new(Cell::new(None));
    let note = Rc::clone(&ended);
    reactor.spawn(async move { note.set(Some(connection.await)) });
    (client.ready().await.unwrap(), ended)
}

/// Waits for the GOAWAY: then the client accepts no more requests.
async fn until_goaway(reactor: &Reactor, client: &mut SendRequest<Bytes>) {
    while poll_fn(|cx| client.poll_ready(cx)).await.is_ok() {
        reactor.sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for the connection's end, without an error.
async fn until_ended(reactor: &Reactor, ended: &Cell<Option<Result<(), h2::Error>>>) {
    loop {
        match ended.take() {
            Some(ended) => break ended.unwrap(),
            None => reactor.sleep(Duration::from_millis(5)).await,
        }
    }
}

fn request(method: Method) -> Request<()> {
    Request::builder().method(method).uri("https://a/x").body(()).unwrap()
}

fn ask(client: &mut SendRequest<Bytes>, request: Request<()>) -> (ResponseFuture, SendStream<Bytes>) {
    let is_end = *request.method() == Method::GET;
    client.send_request(request, is_end).unwrap()
}

/// The whole body, and the trailers.
async fn whole(response: Response<RecvStream>) -> Result<(String, Option<HeaderMap>), h2::Error> {
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        text.extend_from_slice(&data);
    }
    Ok((String::from_utf8(text).unwrap(), body.trailers().await?))
}

/// Sends as the window opens.
async fn upload(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(room)) => stream.send_data(data.split_to(room.min(data.len())), false)?,
            Some(Err(error)) => return Err(error),
            None => return Err(Reason::STREAM_CLOSED.into()),
        }
    }
    Ok(())
}

fn quick(linger: u64) -> HttpSettings {
    let linger = Duration::from_millis(linger);
    let timeouts = HttpTimeouts { linger, linger_pause: linger, ..HttpTimeouts::default() };
    HttpSettings { timeouts, ..HttpSettings::default() }
}

#[test]
fn after_an_early_response_the_rest_of_the_request_is_read() {
    let bed = bed(HttpSettings { methods: vec!["GET".to_owned()], ..quick(60_000) });
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let (answer, mut body) = ask(&mut client, request(Method::POST));
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 403);
        assert_eq!(whole(answer).await.unwrap().0, "403 Forbidden\n");
        // More than the stream's window: discarded bytes open it again.
        upload(&mut body, vec![b'x'; 20_000_000].into()).await.unwrap();
        body.send_data(Bytes::new(), true).unwrap();
        let (answer, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "ok");
    });
}

#[test]
fn a_client_that_keeps_sending_after_the_response_is_told_to_stop() {
    let bed = bed(HttpSettings { methods: vec!["GET".to_owned()], ..quick(1) });
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let (answer, mut body) = ask(&mut client, request(Method::POST));
        assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "403 Forbidden\n");
        assert_eq!(poll_fn(|cx| body.poll_reset(cx)).await.unwrap(), Reason::NO_ERROR);
        let (answer, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "ok");
    });
}

#[test]
fn trailers_pass_both_ways() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let mut asked = request(Method::POST);
        asked.headers_mut().insert("te", "trailers".parse().unwrap());
        let (answer, mut body) = ask(&mut client, asked);
        body.send_data("hello".into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "5".parse().unwrap());
        trailers.insert("content-length", "7".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        let head = until(&mut origin, "\r\n\r\n").await;
        assert!(
            head.contains("Transfer-Encoding: chunked\r\n") && head.contains("TE: trailers\r\n"),
            "{head}"
        );
        assert_eq!(until(&mut origin, "\r\n\r\n").await, "5\r\nhello\r\n0\r\nx-sum: 5\r\n\r\n");
        say(
            &mut origin,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-End: 1\r\n\r\n",
        )
        .await;
        let (text, trailers) = whole(answer.await.unwrap()).await.unwrap();
        assert_eq!((text.as_str(), trailers.unwrap().get("x-end").unwrap().as_bytes()), ("ok", &b"1"[..]));
    });
}

/// RFC 9113 8.2.1 forbids it, and origins by HTTP/2 refuse it.
#[test]
fn values_reach_the_origin_without_white_space_around_them() {
    let by_http2 = http2_bed(HttpSettings::default());
    let (stream, origin, reactor) =
        (connect(&by_http2), by_http2.origin.next_connection(), by_http2.reactor.clone());
    by_http2.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let mut asked = request(Method::POST);
        asked.headers_mut().insert("x-a", " begin end\t ".parse().unwrap());
        asked.headers_mut().append("cookie", " a=b ".parse().unwrap());
        asked.headers_mut().append("cookie", "c=d ".parse().unwrap());
        let (_answer, mut body) = ask(&mut client, asked);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-b", "\tlast ".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        let mut origin = h2::server::handshake(origin).await.unwrap();
        let (asked, mut respond) = origin.accept().await.unwrap().unwrap();
        assert_eq!(asked.headers()["x-a"], "begin end");
        assert_eq!(asked.headers()["cookie"], "a=b; c=d");
        reactor.spawn(async move { while origin.accept().await.is_some() {} });
        let mut body = asked.into_body();
        assert!(body.data().await.is_none());
        assert_eq!(body.trailers().await.unwrap().unwrap()["x-b"], "last");
        respond.send_response(Response::new(()), true).unwrap();
    });
}

fn crumbs(cookies: usize, bytes: usize) -> Request<()> {
    let mut asked = request(Method::GET);
    for number in 0..cookies {
        let cookie = format!("c{number}={}", "v".repeat(bytes));
        asked.headers_mut().append("cookie", cookie.parse().unwrap());
    }
    asked
}

/// Browsers send each cookie in a field, and keep up to 180 of a site.
#[test]
fn as_many_cookies_pass_as_browsers_keep() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        for (cookies, bytes) in [(97, 10), (180, 150), (600, 4)] {
            let (answer, _) = ask(&mut client, crumbs(cookies, bytes));
            let head = until(&mut origin, "\r\n\r\n").await;
            let line = head.lines().find(|line| line.starts_with("cookie: ")).expect("the cookies");
            assert_eq!(line.split("; ").count(), cookies);
            let set: String =
                (0..cookies.min(180)).map(|number| format!("Set-Cookie: c{number}=x\r\n")).collect();
            say(&mut origin, &format!("HTTP/1.1 200 OK\r\n{set}Content-Length: 0\r\n\r\n")).await;
            let answer = answer.await.unwrap();
            assert_eq!(answer.headers().get_all("set-cookie").iter().count(), cookies.min(180));
        }
    });
}

#[test]
fn heads_of_http2_have_the_limits_of_http1() {
    let limits =
        truepeer_http::HttpLimits { head_bytes: 4096, fields: 20, ..truepeer_http::HttpLimits::default() };
    let bed = bed(HttpSettings { limits, ..HttpSettings::default() });
    let (stream, _origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    let journal = Rc::clone(&bed.service);
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let mut many = request(Method::GET);
        (0..21).for_each(|number| {
            many.headers_mut()
                .append(http::HeaderName::try_from(format!("x{number}")).unwrap(), "y".parse().unwrap());
        });
        for refused in [many, crumbs(100, 40)] {
            let (answer, _) = ask(&mut client, refused);
            assert_eq!(answer.await.unwrap().status(), 431);
        }
    });
    let refusals = journal.journal.refusals();
    assert_eq!((refusals["too_many_fields"], refusals["head_too_long"]), (1, 1));
}

#[test]
fn a_body_waits_for_100_continue() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let mut asked = request(Method::PUT);
        asked.headers_mut().insert("expect", "100-continue".parse().unwrap());
        asked.headers_mut().insert("content-length", "5".parse().unwrap());
        let (answer, mut body) = ask(&mut client, asked);
        body.send_data("hello".into(), true).unwrap();
        assert!(until(&mut origin, "\r\n\r\n").await.contains("Expect: 100-continue\r\n"));
        say(&mut origin, "HTTP/1.1 100 Continue\r\n\r\n").await;
        until(&mut origin, "hello").await;
        say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(answer.await.unwrap().status(), 204);
    });
}

#[test]
fn a_truncated_response_resets_its_stream() {
    for head in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        let bed = bed(HttpSettings::default());
        let (stream, mut origin, reactor) =
            (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
        bed.run(async move {
            let (mut client, _) = speak(&reactor, stream).await;
            let (answer, _) = ask(&mut client, request(Method::GET));
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, &format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\n")).await;
            let answer = answer.await.unwrap();
            drop(origin);
            assert_eq!(whole(answer).await.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
        });
    }
}

#[test]
fn a_body_that_can_not_be_passed_becomes_502_for_http2_while_nothing_has_left() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let (answer, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX").await;
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 502);
        assert_eq!(whole(answer).await.unwrap().0, "502 Bad Gateway\n");
    });
}

#[test]
fn a_cancelled_request_is_cancelled_at_the_origin() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let (_answer, mut body) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        body.send_reset(Reason::CANCEL);
        assert_eq!(rest(&mut origin).await, "");
    });
}

#[test]
fn open_requests_are_finished_before_a_drained_connection_ends() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        let (mut client, ended) = speak(&reactor, stream).await;
        let (answer, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        reactor.remote().drain();
        until_goaway(&reactor, &mut client).await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "ok");
        until_ended(&reactor, &ended).await;
    });
}

/// HAProxy fails a request that it sends after a GOAWAY, so its first one must not meet one.
#[test]
fn a_new_connections_first_request_is_answered_while_draining() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    bed.run(async move {
        reactor.remote().drain();
        let (mut client, ended) = speak(&reactor, stream).await;
        reactor.sleep(Duration::from_millis(100)).await;
        let (answer, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        until_goaway(&reactor, &mut client).await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "ok");
        until_ended(&reactor, &ended).await;
    });
}

#[test]
fn a_new_connection_without_a_request_is_closed_by_a_drain() {
    let mut settings = HttpSettings::default();
    settings.timeouts.linger = Duration::from_millis(50);
    let bed = bed(settings);
    let (stream, reactor) = (connect(&bed), bed.reactor.clone());
    bed.run(async move {
        reactor.remote().drain();
        let (_client, ended) = speak(&reactor, stream).await;
        until_ended(&reactor, &ended).await;
    });
}

#[test]
fn a_stream_without_a_free_session_is_refused_for_a_retry() {
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    let sessions = bed.service.sessions.clone();
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let others = sessions.take(sessions.limit()).unwrap();
        let (first, _) = ask(&mut client, request(Method::GET));
        until(&mut origin, "\r\n\r\n").await;
        let (second, _) = ask(&mut client, request(Method::GET));
        assert_eq!(second.await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
        drop(others);
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(whole(first.await.unwrap()).await.unwrap().0, "ok");
    });
}

/// The first stream of a connection takes none of its client's share.
#[test]
fn a_stream_beyond_its_clients_share_is_refused_for_a_retry() {
    let bed = bed(HttpSettings::default());
    let (stream, ours) = duplex(1 << 16);
    let (service, share) = (Rc::clone(&bed.service), Budget::new(1));
    bed.reactor.spawn(serve_http2(ours, client_info(), service, Some(share.clone())));
    let mut origins = [(); 2].map(|()| bed.origin.next_connection());
    let reactor = bed.reactor.clone();
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let mut answers = Vec::new();
        for origin in &mut origins {
            answers.push(ask(&mut client, request(Method::GET)).0);
            until(origin, "\r\n\r\n").await;
        }
        let (third, _) = ask(&mut client, request(Method::GET));
        assert_eq!(third.await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
        for (origin, answer) in origins.iter_mut().zip(answers) {
            say(origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            assert_eq!(whole(answer.await.unwrap()).await.unwrap().0, "ok");
        }
        while share.used() > 0 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
}

/// Bytes that the client does not take are not read from the origin.
#[test]
fn a_slow_client_costs_little_memory() {
    const WHOLE: usize = 4 << 20;
    const HELD: usize = 1 << 20;
    let bed = bed(HttpSettings::default());
    let (stream, mut origin, reactor) = (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
    let written = Rc::new(Cell::new(0));
    let count = Rc::clone(&written);
    bed.reactor.spawn(async move {
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, &format!("HTTP/1.1 200 OK\r\nContent-Length: {WHOLE}\r\n\r\n")).await;
        while count.get() < WHOLE {
            let len = origin.write(&[b'x'; 16 << 10][..(WHOLE - count.get()).min(16 << 10)]).await.unwrap();
            count.set(count.get() + len);
        }
    });
    bed.run(async move {
        let (mut client, _) = speak(&reactor, stream).await;
        let (answer, _) = ask(&mut client, request(Method::GET));
        let (mut body, mut got) = (answer.await.unwrap().into_body(), 0);
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            got += data.len();
            // The other tasks get many turns meanwhile.
            for _ in 0..20 {
                reactor.yield_now().await;
            }
            assert!(written.get() - got.min(written.get()) <= HELD, "{} of {}", got, written.get());
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(got, WHOLE);
    });
}

/// The window opens a little at a time, or not at all.
#[test]
fn a_client_that_reads_too_slowly_is_reset() {
    for (pause, most_rounds) in [(Duration::from_millis(5), usize::MAX), (Duration::ZERO, 1)] {
        let timeouts = HttpTimeouts { send: Duration::from_millis(300), ..HttpTimeouts::default() };
        let bed = bed(HttpSettings { timeouts, min_rate: u64::MAX, ..HttpSettings::default() });
        let (stream, mut origin, reactor) =
            (connect(&bed), bed.origin.next_connection(), bed.reactor.clone());
        bed.run(async move {
            let (mut client, _) = speak(&reactor, stream).await;
            let (answer, _) = ask(&mut client, request(Method::GET));
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await;
            reactor.spawn(async move { while origin.write_all(&[b'x'; 4096]).await.is_ok() {} });
            let mut body = answer.await.unwrap().into_body();
            let mut rounds = 0;
            let error = loop {
                match body.data().await {
                    Some(Ok(data)) if rounds < most_rounds => {
                        body.flow_control().release_capacity(data.len()).unwrap();
                        rounds += 1;
                        reactor.sleep(pause).await;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("ended as if it were complete"),
                }
            };
            // The response is not taken as complete, and the connection continues.
            assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
            assert!(client.ready().await.is_ok());
        });
    }
}
