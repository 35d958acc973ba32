//! Examining, taking, late headers and wake-ups, on loopback sockets.
#![expect(clippy::disallowed_methods, reason = "the tests make their own connections")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use truepeer_policy::{HeaderError, HeaderRule, PrefixSet, SenderAddr};
use truepeer_sys::segments::{Instruction, attach_filter, detach_filter, filter_len, first_byte, save_syn};

use crate::*;

const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n";

struct Pair {
    listener: TcpListener,
    client: TcpStream,
    accepted: TcpStream,
    sender: SenderAddr,
}

fn pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, sender) = listener.accept().unwrap();
    Pair { listener, client, accepted, sender: SenderAddr::new(sender) }
}

fn rules(adjust: impl FnOnce(&mut RunSettings)) -> RunRules {
    let mut settings = RunSettings::default();
    adjust(&mut settings);
    RunRules::new(settings)
}

fn wake() -> WakeUp {
    WakeUp::with_word([7; 16])
}

/// The result once something has arrived.
fn seen(pair: &Pair, rules: &RunRules) -> Look {
    pair.accepted.peek(&mut [0]).unwrap();
    look(pair.accepted.as_fd(), pair.sender, rules, &wake())
}

#[test]
fn a_header_is_seen_and_taken_and_the_data_stays() {
    let mut pair = pair();
    let rules = rules(|_| ());
    assert_eq!(look(pair.accepted.as_fd(), pair.sender, &rules, &wake()), Look::NeedMore);
    pair.client.write_all(&[LINE, b"data"].concat()).unwrap();
    let Look::Named { client, destination, consumed } = seen(&pair, &rules) else { panic!("not named") };
    assert_eq!(client.to_string(), "192.0.2.1:1000");
    assert_eq!((destination.to_string().as_str(), consumed), ("198.51.100.1:443", LINE.len()));
    take(pair.accepted.as_fd(), consumed).unwrap();
    let mut data = [0; 4];
    pair.accepted.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"data");
}

#[test]
fn a_header_and_its_data_outlive_a_reset() {
    let mut pair = pair();
    pair.client.write_all(&[LINE, b"data"].concat()).unwrap();
    rustix::net::sockopt::set_socket_linger(&pair.client, Some(Duration::ZERO)).unwrap();
    drop(pair.client);
    let looked = look(pair.accepted.as_fd(), pair.sender, &rules(|_| ()), &wake());
    assert!(matches!(looked, Look::Named { .. }), "{looked:?}");
    take(pair.accepted.as_fd(), LINE.len()).unwrap();
    let mut data = [0; 4];
    pair.accepted.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"data");
}

#[test]
fn first_bytes_are_judged_by_the_senders_rule() {
    type Adjust = fn(&mut RunSettings);
    let optional: Adjust = |settings| settings.header = HeaderRule::Optional;
    let forbid: Adjust = |settings| settings.header = HeaderRule::Forbid;
    let stranger: Adjust = |settings| settings.allow = PrefixSet::new();
    let cases: [(&[u8], Adjust, &str); 9] = [
        (b"PROXY UNKNOWN\r\n", |_| (), "Plain { consumed: 15 }"),
        (b"GET / HTTP/1.1\r\n", |_| (), "not_proxy"),
        (b"GET / HTTP/1.1\r\n", optional, "Plain { consumed: 0 }"),
        (LINE, forbid, "Plain { consumed: 0 }"),
        (LINE, stranger, "sender_not_allowed"),
        (b"PROXY TCP4 127.0.0.1 198.51.100.1 1 2\r\n", |_| (), "claim_refused"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n", optional, "v1_port"),
        (b"PROXY TC", |_| (), "NeedMore"),
        (b"PROXY TC", optional, "NeedMore"),
    ];
    for (bytes, adjust, expected) in cases {
        let mut pair = pair();
        pair.client.write_all(bytes).unwrap();
        let saw = match seen(&pair, &rules(adjust)) {
            Look::Refused(refused) => refused.complaint().unwrap().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(saw, expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn the_end_decides_what_had_not_begun() {
    for (rule, expected) in [(HeaderRule::Optional, "Plain"), (HeaderRule::Require, "Absent")] {
        let pair = pair();
        pair.client.shutdown(Shutdown::Write).unwrap();
        pair.accepted.peek(&mut [0]).unwrap();
        let looked = look(pair.accepted.as_fd(), pair.sender, &rules(|s| s.header = rule), &wake());
        assert!(format!("{looked:?}").contains(expected), "{looked:?}");
    }
}

#[test]
fn a_listener_is_rung_and_the_word_recognised() {
    let pair = pair();
    wake().ring(ListenerAddr::of(pair.listener.as_fd()).unwrap()).unwrap();
    let (rung, from) = pair.listener.accept().unwrap();
    let strict = rules(|settings| settings.allow = PrefixSet::new());
    let look = |wake: &WakeUp| look(rung.as_fd(), SenderAddr::new(from), &strict, wake);
    assert_eq!(look(&wake()), Look::WakeUp);
    assert!(matches!(look(&WakeUp::with_word([8; 16])), Look::Refused(_)));
}

fn late(pair: &Pair, rules: &RunRules) -> Late<SocketAddr> {
    let inbox = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut late = Late::new(inbox.as_fd()).unwrap();
    let socket: OwnedFd = pair.accepted.try_clone().unwrap().into();
    let listener = pair.listener.local_addr().unwrap();
    late.add(socket, pair.sender, listener, rules, Instant::now()).unwrap();
    late
}

fn decided(late: &mut Late<SocketAddr>, rules: &RunRules) -> Decided<SocketAddr> {
    loop {
        if let Some(decided) = late.turn(rules, &wake(), None).unwrap().pop() {
            return decided;
        }
    }
}

#[test]
fn a_late_header_is_noticed_however_it_is_cut() {
    let mut pair = pair();
    let rules = rules(|settings| settings.header_times.timeout = Duration::from_secs(60));
    let mut late = late(&pair, &rules);
    for byte in &LINE[..LINE.len() - 1] {
        pair.client.write_all(&[*byte]).unwrap();
        assert!(late.turn(&rules, &wake(), Some(Duration::from_millis(1))).unwrap().is_empty());
    }
    pair.client.write_all(b"\n").unwrap();
    let decided = decided(&mut late, &rules);
    assert!(matches!(decided.look, Look::Named { consumed, .. } if consumed == LINE.len()));
    assert_eq!(decided.listener, pair.listener.local_addr().unwrap());
    assert!(late.is_empty());
}

#[test]
fn a_silent_sender_is_given_up_or_passed() {
    for (rule, expected) in [(HeaderRule::Require, "Late"), (HeaderRule::Optional, "Plain")] {
        let pair = pair();
        let rules = rules(|settings| {
            settings.header = rule;
            settings.header_times.timeout = Duration::from_millis(20);
        });
        let decided = decided(&mut late(&pair, &rules), &rules);
        assert!(format!("{:?}", decided.look).contains(expected), "{:?}", decided.look);
    }
}

#[test]
fn a_header_that_is_not_completed_is_refused_even_if_none_was_needed() {
    for rule in [HeaderRule::Require, HeaderRule::Optional] {
        let mut pair = pair();
        let rules = rules(|settings| {
            settings.header = rule;
            settings.header_times.timeout = Duration::from_secs(60);
        });
        let mut late = late(&pair, &rules);
        pair.client.write_all(b"PROXY").unwrap();
        drop(pair.client);
        let error = HeaderError::CutShort { received: 5 };
        assert_eq!(
            decided(&mut late, &rules).look,
            Look::Refused(Refused::Header { sender: pair.sender, error })
        );
    }
}

/// If no header is required, one second of silence is enough. A header that has started by then gets its full
/// time.
#[test]
fn an_optional_header_that_has_begun_gets_the_time_of_a_required_one() {
    let mut pair = pair();
    let rules = rules(|settings| {
        settings.header = HeaderRule::Optional;
        settings.header_times.wait = Duration::from_millis(20);
        settings.header_times.timeout = Duration::from_millis(200);
    });
    let began = Instant::now();
    let mut late = late(&pair, &rules);
    pair.client.write_all(b"PROXY").unwrap();
    let look = decided(&mut late, &rules).look;
    let error = HeaderError::Late { waited: Duration::from_millis(200), received: 5 };
    assert_eq!(look, Look::Refused(Refused::Header { sender: pair.sender, error }));
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
}

/// After a pause of this process (SIGSTOP), more are ready than one turn looks at.
#[test]
fn a_whole_header_is_never_too_late() {
    let rules = rules(|settings| settings.header_times.timeout = Duration::from_millis(20));
    let inbox = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut late = Late::new(inbox.as_fd()).unwrap();
    let mut pairs: Vec<Pair> = (0..100).map(|_| pair()).collect();
    for pair in &pairs {
        let socket: OwnedFd = pair.accepted.try_clone().unwrap().into();
        late.add(socket, pair.sender, (), &rules, Instant::now()).unwrap();
    }
    for pair in &mut pairs {
        pair.client.write_all(LINE).unwrap();
        pair.accepted.peek(&mut [0]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(30));
    while !late.is_empty() {
        for decided in late.turn(&rules, &wake(), None).unwrap() {
            assert!(matches!(decided.look, Look::Named { .. }), "{:?}", decided.look);
        }
    }
}

/// A silent connection with its guard, and the rules.
fn guarded(adjust: impl FnOnce(&mut RunSettings)) -> (Pair, RunRules) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    save_syn(listener.as_fd()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    let (accepted, sender) = listener.accept().unwrap();
    let pair = Pair { listener, client, accepted, sender: SenderAddr::new(sender) };
    let rules = rules(|settings| {
        settings.header = HeaderRule::Optional;
        settings.header_times.wait = Duration::from_millis(1);
        adjust(settings);
    });
    let decided = decided(&mut late(&pair, &rules), &rules);
    assert_eq!(decided.look, Look::Plain { consumed: 0 });
    assert!(!is_exposed(decided.socket.as_fd(), pair.sender, &decided.look, &rules));
    (pair, rules)
}

/// The bytes that the program can read, and whether the connection was refused.
fn arrived(pair: &mut Pair, rules: &RunRules) -> (Vec<u8>, bool) {
    let mut watch = AfterWait::default();
    watch.watch(pair.accepted.as_fd(), pair.sender.get(), None::<()>);
    let mut refused = None;
    while let Some(limit) = watch.limit() {
        std::thread::sleep(limit);
        for watched in watch.turn() {
            refused = watched.end(Some(pair.accepted.as_fd()), rules);
        }
    }
    let mut bytes = [0; 1000];
    pair.accepted.set_nonblocking(true).unwrap();
    let count = pair.accepted.read(&mut bytes).unwrap_or_default();
    if let Some(Refused::Header { error, .. }) = refused {
        assert_eq!(error, HeaderError::AfterWait { waited: Duration::from_millis(1) });
    }
    (bytes[..count].to_vec(), refused.is_some())
}

#[test]
fn a_header_after_the_wait_does_not_arrive_however_it_is_cut_in_two() {
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\x03\xe8\x01\xbb";
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let cases = [LINE, b"PROXY UNKNOWN\r\n", v2, local].into_iter();
    let cases = cases.flat_map(|header| (0..16).map(move |cut| (header, cut)));
    let threads: Vec<_> = cases
        .map(|(header, cut)| {
            std::thread::spawn(move || {
                let (mut pair, rules) = guarded(|_| ());
                pair.client.write_all(&header[..cut]).unwrap();
                pair.client.write_all(&[&header[cut..], b"and the client's data"].concat()).unwrap();
                let (bytes, is_refused) = arrived(&mut pair, &rules);
                assert!(is_refused, "{} cut at {cut}", header.escape_ascii());
                assert!(bytes.len() < 12 && header.starts_with(&bytes), "{}", bytes.escape_ascii());
                let mut rest = Vec::new();
                let _ = pair.client.read_to_end(&mut rest);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn bytes_after_the_wait_that_are_no_header_arrive() {
    let data: [&[u8]; 14] = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"PASS word and more",
        b"PROXIMITY is a word",
        b"PROXY without a space"[..5].as_ref(),
        b"HELLO TCP and more of it",
        b"\r\n\r\n\0\r\nQUIX and more",
        b"\r\n\r\nsome more",
        b"abcdefghijk\n  more of it",
        b"P",
        b"\r",
        b"\r\n",
        b"\r\n\r\n\0\r\nQUIT",
        b"xPROXY TCP4 192.0.2.1",
        b"\0\0\0\x29\0\x03\0\0user\0",
    ];
    let cases = data.into_iter().flat_map(|data| [data.len(), 1, 5, 11].map(|piece| (data, piece)));
    let threads: Vec<_> = cases
        .map(|(data, piece)| {
            std::thread::spawn(move || {
                let (mut pair, _rules) = guarded(|_| ());
                // Once the first bytes have come, nothing is a header.
                let after = b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n";
                let is_long = data.len() > 12;
                for piece in data.chunks(piece).chain(is_long.then_some(&after[..])) {
                    pair.client.write_all(piece).unwrap();
                    let mut bytes = vec![0; piece.len()];
                    pair.accepted.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    pair.accepted.read_exact(&mut bytes).unwrap();
                    assert_eq!(bytes, piece, "of {}", data.escape_ascii());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn without_a_saved_syn_a_whole_header_after_the_wait_does_not_arrive() {
    let (mut pair, rules) = guarded(|settings| settings.header = HeaderRule::Optional);
    let _ = first_byte(pair.accepted.as_fd());
    detach_filter(pair.accepted.as_fd());
    let mut again = late(&pair, &rules);
    assert_eq!(decided(&mut again, &rules).look, Look::Plain { consumed: 0 });
    assert!(is_guarded(pair.accepted.as_fd(), &rules));
    pair.client.write_all(&[LINE, b"data"].concat()).unwrap();
    assert_eq!(arrived(&mut pair, &rules), (Vec::new(), true));
}

#[test]
fn a_guard_is_taken_off_when_bytes_have_come() {
    let (mut pair, rules) = guarded(|_| ());
    assert!(is_guarded(pair.accepted.as_fd(), &rules));
    pair.client.write_all(b"EHLO client.example\r\n").unwrap();
    assert_eq!(arrived(&mut pair, &rules), (b"EHLO client.example\r\n".to_vec(), false));
    assert!(!is_guarded(pair.accepted.as_fd(), &rules));
}

#[test]
fn a_version_that_is_not_accepted_is_no_header_after_the_wait_either() {
    let (mut pair, rules) = guarded(|settings| settings.limits.versions = truepeer_proto::Versions::V2);
    pair.client.write_all(LINE).unwrap();
    assert_eq!(arrived(&mut pair, &rules), (LINE.to_vec(), false));
}

#[test]
fn a_filter_of_the_programs_own_stays() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = [Instruction { code: 6, jt: 0, jf: 0, k: u32::MAX }];
    attach_filter(listener.as_fd(), &own).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, sender) = listener.accept().unwrap();
    let pair = Pair { listener, client, accepted, sender: SenderAddr::new(sender) };
    let rules = rules(|settings| {
        settings.header = HeaderRule::Optional;
        settings.header_times.wait = Duration::from_millis(1);
    });
    let decided = decided(&mut late(&pair, &rules), &rules);
    assert!(is_exposed(decided.socket.as_fd(), pair.sender, &decided.look, &rules));
    assert_eq!(filter_len(pair.accepted.as_fd()), 1);
}
