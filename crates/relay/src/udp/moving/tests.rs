//! Two relays in one process, on real sockets, as two processes would do it.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Arc;

use truepeer_policy::{Backends, Dialect, Policy, PrefixSet, Source};
use truepeer_proto::{Addresses, Command, Transport, V2Encoder};
use truepeer_session::budget::Budgets;
use truepeer_session::settings::{ListenerSettings, UdpSettings};
use truepeer_session::{Engine as _, Journal, ListenerRules, OpenSession, SessionFilter};

use super::*;
use crate::Relay;

const ID: ListenerId = ListenerId::new(3);
const WORKERS: usize = 3;
const CLIENTS: u16 = 40;
const LONG: Duration = Duration::from_secs(20);

fn relay(workers: usize) -> Relay {
    let budgets = Budgets::for_open_files(1024, false, true);
    Relay::start(workers, &budgets, &Arc::<Journal>::default(), || ()).expect("a relay")
}

/// Rules that need no privileges: the upstream sockets have this machine's own address.
fn rules(listen: SocketAddr, backend: &UdpSocket, dialect: Dialect) -> ListenerRules {
    let to = BackendAddr::new(backend.local_addr().expect("its address"));
    let mut policy = Policy::to(Backends::both(to, to));
    policy.senders.allow = PrefixSet::loopback();
    policy.transport = Transport::Dgram;
    policy.delivery.source = Source::Any;
    let udp = UdpSettings { dialect, silence: Duration::from_secs(60), sending: None };
    let settings = ListenerSettings { udp: Some(udp), ..ListenerSettings::on(listen) };
    ListenerRules { settings, policy: Arc::new(policy) }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    socket.set_read_timeout(Some(LONG)).expect("a time-out");
    socket
}

/// A datagram of the client with this port, which is also in its unique id.
fn datagram(client: u16, payload: &[u8]) -> Vec<u8> {
    const UNIQUE_ID: u8 = 5;
    let addresses = Addresses::Inet {
        transport: Transport::Dgram,
        source: SocketAddr::from(([203, 0, 113, 7], client)),
        destination: SocketAddr::from(([192, 0, 2, 1], 53)),
    };
    let mut buffer = [0; 64];
    let header = V2Encoder::new(&mut buffer, Command::Proxy, &addresses);
    let header = header.and_then(|header| header.tlv(UNIQUE_ID, format!("id-{client}").as_bytes()));
    let header = header.and_then(V2Encoder::finish);
    let length = header.expect("it fits");
    [&buffer[..length], payload].concat()
}

/// Receives `count` datagrams, and returns each with its source port.
fn received(backend: &UdpSocket, count: u16) -> BTreeSet<(Vec<u8>, u16)> {
    let mut buffer = [0; 100];
    let receive = |_| {
        let (length, from) = backend.recv_from(&mut buffer).expect("a datagram");
        (buffer[..length].to_vec(), from.port())
    };
    (0..count).map(receive).collect()
}

fn payloads(text: &str, sender: &UdpSocket, to: SocketAddr) {
    for client in 1..=CLIENTS {
        let payload = format!("{text} {client}");
        sender.send_to(&datagram(client, payload.as_bytes()), to).expect("sent");
    }
}

/// From each client's name to its upstream port.
fn ports(received: &BTreeSet<(Vec<u8>, u16)>) -> BTreeSet<(String, u16)> {
    let client =
        |payload: &[u8]| String::from_utf8_lossy(payload).rsplit(' ').next().unwrap_or("").to_owned();
    received.iter().map(|(payload, port)| (client(payload), *port)).collect()
}

fn moves_between(workers: usize, new_workers: usize) {
    let (backend, sender) = (socket(), socket());
    let mut old = relay(workers);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = old.open(ID, rules(any, &backend, Dialect::Every), &mut Vec::new()).expect("a listener")[0];
    payloads("before", &sender, listen);
    let before = ports(&received(&backend, CLIENTS));
    let upstream_ports: BTreeSet<u16> = before.iter().map(|(_, port)| *port).collect();
    assert_eq!(upstream_ports.len(), usize::from(CLIENTS), "each client has a flow");

    old.pause_flows().expect("paused");
    payloads("meanwhile", &sender, listen);
    backend.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    backend.recv_from(&mut [0; 100]).expect_err("a paused relay reads nothing");
    backend.set_read_timeout(Some(LONG)).expect("a time-out");

    let mut new = relay(new_workers);
    new.pause_flows().expect("paused");
    let mut sockets = old.sockets(ID).expect("its sockets");
    assert_eq!(sockets.len(), workers);
    new.open(ID, rules(listen, &backend, Dialect::Every), &mut sockets).expect("the same listener");
    let flows = old.describe_flows(ID).expect("its flows");
    assert_eq!(new.adopt_flows(flows).expect("adopted"), usize::from(CLIENTS));
    old.release(ID).expect("released");
    new.resume_flows().expect("resumed");

    let meanwhile = received(&backend, CLIENTS);
    assert_eq!(ports(&meanwhile), before, "each flow has the upstream socket that it had");
    assert!(meanwhile.iter().all(|(payload, _)| payload.starts_with(b"meanwhile")));
    payloads("after", &sender, listen);
    assert_eq!(ports(&received(&backend, CLIENTS)), before);
    for (_, port) in &before {
        backend.send_to(b"reply", ("127.0.0.1", *port)).expect("sent");
        let mut reply = [0; 10];
        let (length, from) = sender.recv_from(&mut reply).expect("a reply");
        assert_eq!((&reply[..length], from), (&b"reply"[..], listen));
    }
    drop(old);
    let listed = new.sessions().page(&SessionFilter::default(), None).sessions;
    let is_own = |flow: &OpenSession| {
        let id = flow.tags.as_ref()?.value("unique_id")?;
        Some(id == format!("id-{}", flow.client?.get().port()))
    };
    assert!(listed.iter().all(|flow| is_own(flow) == Some(true)), "{listed:?}");
    payloads("at last", &sender, listen);
    assert_eq!(ports(&received(&backend, CLIENTS)), before);
}

#[test]
fn no_datagram_of_a_moving_flow_is_lost_or_given_to_another() {
    moves_between(WORKERS, WORKERS);
}

#[test]
fn the_new_process_may_have_fewer_or_more_workers() {
    moves_between(WORKERS, 1);
    moves_between(WORKERS, 5);
    moves_between(1, 2);
}

#[test]
fn a_paused_relay_that_resumes_has_lost_nothing() {
    let (backend, sender) = (socket(), socket());
    let mut relay = relay(WORKERS);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen =
        relay.open(ID, rules(any, &backend, Dialect::Every), &mut Vec::new()).expect("a listener")[0];
    payloads("before", &sender, listen);
    let before = ports(&received(&backend, CLIENTS));
    relay.pause_flows().expect("paused");
    payloads("meanwhile", &sender, listen);
    drop(relay.describe_flows(ID).expect("its flows"));
    relay.resume_flows().expect("resumed");
    relay.resume_flows().expect("a second time changes nothing");
    assert_eq!(ports(&received(&backend, CLIENTS)), before);
}

/// A flow's time must end before its sender's: a port used again would be taken for the old client.
#[test]
fn a_flow_keeps_its_silence() {
    let (backend, sender) = (socket(), socket());
    let mut old = relay(1);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = old.open(ID, rules(any, &backend, Dialect::First), &mut Vec::new()).expect("a listener")[0];
    sender.send_to(&datagram(1, b"first"), listen).expect("sent");
    received(&backend, 1);
    std::thread::sleep(Duration::from_millis(50));
    old.pause_flows().expect("paused");
    let mut flows = old.describe_flows(ID).expect("its flows");
    let state = &mut flows[0].state;
    assert!(state.silent_for >= Duration::from_millis(50) && state.age >= state.silent_for, "{state:?}");
    assert_eq!(state.bare.map(|(sender, _)| sender), sender.local_addr().ok());
    state.silent_for = Duration::from_secs(61);
    let mut new = relay(1);
    new.pause_flows().expect("paused");
    let mut sockets = old.sockets(ID).expect("its sockets");
    new.open(ID, rules(listen, &backend, Dialect::First), &mut sockets).expect("the same listener");
    assert_eq!(new.adopt_flows(flows).expect("none"), 0, "its time was over");
}

#[test]
fn after_the_last_read_replies_still_come_and_the_rest_waits_in_the_sockets() {
    let (backend, sender) = (socket(), socket());
    let mut old = relay(1);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = old.open(ID, rules(any, &backend, Dialect::Every), &mut Vec::new()).expect("a listener")[0];
    sender.send_to(&datagram(1, b"question"), listen).expect("sent");
    let (mut buffer, mut sockets) = ([0; 100], old.sockets(ID).expect("its sockets"));
    let (_, flow) = backend.recv_from(&mut buffer).expect("the question");
    old.drain();
    old.read_no_more();
    // The reply passes after the order has been carried out, because a worker keeps the order of its mail.
    drop(old.sessions().page(&SessionFilter::default(), None));
    sender.send_to(&datagram(1, b"the next one"), listen).expect("sent");
    backend.send_to(b"answer", flow).expect("sent");
    assert_eq!(sender.recv(&mut buffer).expect("an answer"), b"answer".len());
    drop(old);
    let mut new = relay(1);
    new.open(ID, rules(listen, &backend, Dialect::Every), &mut sockets).expect("the same listener");
    assert_eq!(backend.recv(&mut buffer).expect("the next one"), b"the next one".len());
}
