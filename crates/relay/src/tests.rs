//! Defects in a relay, on real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use truepeer_policy::{BackendAddr, Backends, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counter;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, Health, Journal, ListenerId, ListenerRules};
use truepeer_testbed::sessions::{ANY_PORT, LONG, backend, check_that_it_works, dial, wait_until};

use crate::relay::Relay;
use crate::trap::TRAP;

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 4000 443\r\n";
const ID: ListenerId = ListenerId::new(7);

struct Case {
    relay: Relay,
    journal: Arc<Journal>,
    address: SocketAddr,
    backend: TcpListener,
    ends: Receiver<()>,
}

impl Case {
    /// A relay that needs no privileges, because a header names the client to the backend.
    fn new() -> Self {
        let (backend, address) = backend();
        let to = BackendAddr::new(address);
        let mut policy = Policy::to(Backends::both(to, to));
        policy.senders.allow = PrefixSet::loopback();
        (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
        let settings = ListenerSettings::on(ANY_PORT);
        let (journal, (ended, ends)) = (Arc::<Journal>::default(), channel());
        let budgets = Budgets::for_open_files(256, true, false);
        let on_end = move || {
            let _ = ended.send(());
        };
        let mut relay = Relay::start(2, &budgets, &journal, on_end).expect("a relay");
        let rules = ListenerRules { settings, policy: Arc::new(policy) };
        let address = relay.open(ID, rules, &mut Vec::<OwnedFd>::new()).expect("a listener")[0];
        Self { relay, journal, address, backend, ends }
    }

    /// A panic resets the session's sockets before it is counted.
    fn check_that_one_panic_is_counted(&self) {
        wait_until(|| self.journal.counters.of(ID, Counter::Panicked) > 0);
        assert_eq!(self.journal.counters.of(ID, Counter::Panicked), 1);
        assert_eq!(self.relay.health(), Health::Serving);
    }

    fn connect(&self) -> TcpStream {
        dial(self.address).expect("a connection")
    }

    /// A relaying session: the sender's end, and the backend's.
    fn session(&self) -> (TcpStream, TcpStream) {
        let mut sender = self.connect();
        sender.write_all(HEADER).expect("room for a header");
        let (mut received, _) = self.backend.accept().expect("a session");
        received.set_read_timeout(Some(LONG)).expect("a time-out");
        received.read_exact(&mut vec![0; HEADER.len()]).expect("a header");
        (sender, received)
    }
}

fn check_that_it_is_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 100]).expect_err("an orderly end, or bytes");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_session_that_panics_while_it_relays_ends_alone_and_by_a_reset() {
    let case = Case::new();
    let mut others = [case.session(), case.session(), case.session()];
    let (mut sender, mut received) = case.session();
    received.write_all(TRAP).expect("room");
    check_that_it_is_reset(&mut sender);
    check_that_it_is_reset(&mut received);
    others.iter_mut().for_each(check_that_it_works);
    check_that_it_works(&mut case.session());
    case.check_that_one_panic_is_counted();
}

#[test]
fn a_session_that_panics_over_its_header_ends_alone_and_by_a_reset() {
    let case = Case::new();
    let mut other = case.session();
    let mut sender = case.connect();
    sender.write_all(TRAP).expect("room");
    check_that_it_is_reset(&mut sender);
    check_that_it_works(&mut other);
    case.check_that_one_panic_is_counted();
}

/// A persistent error of epoll ends the worker: it neither spins nor stays unnoticed.
#[test]
fn a_worker_that_ends_unexpectedly_is_reported_with_its_reason() {
    let case = Case::new();
    let (mut sender, mut received) = case.session();
    case.relay.break_all();
    case.ends.recv_timeout(LONG).expect("the owner is told");
    let Health::Broken(reason) = case.relay.health() else { panic!("{:?}", case.relay.health()) };
    assert!(reason.contains("epoll_wait"), "{reason}");
    check_that_it_is_reset(&mut sender);
    check_that_it_is_reset(&mut received);
}

/// The kernel has completed these connections, and would reset them with the listening socket.
#[test]
fn connections_completed_before_the_listener_closes_are_served() {
    let mut case = Case::new();
    let held = case.relay.hold_all();
    let senders: Vec<_> = (0..20).map(|_| case.connect()).collect();
    let release = std::thread::spawn(move || {
        // Time for the order to close to be posted. Whichever comes first, no connection may be lost.
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
    });
    case.relay.close(ID).expect("it is open");
    for mut sender in &senders {
        sender.write_all(HEADER).expect("a session");
    }
    for _ in &senders {
        let (mut received, _) = case.backend.accept().expect("a session");
        received.read_exact(&mut vec![0; HEADER.len()]).expect("a header");
    }
    release.join().expect("it has released them");
}
