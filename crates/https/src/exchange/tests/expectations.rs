//! Requests that wait for 100 Continue, and interim responses.

use super::*;

#[test]
fn a_body_is_held_back_until_the_origin_wants_it() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            .await;
        assert!(until(&mut origin, "\r\n\r\n").await.contains("Expect: 100-continue\r\n"));
        say(&mut origin, "HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        say(&mut client, "ok").await;
        until(&mut origin, "ok").await;
        say(
            &mut origin,
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    });
    assert_eq!(bed.service.origins.at(0).pool.len(), 1);
}

/// It never sends a final response, and each 1xx comes in time.
#[test]
fn endless_interim_responses_are_distinguished_from_slowness() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let (service, counters) = (Rc::clone(&bed.service), Rc::clone(&bed.service));
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, &"HTTP/1.1 102 Processing\r\n\r\n".repeat(1000)).await;
        let got = rest(&mut client).await;
        assert_eq!(got.matches("HTTP/1.1 102 ").count(), 64, "{got}");
        assert!(got.contains("HTTP/1.1 502 Bad Gateway\r\n"), "{got}");
        drop(service);
    });
    let refusals = counters.journal.refusals();
    assert_eq!(refusals.get("origin_too_many_interim"), Some(&1), "{refusals:?}");
}

#[test]
fn an_origin_that_does_not_know_expect_gets_the_body_all_the_same() {
    let timeouts = HttpTimeouts { proceed: Duration::from_millis(10), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            .await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        say(&mut client, "ok").await;
        until(&mut origin, "\r\n\r\nok").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        until(&mut client, "Content-Length: 0\r\n\r\n").await;
    });
}

#[test]
fn an_origin_may_answer_before_the_body_and_without_it() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
            .await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    });
    assert!(bed.service.origins.at(0).pool.is_empty());
}
