//! Examining, taking, late headers and wake-ups, on loopback sockets.
#![expect(clippy::disallowed_methods, reason = "the tests make their own connections")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use truepeer_policy::{HeaderError, HeaderRule, PrefixSet, SenderAddr};

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
