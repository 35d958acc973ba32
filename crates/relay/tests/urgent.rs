//! Urgent bytes through a running relay on real sockets, because the kernel's behaviour is easy to simulate
//! wrongly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use truepeer_policy::{BackendAddr, Backends, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_relay::Relay;
use truepeer_session::budget::Budgets;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, ListenerId, ListenerRules};

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 4000 443\r\n";

/// A relay that needs no privileges, because a header names the client to the backend.
fn relay_to(backend: SocketAddr) -> (Relay, SocketAddr) {
    let backend = BackendAddr::new(backend);
    let mut policy = Policy::to(Backends::both(backend, backend));
    policy.senders.allow = PrefixSet::loopback();
    (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    let settings = ListenerSettings::on(SocketAddr::from(([127, 0, 0, 1], 0)));
    let budgets = Budgets::for_open_files(256, true, false);
    let mut relay = Relay::start(1, &budgets, &Arc::default(), || {}).expect("a relay");
    let rules = ListenerRules { settings, policy: Arc::new(policy) };
    let listening = relay.open(ListenerId::new(0), rules, &mut Vec::new()).expect("a listener");
    (relay, listening[0])
}

/// A connection through a relay: the sender's end, and the backend's.
fn session() -> (Relay, TcpStream, TcpStream) {
    let backend = TcpListener::bind(("127.0.0.1", 0)).expect("a backend");
    let (relay, listening) = relay_to(backend.local_addr().expect("its address"));
    let mut sender = connect(listening);
    sender.write_all(HEADER).expect("room for a header");
    let (mut received, _) = backend.accept().expect("a session");
    received.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
    let mut header = vec![0; HEADER.len()];
    received.read_exact(&mut header).expect("a header");
    assert_eq!(header, HEADER);
    (relay, sender, received)
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

fn check_delivery(plain: &[u8], urgent: &[u8], rest: &[u8]) {
    let (_relay, mut sender, mut received) = session();
    let writer = {
        let (plain, urgent, rest) = (plain.to_vec(), urgent.to_vec(), rest.to_vec());
        std::thread::spawn(move || {
            sender.write_all(&plain).expect("room");
            assert_eq!(send(&sender, &urgent, SendFlags::OOB), Ok(urgent.len()));
            sender.write_all(&rest).expect("room");
            // Stays open until the backend has everything: the rest must not need an end to arrive.
            sender
        })
    };
    let expected = [plain, urgent, rest].concat();
    let mut bytes = vec![0; expected.len()];
    received.read_exact(&mut bytes).expect("every byte, while nothing more is sent");
    assert!(bytes == expected, "{} bytes, but not those that were sent", bytes.len());
    drop(writer.join().expect("all was sent"));
    assert_eq!(received.read(&mut bytes).expect("an orderly end"), 0);
}

#[test]
fn an_urgent_byte_and_the_bytes_after_it_are_delivered() {
    for _ in 0..20 {
        check_delivery(b"hello", b"U", b"world");
    }
}

#[test]
fn bulk_with_an_urgent_byte_in_it_is_delivered() {
    let bulk: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_be_bytes()[2] ^ i.to_be_bytes()[3]).collect();
    for _ in 0..5 {
        check_delivery(&bulk, b"U", &bulk);
    }
}
