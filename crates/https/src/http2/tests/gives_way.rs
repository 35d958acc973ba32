//! An idle connection gives way to a new one.

use std::io;

use super::frames::*;
use super::*;
use crate::exchange::tests::{Hesitant, give_way};

fn hearing(ours: DuplexStream) -> Hesitant {
    let ours = Hesitant::new(ours, true, 0);
    ours.is_deaf().set(false);
    ours
}

/// Serves a client that does not close, and notes when it has ended.
fn serve(bed: &Bed, ours: Hesitant) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let (note, service) = (Rc::clone(&ended), Rc::clone(&bed.service));
    bed.reactor.spawn(async move {
        serve_http2(ours, client_info(), service, None).await;
        note.set(true);
    });
    ended
}

fn get(stream: u32) -> Vec<u8> {
    let head = block(&[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")]);
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)
}

/// The last stream of a GOAWAY.
fn last_stream(goaway: &Frame) -> u32 {
    u32::from_be_bytes(goaway.payload[..4].try_into().unwrap())
}

/// It has answered a request before.
#[test]
fn an_idle_connection_is_closed_at_once() {
    let bed = bed(quick(3_600_000));
    let (mut client, ours) = duplex(1 << 16);
    let ended = serve(&bed, hearing(ours));
    let (service, mut origin) = (Rc::clone(&bed.service), bed.origin.next_connection());
    bed.run(async move {
        assert!(send(&mut client, &[preface(), get(1)].concat()).await);
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(next_of(&mut client, &[DATA]).await.unwrap().payload, b"ok");
        give_way(&service).await;
        let goaway = next_of(&mut client, &[GOAWAY]).await.unwrap();
        assert_eq!((goaway.error(), last_stream(&goaway)), (0, 1));
        assert_eq!(next_of(&mut client, &[]).await, None);
        while !ended.get() {
            service.reactor.yield_now().await;
        }
        let late = client.write_all(&get(3)).await;
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_request_that_the_loop_has_not_noticed_is_answered() {
    for refusals in [0, 2] {
        let bed = bed(HttpSettings::default());
        let (mut client, ours) = duplex(1 << 16);
        let ours = Hesitant::new(ours, true, refusals);
        let is_deaf = ours.is_deaf();
        is_deaf.set(false);
        let _ended = serve(&bed, ours);
        let (service, mut origin) = (Rc::clone(&bed.service), bed.origin.next_connection());
        bed.run(async move {
            assert!(send(&mut client, &preface()).await);
            // The server's own settings, and its answer to the client's: then it waits.
            for _ in 0..2 {
                next_of(&mut client, &[SETTINGS]).await.unwrap();
            }
            for _ in 0..10 {
                service.reactor.yield_now().await;
            }
            is_deaf.set(true);
            assert!(send(&mut client, &get(1)).await);
            give_way(&service).await;
            is_deaf.set(false);
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let data = next_of(&mut client, &[DATA, GOAWAY]).await.unwrap();
            assert_eq!((data.kind, &data.payload[..]), (DATA, &b"ok"[..]));
        });
    }
}

/// A close would become a reset with the client's next frame, and discard what the client has not read.
#[test]
fn a_connection_whose_client_has_not_got_everything_lingers() {
    let bed = bed(quick(300));
    let (mut client, ours) = duplex(1 << 16);
    let ours = hearing(ours);
    ours.unacknowledged().set(1);
    let ended = serve(&bed, ours);
    let service = Rc::clone(&bed.service);
    bed.run(async move {
        assert!(send(&mut client, &preface()).await);
        give_way(&service).await;
        assert_eq!(next_of(&mut client, &[GOAWAY]).await.unwrap().error(), 0);
        assert_eq!(next_of(&mut client, &[]).await, None);
        for _ in 0..10 {
            assert!(send(&mut client, &frame(PING, 0, 0, &[7; 8])).await && !ended.get());
        }
        while !ended.get() {
            service.reactor.yield_now().await;
        }
    });
}

/// The client's window is open, but the client does not read: the end of a response whose task has ended
/// waits to be sent.
#[test]
fn a_connection_that_still_has_to_send_is_not_idle() {
    const LEN: usize = 100_000;
    let bed = bed(HttpSettings::default());
    let (mut client, ours) = duplex(1 << 16);
    let _ended = serve(&bed, hearing(ours));
    let (service, mut origin) = (Rc::clone(&bed.service), bed.origin.next_connection());
    bed.run(async move {
        // SETTINGS_INITIAL_WINDOW_SIZE, and the window of the connection.
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0x10, 0, 0]);
        let window = frame(WINDOW_UPDATE, 0, 0, &0x10_0000_u32.to_be_bytes());
        assert!(send(&mut client, &[preface(), settings, window, get(1)].concat()).await);
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, &format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n")).await;
        say(&mut origin, &"x".repeat(LEN)).await;
        let later = service.reactor.now() + Duration::from_secs(5);
        while service.idle.end_longest(later).is_some() {}
        for _ in 0..1000 {
            service.reactor.yield_now().await;
            assert_eq!(service.idle.end_longest(later), None);
        }
        let (mut got, mut is_whole) = (0, false);
        while !is_whole {
            let data = next_of(&mut client, &[DATA, RST_STREAM, GOAWAY]).await.unwrap();
            assert_eq!(data.kind, DATA);
            got += data.payload.len();
            is_whole = data.flags & END_STREAM != 0;
        }
        assert_eq!(got, LEN);
        give_way(&service).await;
        assert_eq!(next_of(&mut client, &[DATA, GOAWAY]).await.unwrap().kind, GOAWAY);
    });
}
