//! Requests that are refused, each with its status, and connections that end without a response.

use super::*;

#[test]
fn a_refusal_has_a_status_and_ends_the_connection() {
    let settings =
        HttpSettings { methods: vec!["GET".to_owned()], max_body: Some(4), ..HttpSettings::default() };
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", 413),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", 417),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 504), // there is no origin
    ] {
        let bed = bed(settings.clone());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {response}");
            assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
        });
    }
}

#[test]
fn heads_that_are_too_long_have_their_own_statuses() {
    let long = "x".repeat(40 << 10);
    for (request, status) in
        [(format!("GET /{long}"), 414), (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"), 431)]
    {
        let bed = bed(HttpSettings::default());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, &request).await;
            assert!(rest(&mut client).await.starts_with(&format!("HTTP/1.1 {status} ")));
        });
    }
}

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n";

/// As many clients do: a part of them can't read before.
#[test]
fn a_client_that_sends_everything_first_reads_an_early_answer() {
    for (max_body, body) in [(Some(1 << 20), 20_000_000), (Some(1 << 20), 3_000_000), (None, 20_000_000)] {
        let bed = bed(HttpSettings { max_body, ..HttpSettings::default() });
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, UPLOAD).await;
            if max_body.is_none() {
                until(&mut origin, "\r\n\r\n").await;
                say(&mut origin, "HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno").await;
            }
            client.write_all(&vec![b'x'; body]).await.expect("the connection stays open");
            assert!(rest(&mut client).await.starts_with("HTTP/1.1 413 "));
        });
    }
}

/// As long as NGINX waits for it. The time to close a connection is shorter.
#[test]
fn a_client_may_pause_before_it_sends_the_rest() {
    for head in [UPLOAD, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"] {
        let linger = Duration::from_millis(20);
        let timeouts =
            HttpTimeouts { linger, linger_pause: Duration::from_secs(60), ..HttpTimeouts::default() };
        let bed = bed(HttpSettings { max_body: Some(1), timeouts, ..HttpSettings::default() });
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        let _origin = bed.origin.next_connection();
        bed.run(async move {
            say(&mut client, head).await;
            reactor.sleep(linger * 10).await;
            client.write_all(&vec![b'x'; 200_000]).await.expect("the connection stays open");
            client.shutdown().await.unwrap();
            let said = rest(&mut client).await;
            assert!(said.starts_with("HTTP/1.1 413 "), "{head}{said}");
        });
    }
}

/// The first sends too slowly, the second for too long.
#[test]
fn a_client_that_goes_on_after_an_early_answer_is_cut_off() {
    for (pause, total, piece) in [(50, 60_000, 1), (60_000, 50, 4096)] {
        let (linger_pause, linger_total) = (Duration::from_millis(pause), Duration::from_millis(total));
        let timeouts = HttpTimeouts { linger_pause, linger_total, ..HttpTimeouts::default() };
        let bed = bed(HttpSettings { max_body: Some(1), timeouts, ..HttpSettings::default() });
        let (mut client, reactor) = (bed.client(), bed.reactor.clone());
        bed.run(async move {
            say(&mut client, UPLOAD).await;
            while client.write_all(&vec![b'x'; piece]).await.is_ok() {
                reactor.sleep(Duration::from_millis(5)).await;
            }
            assert!(rest(&mut client).await.starts_with("HTTP/1.1 413 "));
        });
    }
}

/// The head waits in a buffer for the body: it has not been sent yet.
#[test]
fn a_body_that_can_not_be_passed_becomes_502_while_nothing_has_left() {
    for body in ["x\r\n", "5\r\nhelloX", "5\r\nhello\r\n0\r\nA : b\r\n\r\n"] {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, &format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}")).await;
            let response = rest(&mut client).await;
            assert!(response.starts_with("HTTP/1.1 502 "), "{body:?}: {response}");
            assert!(
                response.ends_with("\r\n\r\n502 Bad Gateway\n") && !response.contains("200"),
                "{response}"
            );
        });
    }
}

#[test]
fn origins_that_speak_no_http_are_not_passed_on() {
    for response in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 1\n\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-",
    ] {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, response).await;
            drop(origin);
            let told = rest(&mut client).await;
            assert!(told.starts_with("HTTP/1.1 502 "), "{response:?}: {told}");
        });
    }
}

#[test]
fn a_truncated_response_is_not_passed_on_as_complete() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        drop(origin);
        assert!(rest(&mut client).await.ends_with("\r\n\r\n3\r\nabc\r\n"));
    });
    assert!(bed.service.origins.at(0).pool.is_empty());
}

#[test]
fn unsolicited_bytes_are_not_taken_for_a_response() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let pool = Rc::clone(&bed.service.origins.at(0).pool);
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        until(&mut client, "\r\n\r\n").await;
        assert!(pool.is_empty());
    });
}

#[test]
fn timeouts_are_answered_with_their_status() {
    let short = Duration::from_millis(20);
    let timeouts = HttpTimeouts { head: short, body: short, response: short, ..HttpTimeouts::default() };
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost", 408),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx", 408),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 504),
    ] {
        let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
        let (mut client, _origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {response}");
        });
    }
}

#[test]
fn a_silent_connection_is_closed_without_a_word() {
    let timeouts = HttpTimeouts { keep_alive: Duration::from_millis(20), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let mut client = bed.client();
    bed.run(async move { assert_eq!(rest(&mut client).await, "") });
}

#[test]
fn own_error_responses_to_head_have_no_body() {
    for request in [
        "HEAD / HTTP/1.1\r\nHost: a\r\nExpect: zzz\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", // there is no origin
        "HEAD / HTTP/1.1\r\n\r\n",
        "HEAD / HTTP/1.1\nHost: a\n\n",
    ] {
        let bed = bed(HttpSettings::default());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.ends_with("\r\nConnection: close\r\n\r\n"), "{request:?}: {response}");
            assert!(response.contains("\r\nContent-Length: "), "{response}");
        });
    }
}

#[test]
fn a_request_waits_for_a_descriptor_as_long_as_for_an_origin() {
    for (time_limit, answer) in
        [(Duration::from_secs(60), "200 OK"), (Duration::ZERO, "503 Service Unavailable")]
    {
        let bed = retrying_bed(HttpSettings::default(), time_limit);
        bed.origin.lacking.set(3);
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
            if !time_limit.is_zero() {
                until(&mut origin, "\r\n\r\n").await;
                say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            }
            let said = rest(&mut client).await;
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}\r\n")), "{said}");
        });
    }
}
