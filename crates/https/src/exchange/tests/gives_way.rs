//! An idle connection gives way to a new one.

use super::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Waits until a connection is idle, and makes it give way.
pub(crate) async fn give_way(service: &Service<Scripts>) {
    let later = service.reactor.now() + Duration::from_secs(5);
    while service.idle.end_longest(later).is_none() {
        service.reactor.yield_now().await;
    }
}

/// Serves a client that does not close, and notes when it has ended.
fn serve(bed: &Bed, ours: Hesitant) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let (note, service) = (Rc::clone(&ended), Rc::clone(&bed.service));
    bed.reactor.spawn(async move {
        serve_http1(ours, Vec::new(), client_info(), service).await;
        note.set(true);
    });
    ended
}

fn lingering(limit: Duration) -> HttpSettings {
    let timeouts = HttpTimeouts { linger: limit, ..HttpTimeouts::default() };
    HttpSettings { timeouts, ..HttpSettings::default() }
}

#[test]
fn an_idle_connection_is_closed_at_once() {
    let bed = bed(lingering(Duration::from_secs(3600)));
    let (mut client, ours) = duplex(1 << 16);
    let ended = serve(&bed, Hesitant::new(ours, true, 0));
    let service = Rc::clone(&bed.service);
    bed.run(async move {
        give_way(&service).await;
        assert_eq!(rest(&mut client).await, "");
        while !ended.get() {
            service.reactor.yield_now().await;
        }
    });
}

#[test]
fn a_request_that_the_loop_has_not_noticed_is_answered() {
    for refusals in [0, 2] {
        let bed = bed(HttpSettings::default());
        let (mut client, ours) = duplex(1 << 16);
        let _ended = serve(&bed, Hesitant::new(ours, false, refusals));
        let (service, mut origin) = (Rc::clone(&bed.service), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, GET).await;
            give_way(&service).await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, OK).await;
            assert_eq!(until(&mut client, "ok").await, OK);
        });
    }
}

/// A close would become a reset with the client's next bytes, and discard what the client has not read.
#[test]
fn a_connection_whose_client_has_not_got_everything_lingers() {
    let bed = bed(lingering(Duration::from_millis(300)));
    let (mut client, ours) = duplex(1 << 16);
    let ours = Hesitant::new(ours, true, 0);
    ours.unacknowledged().set(1);
    let ended = serve(&bed, ours);
    let service = Rc::clone(&bed.service);
    bed.run(async move {
        give_way(&service).await;
        assert_eq!(rest(&mut client).await, "");
        for _ in 0..10 {
            say(&mut client, "late").await;
            assert!(!ended.get());
        }
        while !ended.get() {
            service.reactor.yield_now().await;
        }
    });
}
