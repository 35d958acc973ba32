//! A running relay is changed as each engine is; and its UDP flows.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use truepeer_policy::{Dialect, Policy};
use truepeer_relay::Relay;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counter;
use truepeer_session::settings::{ListenerSettings, UdpSettings};
use truepeer_session::{Engine, EngineError, Journal, ListenerRules};
use truepeer_testbed::sessions::{ANY_PORT, LONG, wait_until};

#[path = "../../../session/tests/engine/mod.rs"]
mod conformance;

use conformance::{Case, ONE, Subject, TWO};

conformance::conforms!(Relay);

impl Subject for Relay {
    const IDLE_END: Result<usize, std::io::ErrorKind> = Ok(0);

    fn start(
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        Relay::start(2, budgets, journal, on_end)
    }

    fn rules(settings: ListenerSettings, policy: Policy) -> ListenerRules {
        ListenerRules { settings, policy: Arc::new(policy) }
    }
}

fn udp_rules(address: SocketAddr, backend: SocketAddr) -> ListenerRules {
    let mut rules = conformance::rules::<Relay>(address, backend);
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
    let mut case = Case::<Relay>::new();
    let ((first, to_first), (second, to_second)) = (udp(), udp());
    let ((old, _), (new, _)) = (udp(), udp());
    let address = case.open(ONE, udp_rules(ANY_PORT, to_first));
    let flow = check_flow(&old, address, &first);
    case.engine.set_rules(ONE, udp_rules(ANY_PORT, to_second)).expect("the sockets stay the same");
    check_flow(&new, address, &second);
    assert_eq!(check_flow(&old, address, &first), flow);
    assert_eq!(case.journal.counters.open(ONE), 2);
    case.engine.close(ONE).expect("it is open");
    assert_eq!(case.journal.counters.open(ONE), 0);
    assert_eq!(case.journal.counters.of(ONE, Counter::FlowsClosed), 2);
    assert_eq!(case.open(TWO, udp_rules(address, to_first)), address);
    check_flow(&old, address, &first);
}

#[test]
fn a_draining_relay_opens_no_flows() {
    let mut case = Case::<Relay>::new();
    let ((backend, to_backend), (old, _), (new, _)) = (udp(), udp(), udp());
    let address = case.open(ONE, udp_rules(ANY_PORT, to_backend));
    check_flow(&old, address, &backend);
    case.engine.drain();
    // Both workers must have the order: the new flow's and the old one's.
    wait_until(|| {
        new.send_to(b"ping", address).expect("it is sent");
        case.journal.counters.refusals().contains_key("draining")
            || case.journal.counters.of(ONE, Counter::DatagramsRefused) > 0
    });
    check_flow(&old, address, &backend);
}
