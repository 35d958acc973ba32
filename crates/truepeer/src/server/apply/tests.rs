#![expect(clippy::disallowed_methods, reason = "the test's own connections")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::server::signals::Events;
use truepeer_config::plan::{Config, ListenerConfig};
use truepeer_config::spec::{HostPort, SendProxy};

type Plan = Vec<Arc<CheckedListener>>;

const PORT: u16 = 7001;
const CHUNK: usize = 4096;

/// An address of this process's own, so that several processes can run these tests at once.
fn address(last: u8) -> SocketAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 128 | high, low, last), PORT))
}

/// Says its name on each connection, then sends back what it receives.
fn backend(name: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo(stream.unwrap(), name));
        }
    });
    address
}

fn echo(stream: TcpStream, name: u8) {
    let mut from = BufReader::new(stream.try_clone().unwrap());
    let mut header = String::new();
    from.read_line(&mut header).unwrap();
    let mut to = stream;
    to.write_all(&[name]).unwrap();
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn listener(bind: SocketAddr, backend: SocketAddr) -> ListenerConfig {
    let mut config = ListenerConfig { bind, send_proxy: Some(SendProxy::V1), ..ListenerConfig::default() };
    config.backends.ipv4 = Some(HostPort::new(&backend.ip().to_string(), backend.port()));
    config
}

fn plan(listeners: Vec<ListenerConfig>) -> Plan {
    Config { listeners, ..Config::default() }.check().unwrap().listeners
}

fn engines() -> (Engines, Events) {
    let events = Events::hear(&[]).unwrap();
    let budgets = Budgets::for_open_files(1024, true, false);
    (Engines::new(2, budgets, Journal::default(), events.bell(), Programs::default(), Arc::default()), events)
}

fn apply(engines: &mut Engines, plan: &Plan) -> anyhow::Result<Vec<Change>> {
    engines.apply(plan, &Marks::default(), &mut Vec::new())
}

/// A session, and the name that its backend said.
fn session(listener: SocketAddr) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(listener).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n").unwrap();
    let mut name = [0];
    stream.read_exact(&mut name).unwrap();
    (stream, name[0])
}

fn said_by(listener: SocketAddr) -> char {
    session(listener).1.into()
}

fn is_closed(listener: SocketAddr) -> bool {
    TcpStream::connect(listener).is_err()
}

/// Sends and compares until `stop`, then ends in order.
fn talk(mut stream: TcpStream, stop: &AtomicBool, rounds: &AtomicUsize) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let sent: Vec<u8> = (0..CHUNK).map(|at| u8::try_from((round * 31 + at * 7) % 251).unwrap()).collect();
        stream.write_all(&sent).unwrap();
        let mut back = [0; CHUNK];
        stream.read_exact(&mut back).unwrap();
        assert!(back[..] == sent, "round {round} came back changed");
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
}

/// Does `work` while a session of each listener sends and receives; each must make progress before and after
/// it.
fn while_talking(listeners: &[SocketAddr], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let rounds: Vec<AtomicUsize> = listeners.iter().map(|_| AtomicUsize::new(0)).collect();
    let wait_for_progress = || {
        for one in &rounds {
            let before = one.load(Ordering::Relaxed);
            while one.load(Ordering::Relaxed) == before && !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    };
    thread::scope(|scope| {
        // Without it, a failure of `work` would wait for the sessions for ever.
        let _stops = StopsAtPanic(&stop);
        let talking = listeners.iter().zip(&rounds).map(|(listener, rounds)| {
            let (stream, _) = session(*listener);
            let stop = &stop;
            scope.spawn(move || {
                // A session that fails ends the wait for its progress.
                let _stops = StopsAtPanic(stop);
                talk(stream, stop, rounds);
            })
        });
        let talking: Vec<_> = talking.collect();
        wait_for_progress();
        work();
        wait_for_progress();
        stop.store(true, Ordering::Relaxed);
        talking.into_iter().for_each(|one| one.join().expect("a session ended or changed bytes"));
    });
}

struct StopsAtPanic<'a>(&'a AtomicBool);

impl Drop for StopsAtPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn sessions_go_on_while_listeners_open_close_and_change() {
    let (first, second) = (backend(b'a'), backend(b'b'));
    let [untouched, closed, changed, opened] = [1, 2, 3, 4].map(address);
    let before = plan([untouched, closed, changed].map(|bind| listener(bind, first)).into());
    let after = plan(vec![listener(untouched, first), listener(changed, second), listener(opened, second)]);
    let (mut engines, _events) = engines();
    apply(&mut engines, &before).unwrap();
    assert!(is_closed(opened));

    while_talking(&[untouched, closed, changed], || {
        assert_eq!(apply(&mut engines, &after).unwrap().len(), 3);
        assert!(is_closed(closed));
        assert_eq!([untouched, changed, opened].map(said_by), ['a', 'b', 'b']);
    });
    while_talking(&[untouched, changed, opened], || {
        apply(&mut engines, &before).unwrap();
        assert!(is_closed(opened));
        assert_eq!([untouched, closed, changed].map(said_by), ['a', 'a', 'a']);
    });
}

#[test]
fn a_change_that_fails_half_way_is_undone() {
    let (first, second) = (backend(b'a'), backend(b'b'));
    let [untouched, reopened, opened, taken] = [11, 12, 13, 14].map(address);
    let _holder = TcpListener::bind(taken).unwrap();
    let before = plan([untouched, reopened].map(|bind| listener(bind, first)).into());
    let more_sockets = ListenerConfig { sockets: NonZeroU16::new(2).unwrap(), ..listener(reopened, second) };
    let after = plan(vec![
        listener(untouched, second),
        more_sockets,
        listener(opened, second),
        listener(taken, second),
    ]);
    let (mut engines, _events) = engines();
    apply(&mut engines, &before).unwrap();

    while_talking(&[untouched, reopened], || {
        let failure = apply(&mut engines, &after).unwrap_err().to_string();
        assert!(failure.contains(&taken.to_string()), "{failure}");
        assert_eq!(engines.running.len(), 2);
        assert!(before.iter().all(|one| engines.running.contains(one)));
        assert!(is_closed(opened));
        assert_eq!([untouched, reopened].map(said_by), ['a', 'a']);
    });
    let snapshot = engines.relay.as_ref().unwrap().snapshot();
    let open: Vec<IpAddr> =
        snapshot.listeners.iter().flat_map(|one| &one.addresses).map(SocketAddr::ip).collect();
    assert_eq!(open.len(), 2, "{open:?}");
}
