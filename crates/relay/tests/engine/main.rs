//! Changes a running relay: opens and closes listeners, swaps rules, drains sessions.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use truepeer_policy::{BackendAddr, Backends, Dialect, HeaderRule, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_relay::Relay;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counter;
use truepeer_session::settings::{ListenerSettings, UdpSettings};
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId, ListenerRules};
use truepeer_testbed::sessions::{
    ANY_PORT, LONG, accept, backend, check_that_it_works, dial, session, wait_until,
};

const ONE: ListenerId = ListenerId::new(1);
const TWO: ListenerId = ListenerId::new(2);

struct Case {
    relay: Relay,
    journal: Arc<Journal>,
    ends: Receiver<()>,
}

impl Case {
    fn new() -> Self {
        let (journal, (ended, ends)) = (Arc::<Journal>::default(), channel());
        let on_end = move || {
            let _ = ended.send(());
        };
        let budgets = Budgets::for_open_files(256, true, true);
        Self { relay: Relay::start(2, &budgets, &journal, on_end).expect("a relay"), journal, ends }
    }

    fn open(&mut self, id: ListenerId, rules: ListenerRules) -> SocketAddr {
        self.relay.open(id, rules, &mut Vec::new()).expect("a listener")[0]
    }
}

/// Rules that send all sessions to `backend`. A header names the client, so no privileges are needed.
fn rules(address: SocketAddr, backend: SocketAddr) -> ListenerRules {
    let backend = BackendAddr::new(backend);
    let mut policy = Policy::to(Backends::both(backend, backend));
    policy.senders.allow = PrefixSet::loopback();
    policy.senders.header = HeaderRule::Forbid;
    (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    ListenerRules { settings: ListenerSettings::on(address), policy: Arc::new(policy) }
}

#[test]
fn new_rules_apply_to_new_sessions_only() {
    let mut case = Case::new();
    let ((first, to_first), (second, to_second)) = (backend(), backend());
    let address = case.open(ONE, rules(ANY_PORT, to_first));
    let mut old = session(address, &first);
    check_that_it_works(&mut old);
    let mut anew = rules(ANY_PORT, to_second);
    anew.settings.idle_timeout = Some(Duration::from_millis(100));
    case.relay.set_rules(ONE, anew).expect("the sockets stay the same");
    let (mut new, _received) = session(address, &second);
    // The new rules have an idle time-out, which ends the new session. The old session's rules have none.
    assert_eq!(new.read(&mut [0]).expect("an orderly end"), 0);
    check_that_it_works(&mut old);
    assert_eq!(case.journal.counters.of(ONE, Counter::IdleTimeout), 1);
}

#[test]
fn a_closed_listener_keeps_its_sessions_and_frees_its_address() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, rules(ANY_PORT, to_backend));
    let mut old = session(address, &backend);
    let just_come: Vec<_> = (0..20).map(|_| dial(address).expect("a connection")).collect();
    case.relay.close(ONE).expect("it is open");
    assert_eq!(dial(address).expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    check_that_it_works(&mut old);
    for mut sender in &just_come {
        sender.write_all(b"x").expect("a session");
    }
    for _ in &just_come {
        accept(&backend).read_exact(&mut [0]).expect("a byte of each of them");
    }
    assert_eq!(case.open(TWO, rules(address, to_backend)), address);
    check_that_it_works(&mut session(address, &backend));
    check_that_it_works(&mut old);
}

#[test]
fn a_drained_relay_ends_with_its_last_session() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, rules(ANY_PORT, to_backend));
    let mut last = session(address, &backend);
    case.relay.drain();
    wait_until(|| dial(address).is_err());
    // Including those that were dialled before the listener was closed.
    drop(backend);
    check_that_it_works(&mut last);
    assert_eq!(case.relay.health(), Health::Serving);
    drop(last);
    case.ends.recv_timeout(LONG).expect("the owner is told");
    assert_eq!(case.relay.health(), Health::Ended);
}

#[test]
fn a_relay_stopped_by_its_owner_reports_no_end() {
    let case = Case::new();
    drop(case.relay);
    assert!(case.ends.recv().is_err());
}

#[test]
fn listeners_are_counted_apart() {
    let mut case = Case::new();
    let (backend, to_backend) = backend();
    let one = case.open(ONE, rules(ANY_PORT, to_backend));
    let two = case.open(TWO, rules(ANY_PORT, to_backend));
    let _sessions = [session(one, &backend), session(two, &backend), session(two, &backend)];
    let counters = &case.journal.counters;
    // The backend may have the header before the worker counts the session.
    wait_until(|| counters.of(ONE, Counter::Relayed) == 1 && counters.of(TWO, Counter::Relayed) == 2);
    let snapshot = case.relay.snapshot();
    let seen: Vec<_> = snapshot.listeners.iter().map(|one| (one.id, one.addresses[0], one.open)).collect();
    assert_eq!(seen, [(ONE, one, 1), (TWO, two, 2)]);
    drop(_sessions);
    wait_until(|| counters.open(ONE) + counters.open(TWO) == 0);
}

#[test]
fn impossible_changes_are_refused() {
    let mut case = Case::new();
    let (_backend, to_backend) = backend();
    let here = rules(ANY_PORT, to_backend);
    assert!(matches!(case.relay.close(ONE), Err(EngineError::NotOpen(ONE))));
    assert!(matches!(case.relay.set_rules(ONE, here.clone()), Err(EngineError::NotOpen(ONE))));
    let address = case.open(ONE, here.clone());
    assert!(matches!(case.relay.open(ONE, here.clone(), &mut Vec::new()), Err(EngineError::IsOpen(ONE))));
    let mut transparent = here;
    transparent.settings.transparent = true;
    let error = case.relay.set_rules(ONE, transparent).expect_err("new sockets would be needed");
    assert!(matches!(error, EngineError::OtherSockets { id: ONE, what: "transparency" }), "{error}");
    let taken = case.relay.open(TWO, rules(address, to_backend), &mut Vec::new());
    assert!(matches!(taken, Err(EngineError::Listen(_))), "{taken:?}");
    assert_eq!(case.relay.snapshot().listeners.len(), 1);
}

fn udp_rules(address: SocketAddr, backend: SocketAddr) -> ListenerRules {
    let mut rules = rules(address, backend);
    let (dialect, sending) = (Dialect::Every, Some(Dialect::Every));
    rules.settings.udp = Some(UdpSettings { dialect, silence: LONG, sending });
    rules
}

fn udp() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(ANY_PORT).expect("a socket");
    socket.set_read_timeout(Some(LONG)).expect("a time-out");
    let address = socket.local_addr().expect("its address");
    (socket, address)
}

/// A datagram goes up and its answer comes down, by whichever socket of the relay.
fn check_flow(client: &UdpSocket, listener: SocketAddr, backend: &UdpSocket) -> SocketAddr {
    let mut buffer = [0; 200];
    client.send_to(b"ping", listener).expect("it is sent");
    let (length, from) = backend.recv_from(&mut buffer).expect("it goes up");
    assert!(buffer[..length].ends_with(b"ping"));
    backend.send_to(b"pong", from).expect("it is sent");
    let (length, _) = client.recv_from(&mut buffer).expect("it comes down");
    assert_eq!(&buffer[..length], b"pong");
    from
}

#[test]
fn new_rules_apply_to_new_flows_and_old_ones_end_with_their_listener() {
    let mut case = Case::new();
    let ((first, to_first), (second, to_second)) = (udp(), udp());
    let ((old, _), (new, _)) = (udp(), udp());
    let address = case.open(ONE, udp_rules(ANY_PORT, to_first));
    let flow = check_flow(&old, address, &first);
    case.relay.set_rules(ONE, udp_rules(ANY_PORT, to_second)).expect("the sockets stay the same");
    check_flow(&new, address, &second);
    assert_eq!(check_flow(&old, address, &first), flow);
    assert_eq!(case.journal.counters.open(ONE), 2);
    case.relay.close(ONE).expect("it is open");
    assert_eq!(case.journal.counters.open(ONE), 0);
    assert_eq!(case.journal.counters.of(ONE, Counter::FlowsClosed), 2);
    assert_eq!(case.open(TWO, udp_rules(address, to_first)), address);
    check_flow(&old, address, &first);
}

#[test]
fn a_draining_relay_opens_no_flows() {
    let mut case = Case::new();
    let ((backend, to_backend), (old, _), (new, _)) = (udp(), udp(), udp());
    let address = case.open(ONE, udp_rules(ANY_PORT, to_backend));
    check_flow(&old, address, &backend);
    case.relay.drain();
    // Both workers must have the order: the new flow's and the old one's.
    wait_until(|| {
        new.send_to(b"ping", address).expect("it is sent");
        case.journal.counters.refusals().contains_key("draining")
            || case.journal.counters.of(ONE, Counter::DatagramsRefused) > 0
    });
    check_flow(&old, address, &backend);
}
