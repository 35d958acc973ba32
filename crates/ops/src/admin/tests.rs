//! The admin server before a real relay, by real sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use truepeer_policy::{BackendAddr, Backends, Bans, BansAt, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_relay::Relay;
use truepeer_session::budget::Budgets;
use truepeer_session::registry::{Page, PageStart, SessionTable};
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, Journal, ListenerRules, SessionFilter, SessionId};

use super::listing::SessionDoc;
use super::status::StatusDoc;
use super::*;

const ID: ListenerId = ListenerId::new(3);
const LONG: Duration = Duration::from_secs(20);
const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 4000 443\r\n";

/// A relay whose backend is this test.
struct Small {
    relay: Mutex<Relay>,
    journal: Arc<Journal>,
    bans: Arc<Bans>,
    address: SocketAddr,
    is_draining: AtomicBool,
    endless: Endless,
    upgrades: Mutex<Vec<UnixStream>>,
}

/// While it is set: a table of sessions whose pages never end, and have none that is asked for.
#[derive(Clone, Default)]
struct Endless(Arc<AtomicBool>);

impl SessionList for Endless {
    fn page(&self, _: &SessionFilter, _: Option<PageStart>) -> Page {
        let start = PageStart { table: SessionTable::Tcp, worker: 0, place: 0 };
        Page { sessions: Vec::new(), next: self.0.load(Ordering::Relaxed).then_some(start) }
    }

    fn end(&self, _: SessionId) -> bool {
        false
    }

    fn end_banned(&self) {}
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Running for Small {
    fn state(&self) -> State {
        if self.is_draining.load(Ordering::Relaxed) { State::Draining } else { State::Serving }
    }

    fn counters(&self) -> &Counters {
        &self.journal.counters
    }

    fn listeners(&self) -> Vec<ListenerView> {
        let (entry, protocol, addresses) = ("proxy", Protocol::Tcp, vec![self.address]);
        vec![ListenerView { id: ID, entry, protocol, addresses, site: None, is_open: true }]
    }

    fn sessions(&self) -> Vec<Arc<dyn SessionList>> {
        if self.endless.0.load(Ordering::Relaxed) {
            return vec![Arc::new(Endless(Arc::clone(&self.endless.0)))];
        }
        vec![self.relay.lock().unwrap().sessions()]
    }

    fn bans(&self) -> &Bans {
        &self.bans
    }

    fn change_bans(&self, change: BanChange) -> Result<usize, BanFailure> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(BanFailure::Upgrading);
        }
        change.make(&self.bans).map_err(BanFailure::Refused).inspect(|_| {
            self.relay.lock().unwrap().sessions().end_banned();
        })
    }

    fn reload(&self) -> Result<String, String> {
        if self.is_draining.load(Ordering::Relaxed) {
            Err("truepeer is about to end".into())
        } else {
            Ok("nothing has changed".into())
        }
    }

    fn upgrade(&self, peer: UnixStream) {
        self.upgrades.lock().unwrap().push(peer);
    }
}

struct Bed {
    small: Arc<Small>,
    admin: Option<Admin>,
    backend: TcpListener,
    path: PathBuf,
    tcp: SocketAddr,
}

impl Bed {
    fn new(name: &str) -> Self {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = BackendAddr::new(backend.local_addr().unwrap());
        let mut policy = Policy::to(Backends::both(to, to));
        policy.senders.allow = PrefixSet::loopback();
        (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
        let (journal, bans) = (Arc::<Journal>::default(), Arc::<Bans>::default());
        policy.bans.set(BansAt::new(Arc::clone(&bans), 443)).unwrap();
        let mut relay =
            Relay::start(2, &Budgets::for_open_files(1024, true, false), &journal, || {}).unwrap();
        let settings = ListenerSettings::on("127.0.0.1:0".parse().unwrap());
        let rules = ListenerRules { settings, policy: Arc::new(policy) };
        let address = relay.open(ID, rules, &mut Vec::new()).unwrap()[0];
        let small = Arc::new(Small {
            relay: Mutex::new(relay),
            journal,
            bans,
            address,
            is_draining: AtomicBool::new(false),
            endless: Endless::default(),
            upgrades: Mutex::default(),
        });
        let path = std::env::temp_dir().join(format!("truepeer-admin-{}-{name}.sock", std::process::id()));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let listen = [AdminAddr::Unix(path.clone()), AdminAddr::Tcp(address)];
        let admin = start(&listen, &mut vec![tcp.into()], Arc::clone(&small) as Arc<dyn Running>).unwrap();
        Self { small, admin: Some(admin), backend, path, tcp: address }
    }

    fn session(&self) -> (TcpStream, TcpStream) {
        let mut sender = tcp(self.small.address);
        sender.write_all(HEADER).unwrap();
        let (mut received, _) = self.backend.accept().unwrap();
        received.read_exact(&mut vec![0; HEADER.len()]).unwrap();
        (sender, received)
    }

    fn ask(&self, request: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        ask(&mut stream, request)
    }

    fn ask_tcp(&self, request: &str) -> (u16, String) {
        let mut stream = tcp(self.tcp);
        stream.set_read_timeout(Some(LONG)).unwrap();
        ask(&mut stream, request)
    }

    fn sessions(&self, query: &str) -> Vec<SessionDoc> {
        let (status, body) = self.ask(&format!("GET /sessions{query} HTTP/1.0"));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// A value of `/metrics`.
    fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.ask("GET /metrics HTTP/1.0");
        let line =
            text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn labels(&self) -> String {
        format!("listener=\"{}\",protocol=\"tcp\",entry=\"proxy\"", self.small.address)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(admin) = self.admin.take() {
            admin.stop(true);
        }
        assert!(!self.path.exists(), "the socket's path is left");
    }
}

#[expect(clippy::disallowed_methods, reason = "the test is the sender, and the reader of the admin's port")]
fn tcp(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

fn ask(stream: &mut (impl std::io::Read + std::io::Write), request: &str) -> (u16, String) {
    stream.write_all(format!("{request}\r\nHost: truepeer\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn until(what: &str, is_it: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_it() {
        assert!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn bytes_are_counted_while_they_flow_and_sessions_are_listed() {
    let bed = Bed::new("flow");
    let (mut sender, mut received) = bed.session();
    // The header that truepeer writes itself is among the bytes that the backend gets.
    sender.write_all(&[1; 1000]).unwrap();
    received.read_exact(&mut [0; 1000]).unwrap();
    received.write_all(&[2; 3000]).unwrap();
    sender.read_exact(&mut [0; 3000]).unwrap();
    let labels = bed.labels();
    let up = format!("truepeer_bytes_total{{{labels},direction=\"up\"}}");
    let down = format!("truepeer_bytes_total{{{labels},direction=\"down\"}}");
    until("the bytes are counted", || bed.metric(&down) == 3000.0);
    assert_eq!(bed.metric(&up), 1000.0 + HEADER.len() as f64);
    assert_eq!(bed.metric(&format!("truepeer_open{{{labels}}}")), 1.0);
    assert_eq!(bed.metric(&format!("truepeer_headers_total{{{labels},result=\"v1\"}}")), 1.0);
    assert_eq!(bed.metric(&format!("truepeer_header_wait_seconds_count{{{labels}}}")), 1.0);
    assert_eq!(bed.metric(&format!("truepeer_backend_connect_seconds_count{{{labels}}}")), 1.0);
    assert_eq!(bed.metric(&format!("truepeer_session_length_seconds_count{{{labels}}}")), 0.0);

    let sessions = bed.sessions("");
    let [session] = &sessions[..] else { panic!("{sessions:?}") };
    assert_eq!(session.client, Some("192.0.2.1:4000".parse().unwrap()));
    assert_eq!(session.sender, sender.local_addr().unwrap());
    assert_eq!((session.bytes_up, session.bytes_down), (1000 + HEADER.len() as u64, 3000));
    assert_eq!((&*session.stage, &*session.kind), ("relaying", "tcp"));
    assert_eq!(session.listener, bed.small.address.to_string());

    drop((sender, received));
    until("its end is counted", || {
        bed.metric(&format!("truepeer_session_length_seconds_count{{{labels}}}")) == 1.0
    });
    assert!(bed.sessions("").is_empty());
    assert_eq!(bed.metric(&down), 3000.0);
}

#[test]
fn metrics_are_openmetrics_for_those_who_ask_for_it() {
    let bed = Bed::new("formats");
    for (accept, type_of_bytes, has_end) in [
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "# TYPE truepeer_bytes counter",
            true,
        ),
        ("*/*", "# TYPE truepeer_bytes_total counter", false),
    ] {
        let (status, text) = bed.ask(&format!("GET /metrics HTTP/1.1\r\nAccept: {accept}"));
        assert_eq!(status, 200);
        assert!(text.contains(type_of_bytes) && text.ends_with("# EOF\n") == has_end, "{accept}: {text}");
    }
}

#[test]
fn both_ends_of_an_ended_session_see_a_reset() {
    let bed = Bed::new("kill");
    let (mut sender, mut received) = bed.session();
    let (mut other, mut other_received) = bed.session();
    let id = bed.sessions("").into_iter().find(|one| one.sender == sender.local_addr().unwrap()).unwrap().id;
    let (status, text) = bed.ask(&format!("DELETE /sessions/{id} HTTP/1.1"));
    assert_eq!(status, 200, "{text}");
    for end in [&mut sender, &mut received] {
        end.set_read_timeout(Some(LONG)).unwrap();
        let error = end.read(&mut [0]).expect_err("an orderly end, or bytes");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(bed.ask(&format!("DELETE /sessions/{id} HTTP/1.1")).0, 404);
    assert_eq!(bed.ask("DELETE /sessions/xyz HTTP/1.1").0, 400);
    other.write_all(b"x").unwrap();
    other_received.read_exact(&mut [0]).unwrap();
    let ended = format!("truepeer_sessions_ended_by_operator_total{{{}}}", bed.labels());
    assert_eq!(bed.metric(&ended), 1.0);
}

#[test]
fn a_ban_is_listed_with_who_set_it_and_ends_the_sessions_of_its_client() {
    let bed = Bed::new("bans");
    let (mut sender, _received) = bed.session();
    assert_eq!(bed.ask("GET /bans HTTP/1.1"), (200, "[]".to_owned()));
    let (status, text) = bed.ask("POST /bans?client=192.0.2.0%2F30&for=60&port=443&why=a%20b HTTP/1.1");
    assert_eq!((status, &*text), (200, "1\n"));
    sender.set_read_timeout(Some(LONG)).unwrap();
    let error = sender.read(&mut [0]).expect_err("an orderly end, or bytes");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let (_, text) = bed.ask("GET /bans HTTP/1.1");
    let [ban] = &serde_json::from_str::<Vec<BanDoc>>(&text).unwrap()[..] else { panic!("{text}") };
    assert_eq!((&*ban.client, ban.port, &*ban.why), ("192.0.2.0/30", std::num::NonZeroU16::new(443), "a b"));
    assert_eq!(ban.until, Some(ban.since + 60));
    assert_eq!(ban.by, Some(rustix::process::geteuid().as_raw()));
    assert_eq!(ban.ban().map(|ban| ban.clients.to_string()).as_deref(), Some("192.0.2.0/30"));
    assert_eq!(
        bed.ask("DELETE /bans?client=192.0.2.1 HTTP/1.1"),
        (200, "192.0.2.1 is still banned, as part of 192.0.2.0/30\n0\n".to_owned())
    );
    assert_eq!(bed.ask("DELETE /bans?client=192.0.2.3/30 HTTP/1.1"), (200, "1\n".to_owned()));
    assert_eq!(bed.ask("PUT /bans HTTP/1.1").0, 405);
    bed.small.is_draining.store(true, Ordering::Relaxed);
    assert_eq!(bed.ask("DELETE /bans HTTP/1.1").0, 503);
}

#[test]
fn sessions_are_listed_page_by_page_and_by_client() {
    let bed = Bed::new("pages");
    let waiting: Vec<_> = (0..300).map(|_| tcp(bed.small.address)).collect();
    until("all are accepted", || bed.small.journal.counters.open(ID) == 300);
    let _session = bed.session();
    let ids: std::collections::HashSet<_> = bed.sessions("").into_iter().map(|session| session.id).collect();
    assert_eq!(ids.len(), 301);
    assert_eq!(bed.sessions("?limit=7").len(), 7);
    assert_eq!(bed.sessions("?client=192.0.2.0%2F24").len(), 1);
    assert_eq!(bed.sessions("?client=127.0.0.0/8").len(), 300);
    assert_eq!(bed.ask("GET /sessions?client=here HTTP/1.1").0, 400);
    // The same in chunks, as HTTP/1.1 has it.
    let (_, body) = bed.ask("GET /sessions?client=192.0.2.1 HTTP/1.1");
    assert!(body.ends_with("\r\n0\r\n\r\n") && body.contains("192.0.2.1:4000"), "{body:?}");
    drop(waiting);
}

#[test]
fn over_tcp_nothing_can_be_changed() {
    let bed = Bed::new("tcp");
    let _session = bed.session();
    for path in ["/metrics", "/healthz", "/readyz", "/status", "/sessions"] {
        assert_eq!(bed.ask_tcp(&format!("GET {path} HTTP/1.1")).0, 200, "{path}");
    }
    let id = bed.sessions("")[0].id.clone();
    for request in [
        format!("DELETE /sessions/{id}"),
        "POST /bans?client=192.0.2.1".into(),
        "POST /reload".into(),
        "POST /upgrade".into(),
        "PUT /".into(),
    ] {
        let (status, text) = bed.ask_tcp(&format!("{request} HTTP/1.1"));
        assert!(status == 403 && text.contains("use the unix socket"), "{request}: {status} {text}");
    }
    assert_eq!(bed.sessions("").len(), 1);
}

#[test]
fn reload_answers_with_its_outcome_and_readiness_follows_the_state() {
    let bed = Bed::new("reload");
    assert_eq!(bed.ask("POST /reload HTTP/1.1"), (200, "nothing has changed\n".to_owned()));
    assert_eq!(bed.ask("GET /readyz HTTP/1.1"), (200, "serving\n".to_owned()));
    bed.small.is_draining.store(true, Ordering::Relaxed);
    assert_eq!(bed.ask("POST /reload HTTP/1.1"), (409, "truepeer is about to end\n".to_owned()));
    assert_eq!(bed.ask("GET /readyz HTTP/1.1"), (503, "draining\n".to_owned()));
    assert_eq!(bed.ask("GET /healthz HTTP/1.1").0, 200);
    let status: StatusDoc = serde_json::from_str(&bed.ask("GET /status HTTP/1.0").1).unwrap();
    assert_eq!((&*status.state, status.listeners.len()), ("draining", 1));
}

#[test]
fn a_search_through_many_sessions_holds_nobody_up() {
    let bed = Bed::new("search");
    let search = bed.small.endless.clone();
    search.0.store(true, Ordering::Relaxed);
    let mut searching = UnixStream::connect(&bed.path).unwrap();
    searching.write_all(b"GET /sessions?client=192.0.2.9 HTTP/1.0\r\n\r\n").unwrap();
    searching.read_exact(&mut [0; 12]).unwrap();
    assert_eq!(bed.ask("GET /healthz HTTP/1.0").0, 200);
    drop(search);
    let mut rest = String::new();
    searching.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("[]\n"), "{rest}");
}

#[test]
fn an_upgrade_beside_another_order_is_refused_in_words() {
    let order = "POST /upgrade HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover";
    let bed = Bed::new("busy");
    // The first one waits for it.
    let upgrades = bed.small.upgrades.lock().unwrap();
    let mut first = UnixStream::connect(&bed.path).unwrap();
    first.write_all(format!("{order}\r\nHost: truepeer\r\n\r\n").as_bytes()).unwrap();
    first.read_exact(&mut [0; 12]).unwrap();
    let (status, body) = bed.ask(order);
    assert_eq!((status, body.contains("another reload or upgrade is going on")), (503, true), "{body}");
    drop(upgrades);
}

#[test]
fn an_upgrade_gets_the_connection_itself() {
    let bed = Bed::new("upgrade");
    assert_eq!(bed.ask("POST /upgrade HTTP/1.1").0, 400);
    let mut stream = UnixStream::connect(&bed.path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head =
        "POST /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    until("it is handed over", || !bed.small.upgrades.lock().unwrap().is_empty());
    bed.small.upgrades.lock().unwrap()[0].write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let bed = Bed::new("stale");
    assert_eq!(std::fs::metadata(&bed.path).unwrap().permissions().mode() & 0o777, 0o660);
    let listen = |path: &PathBuf| {
        let running = Arc::clone(&bed.small) as Arc<dyn Running>;
        start(&[AdminAddr::Unix(path.clone())], &mut Vec::new(), running)
    };
    let error = format!("{:#}", listen(&bed.path).unwrap_err());
    assert!(error.contains("is truepeer running already?"), "{error}");
    let stale = bed.path.with_extension("stale");
    drop(UnixListener::bind(&stale).unwrap());
    listen(&stale).unwrap().stop(true);
    assert!(!stale.exists());
    std::fs::write(&stale, "important").unwrap();
    let error = format!("{:#}", listen(&stale).unwrap_err());
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read(&stale).unwrap(), b"important");
    std::fs::remove_file(&stale).unwrap();
}

#[test]
fn sockets_go_over_to_another_admin_and_their_path_stays() {
    let mut bed = Bed::new("handover");
    let admin = bed.admin.take().unwrap();
    let mut sockets = admin.sockets().unwrap();
    let listen = [AdminAddr::Unix(bed.path.clone()), AdminAddr::Tcp(bed.tcp)];
    admin.stop(false);
    // Connects while nobody accepts: the kernel keeps it for the next one.
    let mut early = UnixStream::connect(&bed.path).unwrap();
    let running = Arc::clone(&bed.small) as Arc<dyn Running>;
    bed.admin = Some(start(&listen, &mut sockets, running).unwrap());
    assert!(sockets.is_empty());
    assert_eq!(ask(&mut early, "GET /healthz HTTP/1.1").0, 200);
    assert_eq!(bed.ask_tcp("GET /healthz HTTP/1.1").0, 200);
}

/// Silent and slow readers, more of them than have room, and bytes that are no request.
#[test]
fn hostile_connections_neither_block_nor_end_the_thread() {
    let bed = Bed::new("hostile");
    let silent: Vec<_> = (0..100).map(|_| tcp(bed.tcp)).collect();
    for mut stream in &silent {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
    }
    assert_eq!(bed.ask("GET /healthz HTTP/1.1").0, 200, "TCP uses up the unix socket's room");
    drop(silent);
    let long = format!("GET /{} HTTP/1.1", "x".repeat(20_000));
    for wrong in ["\0\0\0\0", "GET", "GET http://[::1 HTTP/1.1", "GET / HTTP/9.9", &*long] {
        let mut stream = UnixStream::connect(&bed.path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.write_all(format!("{wrong}\r\n\r\n").as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{}", answer.escape_ascii());
    }
    assert_eq!(bed.ask("POST /reload HTTP/1.1\r\nContent-Length: 5").0, 413);
    assert_eq!(bed.ask("GET /nowhere HTTP/1.1").0, 404);
    assert_eq!(bed.ask("HEAD /metrics HTTP/1.1"), (200, String::new()));
}

/// They never end by themselves here: an answer can't have waited for that.
#[test]
fn slow_connections_of_one_peer_keep_no_other_waiting() {
    let bed = Bed::new("slow");
    std::fs::set_permissions(&bed.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let path = bed.path.clone();
    // Credentials belong to the thread that connects.
    let by_another_user = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        if rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_err() {
            eprintln!("only root can connect as another user; TCP alone is tried");
            return Vec::new();
        }
        (0..64).map(|_| UnixStream::connect(&path).unwrap()).collect()
    });
    let by_another_user: Vec<_> = by_another_user.join().unwrap();
    for mut stream in &by_another_user {
        let _ = stream.write_all(b"GET /status HTTP/1.1\r\nHost: ");
    }
    let by_tcp: Vec<_> = (0..64).map(|_| tcp(bed.tcp)).collect();
    for mut stream in &by_tcp {
        let _ = stream.write_all(b"GET /status HTTP/1.1\r\nHost: ");
    }
    for path in ["/status", "/sessions", "/metrics"] {
        assert_eq!(bed.ask(&format!("GET {path} HTTP/1.0")).0, 200, "{path}");
        assert_eq!(bed.ask_tcp(&format!("GET {path} HTTP/1.0")).0, 200, "{path} over TCP");
    }
    // As many of them as have room are left. Which ones depends on whose bytes came last.
    let is_open = |stream: &&UnixStream| {
        stream.set_nonblocking(true).unwrap();
        let mut stream = *stream;
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let left = by_another_user.iter().filter(is_open).count();
    assert!(left <= 16 && (left > 0 || by_another_user.is_empty()), "{left} are left");
}

#[test]
fn the_page_shows_listeners_and_refusals_and_runs_its_own_script_alone() {
    let bed = Bed::new("page");
    let mut refused = tcp(bed.small.address);
    refused.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = refused.read(&mut [0]); // its end, or a reset
    until("the refusal is counted", || {
        bed.ask("GET / HTTP/1.0").1.contains("something else than a PROXY header")
    });
    let mut stream = tcp(bed.tcp);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("Content-Security-Policy: default-src 'none'"), "{page}");
    assert!(page.contains("script-src 'self'; style-src 'self'; connect-src 'self'"), "{page}");
    assert!(page.contains(&bed.small.address.to_string()), "{page}");
    // It is its own only script, and asks for nothing else.
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    for (path, kind) in [("/page.js", "text/javascript"), ("/page.css", "text/css")] {
        assert!(page.contains(&format!("={path}>")), "{page}");
        let mut stream = tcp(bed.tcp);
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(kind), "{answer}");
        assert!(!answer.contains("http://") || kind == "text/javascript", "{answer}");
    }
}

/// Every name in the dashboard's queries is one that `/metrics` exports.
#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let bed = Bed::new("dashboard");
    let (_, text) = bed.ask("GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text");
    let mut exported = std::collections::HashSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let ends: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            "info" => &["_info"],
            _ => &[""],
        };
        exported.extend(ends.iter().map(|end| format!("{name}{end}")));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/truepeer.json");
    let dashboard: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        queries.extend(panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].clone()));
    }
    queries
        .extend(dashboard["templating"]["list"].as_array().unwrap().iter().map(|one| one["query"].clone()));
    assert!(queries.len() > 20, "{queries:?}");
    let is_in_a_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    for query in queries.iter().map(|query| query.as_str().unwrap()) {
        for word in
            query.split(|character| !is_in_a_name(character)).filter(|word| word.starts_with("truepeer_"))
        {
            assert!(exported.contains(word), "{word} in {query}: /metrics has no such metric");
        }
    }
}
