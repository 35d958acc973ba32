//! Parties that leave in the middle, and parties that are very slow.

use truepeer_http::{HeadEnd, HttpLimits, RequestHead};

use super::*;
use crate::downstream::LEAST_IDLE;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn half_closed_for(milliseconds: u64) -> HttpSettings {
    let timeouts =
        HttpTimeouts { half_closed: Duration::from_millis(milliseconds), ..HttpTimeouts::default() };
    HttpSettings { timeouts, ..HttpSettings::default() }
}

#[test]
fn a_client_that_has_left_holds_no_origin() {
    let bed = bed(half_closed_for(20));
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, GET).await;
        until(&mut origin, "\r\n\r\n").await;
        drop(client);
        assert_eq!(rest(&mut origin).await, "");
    });
    assert!(bed.service.origins.at(0).pool.is_empty());
}

#[test]
fn a_client_that_leaves_while_the_origin_is_dialled_is_not_waited_for() {
    let bed = bed(half_closed_for(20));
    bed.origin.is_silent.set(true);
    let (mut client, reactor) = (bed.client(), bed.reactor.clone());
    bed.run(async move {
        say(&mut client, GET).await;
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut client).await, "");
        while reactor.tasks() > 1 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

#[test]
fn a_client_that_only_closes_its_direction_gets_its_answer() {
    let bed = bed(half_closed_for(1000));
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let reactor = bed.reactor.clone();
    bed.run(async move {
        say(&mut client, GET).await;
        client.shutdown().await.unwrap();
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").await;
        until(&mut client, "\r\n\r\no").await;
        // Once it has started, it may take longer.
        reactor.sleep(Duration::from_millis(1500)).await;
        say(&mut origin, "k").await;
        assert_eq!(rest(&mut client).await, "k");
    });
}

#[test]
fn tiny_pieces_go_out_together() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let writes = Rc::clone(&bed.origin.writes);
    bed.run(async move {
        let chunks = "1\r\nx\r\n".repeat(2000);
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        say(&mut client, &format!("{head}{chunks}0\r\n\r\n")).await;
        until(&mut origin, "\r\n\r\n").await;
        assert_eq!(until(&mut origin, "0\r\n\r\n").await, format!("{chunks}0\r\n\r\n"));
        assert!(writes.get() < 10, "{} writes", writes.get());
        say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
        until(&mut client, "\r\n\r\n").await;
        // Gathered bytes don't wait for later ones.
        say(&mut client, &format!("{head}3\r\nabc\r\n5")).await;
        until(&mut origin, "\r\n\r\n3\r\nabc\r\n").await;
    });
}

/// The client takes no bytes while it is sent an early hint. Then the timeout of its own body passes.
#[test]
fn nothing_is_written_into_a_partial_interim_response() {
    let short = Duration::from_millis(50);
    let timeouts = HttpTimeouts { body: short, ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let (mut client, ours) = duplex(100);
    bed.reactor.spawn(serve_http1(ours, Vec::new(), client_info(), Rc::clone(&bed.service)));
    let mut origin = bed.origin.next_connection();
    let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(1000));
    bed.run(async move {
        // The body's timeout starts only when the hint has been sent.
        say(&mut origin, &hint).await;
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx").await;
        until(&mut origin, "\r\n\r\nx").await;
        assert_eq!(rest(&mut origin).await, "");
        let got = rest(&mut client).await;
        assert!(!got.is_empty() && hint.starts_with(&got), "{got}");
    });
}

#[test]
fn a_trickled_body_is_refused() {
    let timeouts = HttpTimeouts { body: Duration::from_millis(300), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, min_rate: 1_000_000, ..HttpSettings::default() });
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let reactor = bed.reactor.clone();
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n").await;
        let (mut from, mut to) = tokio::io::split(client);
        reactor.clone().spawn(async move {
            while to.write_all(b"x").await.is_ok() {
                reactor.sleep(Duration::from_millis(10)).await;
            }
        });
        until(&mut origin, "\r\n\r\n").await;
        let mut said = [0; 13];
        from.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"HTTP/1.1 408 ");
    });
}

/// The condition when sessions run short.
#[test]
fn only_a_connection_between_requests_is_closed_for_a_new_one() {
    let bed = bed(HttpSettings::default());
    let (mut idle, mut busy) = (bed.client(), bed.client());
    let (mut origin, service) = (bed.origin.next_connection(), Rc::clone(&bed.service));
    bed.run(async move {
        for client in [&mut idle, &mut busy] {
            say(client, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
            until(client, "\r\n\r\n").await;
        }
        say(&mut busy, "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        service.reactor.sleep(LEAST_IDLE + Duration::from_millis(100)).await;
        let later = service.reactor.now() + Duration::from_secs(5);
        assert!(service.idle.end_longest(later).is_some());
        assert_eq!(rest(&mut idle).await, "");
        assert_eq!(service.idle.end_longest(later), None, "no other connection is idle");
        say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(until(&mut busy, "\r\n\r\n").await.starts_with("HTTP/1.1 204 "));
    });
}

/// Bytes held for a slow end of a WebSocket count like those of a tunnel.
#[test]
fn bytes_held_after_an_upgrade_count_in_the_backlog() {
    let bed = bed(HttpSettings::default());
    let (mut origin, service) = (bed.origin.next_connection(), Rc::clone(&bed.service));
    let (reactor, other) = (bed.reactor.clone(), bed.reactor.clone());
    bed.run(async move {
        let (ours, mut client) = small_connection(&reactor).await;
        reactor.spawn(serve_http1(ours, Vec::new(), client_info(), Rc::clone(&service)));
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        io::Write::write_all(&mut client, request.as_bytes()).unwrap();
        until(&mut origin, "\r\n\r\n").await;
        let switching =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        say(&mut origin, switching).await;
        // The client takes no bytes.
        other.spawn(async move { while origin.write_all(&[7; 1 << 14]).await.is_ok() {} });
        while service.backlog.used() == 0 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
        drop(client);
        while service.backlog.used() > 0 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
}

/// A connection with small kernel buffers: the near end and the far end.
async fn small_connection(reactor: &Reactor) -> (truepeer_stream::stream::Stream, std::net::TcpStream) {
    use std::os::fd::AsFd as _;

    use socket2::{Domain, SockRef, Socket, Type};
    use truepeer_session::listening::{ListenOptions, listen};

    let socket = listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
    SockRef::from(&socket.as_fd()).set_send_buffer_size(4096).unwrap();
    let listener = truepeer_stream::reactor::TcpListener::new(reactor, socket).unwrap();
    let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    far.set_recv_buffer_size(4096).unwrap();
    far.connect(&listener.local_address().unwrap().into()).unwrap();
    let (near, _) = listener.accept().await.unwrap();
    (truepeer_stream::stream::Stream::Plain(near), far.into())
}

/// A connection that the origin has just closed costs such a request nothing: it is sent again.
#[test]
fn only_a_request_that_can_be_repeated_trusts_the_last_events() {
    let head = |text: &str| {
        let (mut head, mut end) = (RequestHead::default(), HeadEnd::default());
        let read = head.read(text.as_bytes(), &mut end, &HttpLimits::default());
        assert_eq!(read.unwrap(), Some(text.len()));
        head
    };
    let (get, post) = (head("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), head("POST / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let put = head("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    let bed = bed(HttpSettings::default());
    let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
    bed.run(async move {
        // A turn may begin late on a busy machine.
        while service.last_look(&get).is_none() {
            reactor.yield_now().await;
        }
        assert!(service.last_look(&put).is_none() && service.last_look(&post).is_none());
        std::thread::sleep(Duration::from_millis(1));
        assert!(service.last_look(&get).is_none(), "the events are old");
    });
}
