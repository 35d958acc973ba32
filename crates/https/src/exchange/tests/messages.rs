//! Whole exchanges: order, framing, repetition, upgrades, and whose connection is used.

use super::*;

#[test]
fn requests_of_one_connection_are_answered_in_order_over_one_connection() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(
            &mut client,
            "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
        .await;
        for path in ["/1", "/2"] {
            let request = until(&mut origin, "\r\n\r\n").await;
            assert!(request.starts_with(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n")), "{request}");
            assert!(request.contains("X-Forwarded-For: 203.0.113.7\r\n"), "{request}");
            say(&mut origin, &format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{path}")).await;
        }
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/1\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n/2"
        );
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

#[test]
fn bodies_and_trailers_pass_with_new_framing() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(
            &mut client,
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n005;x=y\r\nhello\r\n",
        )
        .await;
        let head = until(&mut origin, "\r\n\r\n").await;
        assert!(
            head.contains("Transfer-Encoding: chunked\r\n") && !head.contains("Content-Length"),
            "{head}"
        );
        assert_eq!(until(&mut origin, "hello\r\n").await, "5\r\nhello\r\n");
        say(&mut client, "0\r\nX-Sum: 1\r\n\r\n").await;
        assert_eq!(until(&mut origin, "\r\n\r\n").await, "0\r\nX-Sum: 1\r\n\r\n");
        say(
            &mut origin,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\nX-End: 2\r\n\r\n",
        )
        .await;
        let response = until(&mut client, "X-End: 2\r\n\r\n").await;
        assert!(response.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nX-End: 2\r\n\r\n"), "{response}");
    });
    assert_eq!(bed.service.origins.at(0).pool.len(), 1);
}

#[test]
fn a_body_without_length_becomes_chunks_or_the_connections_end() {
    let bed = bed(HttpSettings::default());
    for (version, body) in [("1.1", "3\r\nabc\r\n0\r\n\r\n"), ("1.0", "abc")] {
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, &format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n")).await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\n\r\nabc").await;
            drop(origin);
            assert!(until(&mut client, body).await.ends_with(&format!("\r\n\r\n{body}")));
        });
    }
}

#[test]
fn head_has_the_length_but_no_body() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n"
        );
    });
}

#[test]
fn an_idempotent_request_is_sent_again_when_its_connection_has_died() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut first) = (bed.client(), bed.origin.next_connection());
    let mut second = bed.origin.next_connection();
    bed.run(async move {
        say(&mut client, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut first, "\r\n\r\n").await;
        say(&mut first, "HTTP/1.1 204 No Content\r\n\r\n").await;
        until(&mut client, "\r\n\r\n").await;
        // It accepts the second request before it dies, so nothing announces its end.
        say(&mut client, "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut first, "\r\n\r\n").await;
        drop(first);
        assert!(until(&mut second, "\r\n\r\n").await.starts_with("GET /2 "));
        say(&mut second, "HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 204 No Content\r\n\r\n");
    });
}

#[test]
fn other_requests_are_not_sent_again() {
    for request in
        ["POST / HTTP/1.1\r\nHost: a\r\n\r\n", "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"]
    {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        let _other = bed.origin.next_connection();
        bed.run(async move {
            say(&mut client, request).await;
            until(&mut origin, "\r\n\r\n").await;
            drop(origin);
            assert!(rest(&mut client).await.starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
        });
        assert_eq!(bed.origin.dialled.get(), 1);
    }
}

/// RFC 9110 7.8: as Go's HTTP client (length 0), SPDY and `docker exec` write it.
#[test]
fn an_upgrade_of_a_request_with_a_body_goes_through_after_it() {
    for (length, body) in [
        ("Content-Length: 0", ""),
        ("Content-Length: 5", "{1:2}"),
        ("Transfer-Encoding: chunked", "5\r\n{1:2}\r\n0\r\n\r\n"),
    ] {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: tcp\r\n";
            say(&mut client, &format!("{head}{length}\r\n\r\n{body}")).await;
            let request = until(&mut origin, &format!("\r\n\r\n{body}")).await;
            assert!(request.contains("Connection: upgrade\r\nUpgrade: tcp\r\n"), "{request}");
            assert!(request.contains(&format!("{length}\r\n")), "{request}");
            say(&mut origin, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhi").await;
            until(&mut client, "\r\n\r\nhi").await;
            say(&mut client, "hello").await;
            until(&mut origin, "hello").await;
            client.shutdown().await.unwrap();
            assert_eq!(rest(&mut origin).await, "");
            drop(origin);
            assert_eq!(rest(&mut client).await, "");
        });
    }
}

#[test]
fn a_response_may_set_as_many_cookies_as_browsers_keep() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        let cookies: String = (0..180).map(|number| format!("Set-Cookie: name{number}=value\r\n")).collect();
        say(&mut origin, &format!("HTTP/1.1 204 No Content\r\n{cookies}\r\n")).await;
        let response = until(&mut client, "\r\n\r\n").await;
        assert_eq!(response.matches("\r\nSet-Cookie: name").count(), 180, "{response}");
    });
}

/// As some servers write them, into a field of fixed width.
#[test]
fn a_response_with_padded_chunk_sizes_is_served() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(
            &mut origin,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5   \r\nhello\r\n0   \r\n\r\n",
        )
        .await;
        let response = until(&mut client, "0\r\n\r\n").await;
        assert!(response.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{response}");
    });
}

/// RFC 9110 7.8: its client can't switch in the middle of a message.
#[test]
fn a_switch_before_the_whole_request_waits_for_the_rest() {
    const SWITCH: &str = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhi";
    for (fields, begun, body) in [
        ("Content-Length: 5", "12", "345"),
        ("Transfer-Encoding: chunked", "2\r\n12\r\n", "3\r\n345\r\n0\r\n\r\n"),
        ("Content-Length: 5\r\nExpect: 100-continue", "", "12345"),
        ("Content-Length: 0\r\nExpect: 100-continue", "", ""),
    ] {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: tcp";
            say(&mut client, &format!("{head}\r\n{fields}\r\n\r\n{begun}")).await;
            until(&mut origin, &format!("\r\n\r\n{begun}")).await;
            say(&mut origin, SWITCH).await;
            if fields.contains("Expect") {
                until(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
            }
            say(&mut client, body).await;
            until(&mut origin, body).await;
            until(&mut client, "\r\n\r\nhi").await;
            say(&mut client, "hello").await;
            assert_eq!(until(&mut origin, "hello").await, "hello");
        });
    }
}

/// Its rest can't be sent, and the connection is of no use.
#[test]
fn an_origin_that_switches_early_and_leaves_is_refused() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: tcp\r\nContent-Length: 5";
        say(&mut client, &format!("{head}\r\n\r\n12")).await;
        until(&mut origin, "\r\n\r\n12").await;
        say(&mut origin, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n").await;
        drop(origin);
        say(&mut client, "345").await;
        let response = until(&mut client, "\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    });
}

/// An origin that ignores the body of an upgrade would take it for the next request.
#[test]
fn a_refused_upgrade_with_a_body_does_not_leave_its_connection_to_others() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let mut second = bed.origin.next_connection();
    bed.run(async move {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: tcp\r\nContent-Length: 2";
        say(&mut client, &format!("{head}\r\n\r\n12")).await;
        until(&mut origin, "\r\n\r\n12").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").await;
        until(&mut client, "\r\n\r\nx").await;
        say(&mut client, "GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        until(&mut second, "\r\n\r\n").await;
        say(&mut second, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny").await;
        assert!(rest(&mut client).await.ends_with("\r\n\r\ny"));
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

#[test]
fn an_upgrade_becomes_a_tunnel_with_independent_ends() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        let request = until(&mut origin, "\r\n\r\n").await;
        assert!(request.contains("Connection: upgrade\r\nUpgrade: websocket\r\n"), "{request}");
        say(
            &mut origin,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi",
        )
        .await;
        let response = until(&mut client, "\r\n\r\nhi").await;
        assert!(response.contains("Connection: upgrade\r\nUpgrade: websocket\r\n"), "{response}");
        say(&mut client, "\0\x01hello").await;
        until(&mut origin, "\0\x01hello").await;
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut origin).await, "");
        say(&mut origin, "bye").await;
        drop(origin);
        assert_eq!(rest(&mut client).await, "bye");
    });
}

#[test]
fn a_slow_reader_costs_a_few_buffers_only() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let sent = Rc::new(Cell::new(0_usize));
    let (count, reactor) = (Rc::clone(&sent), bed.reactor.clone());
    bed.reactor.spawn(async move {
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n").await;
        while count.get() < 10_000_000 && origin.write_all(&[b'x'; 1000]).await.is_ok() {
            count.set(count.get() + 1000);
        }
    });
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut before = usize::MAX;
        while before != sent.get() {
            before = sent.get();
            reactor.sleep(Duration::from_millis(50)).await;
        }
        assert!(sent.get() < 500_000, "{} bytes were taken from the origin", sent.get());
        until(&mut client, "\r\n\r\n").await;
        let mut body = vec![0; 10_000_000];
        client.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|&byte| byte == b'x'));
    });
}

#[test]
fn an_authenticated_origin_connection_serves_one_client_only() {
    let bed = bed(HttpSettings::default());
    let (mut alice, mut mallory) = (bed.client(), bed.client());
    let (mut hers, mut others) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (pool, reactor) = (Rc::clone(&bed.service.origins.at(0).pool), bed.reactor.clone());
    bed.run(async move {
        let challenge = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n";
        for (fields, answer) in [
            ("", challenge),
            ("Authorization: NTLM TlRMTVNTUAAD\r\n", "HTTP/1.1 204 No Content\r\n\r\n"),
            // From now on identified only by the connection.
            ("", "HTTP/1.1 204 No Content\r\n\r\n"),
        ] {
            say(&mut alice, &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).await;
            until(&mut hers, "\r\n\r\n").await;
            say(&mut hers, answer).await;
            until(&mut alice, "\r\n\r\n").await;
            say(&mut mallory, "GET /admin HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut others, "\r\n\r\n").await;
            say(&mut others, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
            assert!(until(&mut mallory, "\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
        }
        assert_eq!(pool.len(), 2);
        drop(alice);
        while pool.len() > 1 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rest(&mut hers).await, "");
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}
