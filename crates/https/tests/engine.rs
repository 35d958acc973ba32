//! Changes a running engine of tunnels and exchanges: opens and closes listeners, swaps rules, drains
//! sessions.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use truepeer_https::downstream::{PerClient, TlsListener};
use truepeer_https::exchange::HttpSettings;
use truepeer_https::gateway::{ClientAddress, HttpOptions};
use truepeer_https::origin::{OriginHealth, OriginProtocol};
use truepeer_https::{Https, HttpsRules};
use truepeer_policy::{BackendAddr, Backends, HeaderRule, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counter;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId, SessionFilter};
use truepeer_testbed::sessions::{
    ANY_PORT, LONG, accept, backend, check_that_it_works, dial, session, wait_until,
};

const ONE: ListenerId = ListenerId::new(1);
const TWO: ListenerId = ListenerId::new(2);

struct Case {
    https: Https,
    journal: Arc<Journal>,
    ends: Receiver<()>,
}

impl Case {
    fn new() -> Self {
        let (journal, (ended, ends)) = (Arc::<Journal>::default(), channel());
        let on_end = move || {
            let _ = ended.send(());
        };
        let budgets = Budgets::for_open_files(256, true, false);
        Self { https: Https::start(2, &budgets, &journal, on_end).expect("an engine"), journal, ends }
    }

    fn open(&mut self, id: ListenerId, rules: HttpsRules) -> SocketAddr {
        self.https.open(id, rules, &mut Vec::new()).expect("a listener")[0]
    }
}

/// Without TLS on either side. The backend is told the client, so that no privileges are needed.
fn tunnels(address: SocketAddr, backend: SocketAddr) -> HttpsRules {
    let backend = BackendAddr::new(backend);
    let mut policy = Policy::to(Backends::both(backend, backend));
    policy.senders.allow = PrefixSet::loopback();
    policy.senders.header = HeaderRule::Forbid;
    (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    let settings = ListenerSettings::on(address);
    let listening = TlsListener {
        settings,
        policy: Arc::new(policy),
        tls: None,
        handshake_timeout: Duration::from_secs(5),
        per_client: PerClient::default(),
    };
    HttpsRules { listening, origin: None, http: None }
}

fn exchanges(address: SocketAddr, origin: SocketAddr) -> HttpsRules {
    let options = HttpOptions {
        health: OriginHealth::default(),
        others: Vec::new(),
        settings: HttpSettings::default(),
        client_address: ClientAddress::Forwarded,
        origin_protocol: OriginProtocol::Http1,
        origin_keepalive: 4,
        origin_idle: LONG,
        origin_retry_timeout: Duration::ZERO,
    };
    HttpsRules { http: Some(options), ..tunnels(address, origin) }
}

/// An origin that answers each request with its name.
fn origin(name: &'static str) -> SocketAddr {
    let (origin, address) = backend();
    thread::spawn(move || {
        for mut stream in origin.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    head.extend(byte);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{name}");
                    }
                }
            });
        }
    });
    address
}

/// Makes one request on a connection that stays open.
fn ask(client: &mut TcpStream) -> String {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").expect("room");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        client.read_exact(&mut byte).expect("a head");
        answer.extend(byte);
    }
    let mut body = [0; 3];
    client.read_exact(&mut body).expect("a body");
    String::from_utf8_lossy(&body).into_owned()
}

#[test]
fn new_rules_apply_to_new_tunnels_only() {
    let mut case = Case::new();
    let ((first, to_first), (second, to_second)) = (backend(), backend());
    let address = case.open(ONE, tunnels(ANY_PORT, to_first));
    let mut old = session(address, &first);
    check_that_it_works(&mut old);
    let mut anew = tunnels(ANY_PORT, to_second);
    anew.listening.settings.idle_timeout = Some(Duration::from_millis(100));
    case.https.set_rules(ONE, anew).expect("the sockets stay the same");
    let (mut new, _received) = session(address, &second);
    // The new rules have an idle time-out, which ends the new session. The old session's rules have none.
    let error = new.read(&mut [0]).expect_err("an orderly end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    check_that_it_works(&mut old);
    // It is counted after the reset has been sent.
    let deadline = Instant::now() + Duration::from_secs(10);
    while case.journal.counters.of(ONE, Counter::IdleTimeout) == 0 && Instant::now() < deadline {
        thread::yield_now();
    }
    assert_eq!(case.journal.counters.of(ONE, Counter::IdleTimeout), 1);
}

#[test]
fn new_rules_apply_to_new_http_connections_and_may_turn_them_into_tunnels() {
    let mut case = Case::new();
    let address = case.open(ONE, exchanges(ANY_PORT, origin("one")));
    let mut old = dial(address).expect("a connection");
    assert_eq!(ask(&mut old), "one");
    case.https.set_rules(ONE, exchanges(ANY_PORT, origin("two"))).expect("the sockets stay the same");
    let mut new = dial(address).expect("a connection");
    assert_eq!((ask(&mut new), ask(&mut old)), ("two".to_owned(), "one".to_owned()));
    let (backend, to_backend) = backend();
    case.https.set_rules(ONE, tunnels(ANY_PORT, to_backend)).expect("the sockets stay the same");
    check_that_it_works(&mut session(address, &backend));
    assert_eq!((ask(&mut new), ask(&mut old)), ("two".to_owned(), "one".to_owned()));
}

#[test]
fn a_closed_listener_keeps_its_sessions_and_frees_its_address() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, tunnels(ANY_PORT, to_backend));
    let mut old = session(address, &backend);
    let just_come: Vec<_> = (0..20).map(|_| dial(address).expect("a connection")).collect();
    case.https.close(ONE).expect("it is open");
    assert_eq!(dial(address).expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    check_that_it_works(&mut old);
    for mut sender in &just_come {
        sender.write_all(b"x").expect("a session");
    }
    for _ in &just_come {
        accept(&backend).read_exact(&mut [0]).expect("a byte of each of them");
    }
    assert_eq!(case.open(TWO, tunnels(address, to_backend)), address);
    check_that_it_works(&mut session(address, &backend));
    check_that_it_works(&mut old);
}

/// The sessions on all pages.
fn listed(https: &Https) -> usize {
    let (list, mut start, mut count) = (https.sessions(), None, 0);
    loop {
        let page = list.page(&SessionFilter::default(), start);
        count += page.sessions.len();
        match page.next {
            Some(next) => start = Some(next),
            None => return count,
        }
    }
}

#[test]
fn a_drained_engine_ends_with_its_last_session() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, tunnels(ANY_PORT, to_backend));
    let mut last = session(address, &backend);
    case.https.drain();
    wait_until(|| dial(address).is_err());
    // Including those that were dialled before the listener was closed.
    drop(backend);
    check_that_it_works(&mut last);
    assert_eq!(case.https.health(), Health::Serving);
    assert_eq!(listed(&case.https), 1, "it can still be seen, and ended");
    drop(last);
    case.ends.recv_timeout(LONG).expect("the owner is told");
    assert_eq!(case.https.health(), Health::Ended);
}

#[test]
fn listeners_are_counted_apart() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let one = case.open(ONE, tunnels(ANY_PORT, to_backend));
    let two = case.open(TWO, tunnels(ANY_PORT, to_backend));
    let sessions = [session(one, &backend), session(two, &backend), session(two, &backend)];
    let counters = &case.journal.counters;
    wait_until(|| counters.of(ONE, Counter::Relayed) == 1 && counters.of(TWO, Counter::Relayed) == 2);
    let snapshot = case.https.snapshot();
    let seen: Vec<_> = snapshot.listeners.iter().map(|one| (one.id, one.addresses[0], one.open)).collect();
    assert_eq!(seen, [(ONE, one, 1), (TWO, two, 2)]);
    drop(sessions);
    wait_until(|| counters.open(ONE) + counters.open(TWO) == 0);
}

#[test]
fn impossible_changes_are_refused() {
    let mut case = Case::new();
    let (_backend, to_backend) = backend();
    let here = tunnels(ANY_PORT, to_backend);
    assert!(matches!(case.https.close(ONE), Err(EngineError::NotOpen(ONE))));
    assert!(matches!(case.https.set_rules(ONE, here.clone()), Err(EngineError::NotOpen(ONE))));
    let address = case.open(ONE, here.clone());
    assert!(matches!(case.https.open(ONE, here.clone(), &mut Vec::new()), Err(EngineError::IsOpen(ONE))));
    let mut elsewhere = here;
    elsewhere.listening.settings.address.set_port(9);
    let error = case.https.set_rules(ONE, elsewhere).expect_err("new sockets would be needed");
    assert!(matches!(error, EngineError::OtherSockets { id: ONE, what: "address" }), "{error}");
    // The first worker's socket no longer blocks the address.
    let _other = TcpListener::bind(SocketAddr::new(address.ip(), 0)).expect("a listener");
    let taken = _other.local_addr().expect("its address");
    let refused = case.https.open(TWO, tunnels(taken, to_backend), &mut Vec::new());
    assert!(matches!(refused, Err(EngineError::Listen(_))), "{refused:?}");
    assert_eq!(case.https.snapshot().listeners.len(), 1);
}
