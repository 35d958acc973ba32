//! A drain that starts while a request is on its way.

use super::*;

#[test]
fn a_request_that_arrived_before_the_drain_is_answered() {
    for (may_read, refusals) in [(true, 0), (true, 1), (true, 3), (false, 0), (false, 2)] {
        let bed = bed(HttpSettings::default());
        let (mut client, ours) = duplex(1 << 16);
        let ours = Hesitant::new(ours, may_read, refusals);
        let mut origin = bed.origin.next_connection();
        let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            reactor.remote().drain();
            reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            assert_eq!(
                rest(&mut client).await,
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
            );
        });
    }
}

#[test]
fn a_connection_without_a_request_is_closed_by_the_drain() {
    let bed = bed(HttpSettings::default());
    let (mut client, ours) = duplex(1 << 16);
    let ours = Hesitant::new(ours, true, 2);
    let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
    bed.run(async move {
        reactor.remote().drain();
        reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
        assert_eq!(rest(&mut client).await, "");
    });
}

/// A sender that keeps connections alive may be sending while the drain begins.
#[test]
fn a_request_that_is_sent_just_after_the_drain_began_is_the_last_one_answered() {
    let bed = bed(HttpSettings::default());
    let (mut client, ours) = duplex(1 << 16);
    let ours = Hesitant::new(ours, true, 0);
    let mut origin = bed.origin.next_connection();
    let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
    bed.run(async move {
        reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
        reactor.sleep(Duration::from_millis(20)).await;
        reactor.remote().drain();
        reactor.sleep(Duration::from_millis(200)).await;
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        );
    });
}
