//! Connections over many requests: when they are given up, and when requests open more of them.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::duplex;
use truepeer_policy::BackendAddr;
use truepeer_stream::reactor::Reactor;

use super::*;
use crate::exchange::serve_http1;
use crate::exchange::tests::client_info;

const OK_HTTP1: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Restarting programs close the connections that wait in their backlog.
#[test]
fn an_origin_that_closes_connections_at_once_is_tried_again() {
    let bed = bed();
    drop((bed.origin.next_connection(), bed.origin.next_connection()));
    let third = bed.origin.next_connection();
    let mut clients = [bed.client(), bed.client()];
    bed.run(async move {
        for client in &mut clients {
            say(client, POST).await;
        }
        let mut third = Raw::begin(third, &[]).await;
        for _ in 0..2 {
            let stream = third.request().await;
            third.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
        }
        for client in &mut clients {
            assert!(head(client).await.starts_with("HTTP/1.1 200"));
        }
    });
    assert_eq!(bed.origin.dialled.get(), 3);
}

/// It comes while another one dials, whose time is over first.
#[test]
fn a_request_that_waits_for_anothers_dialling_has_its_own_time() {
    let bed = bed();
    bed.origin.lacking.set(usize::MAX);
    let origin = bed.origin.next_connection();
    let (mut one, mut two) = (bed.client(), bed.client());
    let (lacking, reactor) = (Rc::clone(&bed.origin.lacking), bed.reactor.clone());
    bed.run(async move {
        say(&mut one, GET).await;
        reactor.sleep(Duration::from_millis(800)).await;
        say(&mut two, GET).await;
        assert!(head(&mut one).await.starts_with("HTTP/1.1 503"));
        lacking.set(0);
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        origin.answer(stream, b"").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn an_origin_that_closes_all_connections_at_once_is_named() {
    let bed = bed();
    for _ in 0..100 {
        drop(bed.origin.next_connection());
    }
    let mut client = bed.client();
    bed.run(async move {
        say(&mut client, GET).await;
        assert!(head(&mut client).await.starts_with("HTTP/1.1 502"));
    });
    assert_eq!(bed.service.journal.refusals()["origin_closed"], 1);
    assert!(bed.origin.dialled.get() > 2);
}

/// No client waits long enough to see the silence end.
#[test]
fn a_connection_that_has_gone_silent_is_given_up_though_no_request_waits_for_it() {
    let bed = bed_of(HttpTimeouts { half_closed: Duration::from_millis(1), ..impatient() });
    let silent = bed.origin.next_connection();
    let mut clients: Vec<_> = (0..4).map(|_| bed.client()).collect();
    let reactor = bed.reactor.clone();
    bed.run(async move {
        let has_ended = Rc::new(Cell::new(false));
        let ended = Rc::clone(&has_ended);
        reactor.spawn(async move {
            let mut silent = Raw::begin(silent, &[]).await;
            while silent.next().await.is_some() {}
            ended.set(true);
        });
        for mut client in clients.drain(..) {
            say(&mut client, GET).await;
            reactor.sleep(Duration::from_millis(50)).await;
            drop(client);
            reactor.sleep(Duration::from_millis(20)).await;
        }
        // The connection has had twice its time.
        assert!(has_ended.get());
    });
}

/// A NAT may have forgotten it.
#[test]
fn a_request_on_a_connection_that_was_idle_for_long_comes_with_a_ping() {
    let bed = impatient_bed();
    let origin = bed.origin.next_connection();
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    let writes = bed.origin.writes();
    bed.run(async move {
        say(&mut client, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        let stream = origin.request().await;
        origin.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
        head(&mut client).await;
        reactor.sleep(Duration::from_millis(150)).await;
        let before = writes.get();
        say(&mut client, GET).await;
        let (mut kinds, mut stream) = (Vec::new(), 0);
        while kinds.len() < 2 {
            let frame = origin.next().await.expect("the connection has ended");
            if matches!(frame.kind, PING | HEADERS) {
                stream = stream.max(frame.stream);
                kinds.push(frame.kind);
            }
        }
        kinds.sort_unstable();
        assert_eq!(kinds, [HEADERS, PING]);
        assert_eq!(writes.get() - before, 1, "the PING came later");
        origin.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
        head(&mut client).await;
    });
}

/// Some origins end a connection whose requests are cancelled too often.
#[test]
fn a_connection_with_many_cancelled_requests_takes_no_more() {
    let bed = bed_of(HttpTimeouts { half_closed: Duration::from_millis(1), ..HttpTimeouts::default() });
    let (first, second) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (mut stays, mut last) = (bed.client(), bed.client());
    let leaving: Vec<_> = (0..200).map(|_| bed.client()).collect();
    bed.run(async move {
        say(&mut stays, GET).await;
        let mut first = Raw::begin(first, &[]).await;
        let open = first.request().await;
        for mut client in leaving {
            say(&mut client, GET).await;
            first.request().await;
            client.shutdown().await.unwrap();
            drop(client);
            first.next_of(RST_STREAM).await;
        }
        say(&mut last, GET).await;
        let mut second = Raw::begin(second, &[]).await;
        let stream = second.request().await;
        second.answer(stream, b"").await;
        assert!(head(&mut last).await.starts_with("HTTP/1.1 200"));
        first.answer(open, b"").await;
        assert!(head(&mut stays).await.starts_with("HTTP/1.1 200"));
    });
}

/// Until `reactor` has seen so many connection attempts.
async fn attempts(bed: (&Reactor, &Cell<usize>), wanted: usize) {
    while bed.1.get() < wanted {
        bed.0.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn requests_that_waited_for_one_connection_dial_at_once_if_it_speaks_http1() {
    let bed = choosing_bed();
    bed.origin.chooses_http1.set(true);
    bed.origin.held_after.set(Some(0));
    let origins: Vec<_> = (0..10).map(|_| bed.origin.next_connection()).collect();
    let clients: Vec<_> = (0..10).map(|_| bed.client()).collect();
    let (reactor, scripts) = (bed.reactor.clone(), bed.origin.clone());
    bed.run(async move {
        for mut origin in origins {
            reactor.spawn(async move {
                until(&mut origin, "\r\n\r\n").await;
                say(&mut origin, OK_HTTP1).await;
                rest(&mut origin).await;
            });
        }
        let mut clients = clients;
        for client in &mut clients {
            say(client, GET).await;
        }
        // All wait for the first attempt.
        reactor.sleep(Duration::from_millis(20)).await;
        assert_eq!(scripts.dialled.get(), 1);
        scripts.held_after.set(Some(1));
        attempts((&reactor, &scripts.dialled), 10).await;
        scripts.held_after.set(None);
        for client in &mut clients {
            assert!(head(client).await.starts_with("HTTP/1.1 200"));
        }
    });
}

#[test]
fn requests_that_find_no_stream_free_dial_at_once() {
    let bed = bed();
    bed.origin.held_after.set(Some(1));
    let origins: Vec<_> = (0..10).map(|_| bed.origin.next_connection()).collect();
    let clients: Vec<_> = (0..10).map(|_| bed.client()).collect();
    let (reactor, scripts) = (bed.reactor.clone(), bed.origin.clone());
    bed.run(async move {
        for origin in origins {
            let (reactor, scripts) = (reactor.clone(), scripts.clone());
            reactor.clone().spawn(async move {
                let mut origin = Raw::begin(origin, &[(3, 1)]).await;
                let stream = origin.request().await;
                attempts((&reactor, &scripts.dialled), 10).await;
                origin.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
                while origin.next().await.is_some() {}
            });
        }
        let mut clients = clients;
        for client in &mut clients {
            say(client, GET).await;
        }
        attempts((&reactor, &scripts.dialled), 10).await;
        scripts.held_after.set(None);
        for client in &mut clients {
            assert!(head(client).await.starts_with("HTTP/1.1 200"));
        }
    });
}

/// Such credentials count for a whole connection, which HTTP/2 has no place for.
#[test]
fn requests_that_authenticate_their_connection_go_by_http1() {
    for scheme in ["NTLM", "Negotiate"] {
        let bed = bed();
        let mut origin = bed.origin.next_connection();
        let mut client = bed.client();
        bed.run(async move {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: {scheme} YQ==\r\n\r\n");
            say(&mut client, &request).await;
            let asked = until(&mut origin, "\r\n\r\n").await;
            assert!(asked.starts_with("GET / HTTP/1.1\r\n"), "{asked}");
            say(&mut origin, OK_HTTP1).await;
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
            // The connection is authenticated: clients send no credentials again.
            say(&mut client, POST).await;
            let asked = until(&mut origin, "\r\n\r\n").await;
            assert!(asked.starts_with("POST / HTTP/1.1\r\n"), "{asked}");
            say(&mut origin, OK_HTTP1).await;
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200"));
        });
        assert_eq!(bed.origin.dialled.get(), 1);
    }
}

/// The dual-stack origin's other address refuses connections.
#[test]
fn an_attempt_for_one_family_says_nothing_about_the_other() {
    let bed = bed();
    let unreachable = BackendAddr::new("[2001:db8::1]:80".parse().unwrap());
    bed.origin.unreachable.set(Some(unreachable));
    bed.origin.held_after.set(Some(0));
    let origin = bed.origin.next_connection();
    let mut info = client_info();
    info.route.backend = unreachable;
    let (mut one, ours) = duplex(1 << 16);
    bed.reactor.spawn(serve_http1(ours, Vec::new(), info, Rc::clone(&bed.service)));
    let (mut two, scripts, reactor) = (bed.client(), bed.origin.clone(), bed.reactor.clone());
    bed.run(async move {
        say(&mut one, GET).await;
        attempts((&reactor, &scripts.dialled), 1).await;
        say(&mut two, GET).await;
        reactor.sleep(Duration::from_millis(20)).await;
        scripts.held_after.set(None);
        assert!(head(&mut one).await.starts_with("HTTP/1.1 504"));
        reactor.spawn(async move {
            let mut origin = Raw::begin(origin, &[]).await;
            let stream = origin.request().await;
            origin.answer(stream, b"").await;
            while origin.next().await.is_some() {}
        });
        let text = head(&mut two).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

/// Some origins end a connection with more than a few PINGs in five minutes and no data between them (gRPC).
#[test]
fn an_origin_that_is_quiet_and_alive_is_seldom_asked_again() {
    const SEVERAL_TIMES: Duration = Duration::from_millis(500);
    let bed = impatient_bed();
    let origin = bed.origin.next_connection();
    let (mut one, mut two, reactor) = (bed.client(), bed.client(), bed.reactor.clone());
    bed.run(async move {
        say(&mut one, GET).await;
        let mut origin = Raw::begin(origin, &[]).await;
        origin.send(SETTINGS, ACK, 0, &[]).await;
        let first = origin.request().await;
        let ping = origin.next_of(PING).await;
        origin.send(PING, ACK, 0, &ping.payload).await;
        assert!(reactor.timeout(SEVERAL_TIMES, origin.next_of(PING)).await.is_err());
        // The connection may have been lost meanwhile, so a new request is a reason to ask.
        say(&mut two, GET).await;
        let second = origin.request().await;
        let ping = origin.next_of(PING).await;
        origin.send(PING, ACK, 0, &ping.payload).await;
        assert!(reactor.timeout(SEVERAL_TIMES, origin.next_of(PING)).await.is_err());
        origin.answer(second, b"").await;
        assert!(head(&mut two).await.starts_with("HTTP/1.1 200"));
        // The answer has shown more than a PING: silence after it is new.
        let ping = origin.next_of(PING).await;
        origin.send(PING, ACK, 0, &ping.payload).await;
        origin.answer(first, b"").await;
        assert!(head(&mut one).await.starts_with("HTTP/1.1 200"));
    });
}
