//! Clients that hold streams and take nothing.

use super::frames::*;
use super::*;

/// A head of GET for `/x`.
fn get() -> Vec<u8> {
    with_priority("u=3")
}

fn with_priority(priority: &str) -> Vec<u8> {
    let target = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")];
    [block(&target), block(&[("priority", priority)])].concat()
}

/// The streams' windows are open. The connection's is closed, or opens by single bytes: the urgent stream
/// gets those, and the other one must not live by them.
#[test]
fn signs_of_life_do_not_keep_responses_that_nobody_takes() {
    let signs = [frame(PING, 0, 0, &[7; 8]), frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())];
    for sign in signs {
        let timeouts = HttpTimeouts { send: Duration::from_millis(300), ..HttpTimeouts::default() };
        let bed = bed(HttpSettings { timeouts, min_rate: 20_000, ..HttpSettings::default() });
        let (mut stream, reactor) = (connect(&bed), bed.reactor.clone());
        let (mut first, mut second) = (bed.origin.next_connection(), bed.origin.next_connection());
        let kind = sign[3];
        bed.run(async move {
            let windows = frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
            let asked = [(1, "u=0"), (3, "u=7")]
                .map(|(id, priority)| frame(HEADERS, END_HEADERS | END_STREAM, id, &with_priority(priority)));
            assert!(send(&mut stream, &[preface(), windows, asked.concat()].concat()).await);
            for origin in [&mut first, &mut second] {
                until(origin, "\r\n\r\n").await;
                say(origin, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await;
            }
            for mut origin in [first, second] {
                reactor.spawn(async move { while origin.write_all(&[b'x'; 4096]).await.is_ok() {} });
            }
            let (mut from, mut to) = tokio::io::split(stream);
            let is_over = Rc::new(Cell::new(false));
            let (seen, signing) = (Rc::clone(&is_over), reactor.clone());
            reactor.spawn(async move {
                while !seen.get() && to.write_all(&sign).await.is_ok() {
                    signing.sleep(Duration::from_millis(20)).await;
                }
            });
            let resets = async {
                let mut ended = Vec::new();
                for _ in 0..2 {
                    let reset = next_of(&mut from, &[RST_STREAM, GOAWAY]).await.unwrap();
                    assert_eq!(reset.kind, RST_STREAM);
                    ended.push(reset.stream);
                }
                ended
            };
            let waited = reactor.timeout(Duration::from_secs(10), resets).await;
            is_over.set(true);
            let ended = waited.unwrap_or_else(|_| panic!("held by frames of type {kind}"));
            assert!(kind == PING || ended == [3, 1], "{ended:?}");
        });
    }
}

/// Whether other requests are open, and whether further pieces of the block come.
#[test]
fn a_header_block_that_does_not_end_has_the_time_of_a_head() {
    for (has_other, has_pieces) in [(false, false), (true, false), (true, true)] {
        let timeouts = HttpTimeouts { head: Duration::from_millis(300), ..HttpTimeouts::default() };
        let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
        let (mut stream, reactor, service) = (connect(&bed), bed.reactor.clone(), Rc::clone(&bed.service));
        let _origin = bed.origin.next_connection();
        bed.run(async move {
            assert!(send(&mut stream, &preface()).await);
            if has_other {
                assert!(send(&mut stream, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &get())).await);
            }
            // One that ends later is no fault.
            for id in [3, 5] {
                assert!(send(&mut stream, &frame(HEADERS, END_STREAM, id, &get())).await);
                reactor.sleep(Duration::from_millis(100)).await;
                assert!(send(&mut stream, &frame(CONTINUATION, END_HEADERS, id, &[])).await);
            }
            reactor.sleep(Duration::from_millis(300)).await;
            assert!(send(&mut stream, &frame(HEADERS, END_STREAM, 7, &get())).await);
            let (mut from, mut to) = tokio::io::split(stream);
            let is_over = Rc::new(Cell::new(!has_pieces));
            let (seen, sending) = (Rc::clone(&is_over), reactor.clone());
            reactor.spawn(async move {
                let piece = frame(CONTINUATION, 0, 7, &block(&[("x-a", "1")]));
                while !seen.get() && to.write_all(&piece).await.is_ok() {
                    sending.sleep(Duration::from_millis(50)).await;
                }
            });
            let goaway = reactor.timeout(Duration::from_secs(10), next_of(&mut from, &[GOAWAY])).await;
            is_over.set(true);
            assert_eq!(goaway.expect("in time").unwrap().error(), ENHANCE_YOUR_CALM);
            assert_eq!(service.journal.refusals().get("request_head_timeout"), Some(&1));
        });
    }
}
