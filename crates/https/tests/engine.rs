//! A running engine of tunnels and exchanges is changed as each engine is; and exchanges become tunnels.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use truepeer_https::downstream::TlsListener;
use truepeer_https::gateway::{ClientAddress, HttpOptions, RequestRules};
use truepeer_https::{Https, HttpsRules, SessionRules};
use truepeer_origin::HttpSettings;
use truepeer_origin::{OriginHealth, OriginProtocol};
use truepeer_policy::Policy;
use truepeer_session::budget::Budgets;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, EngineError, Journal};
use truepeer_testbed::sessions::{ANY_PORT, LONG, backend, check_that_it_works, dial, session};

#[path = "../../session/tests/engine/mod.rs"]
mod conformance;

use conformance::{Case, ONE, Subject};

conformance::conforms!(Https);

impl Subject for Https {
    const IDLE_END: Result<usize, ErrorKind> = Err(ErrorKind::ConnectionReset);

    fn start(
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        Https::start(2, budgets, journal, on_end)
    }

    /// A tunnel without TLS on either side.
    fn rules(settings: ListenerSettings, policy: Policy) -> HttpsRules {
        let listening = TlsListener {
            settings,
            policy: Arc::new(policy),
            tls: None,
            challenges: Arc::default(),
            handshake_timeout: Duration::from_secs(5),
        };
        HttpsRules { listening, sessions: SessionRules::Tunnels(None) }
    }
}

fn tunnels(address: SocketAddr, backend: SocketAddr) -> HttpsRules {
    conformance::rules::<Https>(address, backend)
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
    let requests = RequestRules { origin: None, http: options, challenges: None };
    HttpsRules { sessions: SessionRules::Requests(Box::new(requests)), ..tunnels(address, origin) }
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
fn new_rules_apply_to_new_http_connections_and_may_turn_them_into_tunnels() {
    let mut case = Case::<Https>::new();
    let address = case.open(ONE, exchanges(ANY_PORT, origin("one")));
    let mut old = dial(address).expect("a connection");
    assert_eq!(ask(&mut old), "one");
    case.engine.set_rules(ONE, exchanges(ANY_PORT, origin("two"))).expect("the sockets stay the same");
    let mut new = dial(address).expect("a connection");
    assert_eq!((ask(&mut new), ask(&mut old)), ("two".to_owned(), "one".to_owned()));
    let (backend, to_backend) = backend();
    case.engine.set_rules(ONE, tunnels(ANY_PORT, to_backend)).expect("the sockets stay the same");
    check_that_it_works(&mut session(address, &backend));
    assert_eq!((ask(&mut new), ask(&mut old)), ("two".to_owned(), "one".to_owned()));
}
