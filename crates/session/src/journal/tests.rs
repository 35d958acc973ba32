//! What is logged and counted. Each test collects the log events of its own thread.

use std::fmt::{Debug, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};
use truepeer_policy::{BackendAddr, ClientAddr, OnConflict};

use super::*;
use crate::close::CloseReason;
use crate::settings::ListenerId;

/// An event: its level and target, and its fields in their order, the text last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    level: Level,
    target: &'static str,
    fields: Vec<(&'static str, String)>,
    text: String,
}

impl Line {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| &**value)
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.to_owned()));
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let (level, target) = (*metadata.level(), metadata.target());
        let mut line = Line { level, target, fields: Vec::new(), text: String::new() };
        event.record(&mut line);
        self.0.lock().expect("the lines").push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The lines that `act` logs.
fn lines_of(act: impl FnOnce()) -> Vec<Line> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), act);
    let mut kept = lines.0.lock().expect("the lines");
    std::mem::take(&mut *kept)
}

/// The only line that `act` logs.
fn line_of(act: impl FnOnce()) -> Line {
    let mut lines = lines_of(act);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn sender() -> SenderAddr {
    SenderAddr::new(addr("192.0.2.1:1000"))
}

fn arrival() -> (SenderAddr, SocketAddr) {
    (sender(), addr("127.0.0.1:443"))
}

fn route(origin: Origin) -> Route {
    Route {
        client: ClientAddr::new(addr("198.51.100.7:2000")),
        origin,
        backend: BackendAddr::new(addr("203.0.113.5:80")),
        source: None,
        on_conflict: OnConflict::Ephemeral,
        send_proxy: None,
        destination: None,
        special: None,
    }
}

fn ended(route: Option<&Route>, began: Instant) -> Ended<'_> {
    Ended {
        sender: sender(),
        route,
        listener: addr("127.0.0.1:443"),
        bytes_up: 3,
        bytes_down: 5,
        began,
        tls: None,
        tags: None,
    }
}

struct Case {
    journal: Journal,
    shard: Arc<Shard>,
    now: Instant,
}

impl Case {
    fn new() -> Self {
        Self::of(Journal::default())
    }

    fn of(journal: Journal) -> Self {
        let shard = journal.counters.shard(ListenerId::new(0));
        Self { journal, shard, now: Instant::now() }
    }

    fn total(&self, counter: Counter) -> u64 {
        self.journal.counters.total(counter)
    }
}

#[test]
fn a_session_ends_with_one_line_of_fixed_fields() {
    let case = Case::new();
    let route = route(Origin::Header);
    let tags = Tags::of_pairs(vec![("unique_id".to_owned(), "a1".to_owned())]);
    let ended = Ended { tls: Some("tls1.3"), tags: tags.as_deref(), ..ended(Some(&route), case.now) };
    let end = case.now + Duration::from_millis(250);
    let line = line_of(|| case.journal.on_close(&case.shard, &ended, &CloseReason::ResetByBackend, end));
    assert_eq!((line.level, line.target, &*line.text), (Level::INFO, SESSION, "session"));
    let fields: Vec<_> = line.fields.iter().map(|(name, value)| (*name, &**value)).collect();
    let expected = [
        ("client", "198.51.100.7:2000"),
        ("sender", "192.0.2.1:1000"),
        ("backend", "203.0.113.5:80"),
        ("listener", "127.0.0.1:443"),
        ("bytes_up", "3"),
        ("bytes_down", "5"),
        ("duration_ms", "250"),
        ("close", "reset_by_backend"),
        ("tls", "tls1.3"),
        ("unique_id", "a1"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(case.total(Counter::Reset), 1);
    let lengths = case.journal.counters.times(ListenerId::new(0), Timing::SessionLength);
    assert_eq!((lengths.count(), lengths.sum), (1, Duration::from_millis(250)));
}

#[test]
fn a_flow_ends_with_the_same_fields_and_its_datagrams() {
    let case = Case::new();
    let route = route(Origin::Header);
    let flow = EndedFlow {
        sender: sender(),
        route: &route,
        listener: addr("127.0.0.1:53"),
        datagrams_up: 1,
        datagrams_down: 2,
        bytes_up: 30,
        bytes_down: 50,
        began: case.now,
        close: "idle",
        tags: None,
    };
    let line = line_of(|| case.journal.on_flow_end(&case.shard, &flow, case.now));
    assert_eq!((line.target, &*line.text), (SESSION, "flow"));
    let values: Vec<_> = ["datagrams_up", "datagrams_down", "bytes_up", "bytes_down", "close"]
        .map(|name| line.field(name).expect("a field").to_owned())
        .into();
    assert_eq!(values, ["1", "2", "30", "50", "idle"]);
}

#[test]
fn a_connection_without_a_client_has_no_line_of_a_session() {
    let case = Case::new();
    let close = || case.journal.on_close(&case.shard, &ended(None, case.now), &CloseReason::Idle, case.now);
    let line = line_of(close);
    assert_eq!((line.level, &*line.text), (Level::DEBUG, "no session: idle time-out"));
    let lengths = case.journal.counters.times(ListenerId::new(0), Timing::SessionLength);
    assert_eq!((case.total(Counter::IdleTimeout), lengths.count()), (1, 0));
}

#[test]
fn the_same_complaint_about_a_sender_is_logged_once_a_minute() {
    let case = Case::new();
    let refusal = Refusal::SenderNotAllowed { sender: sender() };
    let refuse = |seconds| {
        let now = case.now + Duration::from_secs(seconds);
        lines_of(|| case.journal.on_refused_sender(&case.shard, arrival(), &refusal, now))
    };
    let first = refuse(0);
    assert_eq!((first[0].level, first[0].field("held_back")), (Level::WARN, None));
    assert_eq!(first[0].field("reason"), Some("sender_not_allowed"));
    assert_eq!(first[0].field("listener"), Some("127.0.0.1:443"));
    assert_eq!(first[0].text, "192.0.2.1:1000 may not send here");
    assert_eq!((refuse(1), refuse(59)), (vec![], vec![]));
    assert_eq!(refuse(61)[0].field("held_back"), Some("2"));
    assert_eq!(case.total(Counter::Refused), 4);
    assert_eq!(case.journal.counters.refusals()["sender_not_allowed"], 4);
}

#[test]
fn a_complaint_ends_with_the_advice_for_its_hint() {
    let advise: Advise = |hint| matches!(hint, Hint::Refusal(_)).then(|| "see the allow list".to_owned());
    let case = Case::of(Journal::with_advice(advise));
    let refusal = Refusal::SenderNotAllowed { sender: sender() };
    let refused = line_of(|| case.journal.on_refused_sender(&case.shard, arrival(), &refusal, case.now));
    assert_eq!(refused.text, "192.0.2.1:1000 may not send here; see the allow list");
    let mut refusals = Refusals::default();
    let datagram = RefusedDatagram {
        sender: sender(),
        listener: addr("127.0.0.1:53"),
        reason: Reason::NotProxy,
        why: &"no header",
        hint: Some(Hint::Dialect),
    };
    let line = line_of(|| case.journal.on_refused_datagram(&mut refusals, &case.shard, &datagram, case.now));
    assert_eq!(line.text, "no header");
    assert_eq!(case.total(Counter::DatagramsRefused), 1);
}

#[test]
fn each_origin_of_a_client_has_its_counter() {
    let rows = [
        (Origin::Header, Some(Version::V1), Counter::HeaderV1),
        (Origin::Header, Some(Version::V2), Counter::HeaderV2),
        (Origin::Header, None, Counter::HeaderV2),
        (Origin::Local, Some(Version::V2), Counter::HeaderLocal),
        (Origin::Unknown, Some(Version::V1), Counter::HeaderUnknown),
        (Origin::NoHeader, None, Counter::HeaderNone),
    ];
    for (origin, version, counter) in rows {
        let case = Case::new();
        case.journal.on_route(&case.shard, &route(origin), version, Duration::from_millis(1));
        let counted: Vec<_> = Counter::ALL.into_iter().filter(|&other| case.total(other) > 0).collect();
        assert_eq!(counted, [counter], "{origin:?} {version:?}");
    }
}

#[test]
fn a_replaced_port_is_reported_by_its_cause() {
    let replace = |origin, error| {
        let case = Case::new();
        let lines = lines_of(|| case.journal.on_port_replaced(&case.shard, &route(origin), &error, case.now));
        let counts = [Counter::PortReplaced, Counter::PortHeld].map(|counter| case.total(counter));
        (lines, counts)
    };
    let (lines, counts) = replace(Origin::Header, ConnectError::TupleInUse);
    assert_eq!(lines[0].text, "the client's port is in use on this machine: the backend sees another one");
    assert_eq!(counts, [1, 0]);
    // A local sender that is its own client uses its own port: no complaint.
    assert_eq!(replace(Origin::NoHeader, ConnectError::TupleInUse), (vec![], [1, 0]));
    let (lines, counts) = replace(Origin::NoHeader, ConnectError::PortHeld);
    assert_eq!(lines[0].field("reason"), Some("client_port_held"));
    assert_eq!(counts, [1, 1]);
}

#[test]
fn a_special_claim_is_told_with_client_and_sender() {
    let case = Case::new();
    let tell = || {
        case.journal.on_special_claim(
            &case.shard,
            &route(Origin::Header),
            (sender(), SpecialRange::Loopback),
            case.now,
        )
    };
    let line = line_of(tell);
    assert_eq!(line.field("client"), Some("198.51.100.7:2000"));
    assert_eq!(line.field("sender"), Some("192.0.2.1:1000"));
    assert!(line.text.ends_with(": the backend will believe it"), "{}", line.text);
}

#[test]
fn a_lack_of_descriptors_is_told_apart_from_other_lacks() {
    let pause = |lacking: Option<&dyn fmt::Display>| {
        let case = Case::new();
        let ip = case_ip();
        let line = line_of(|| case.journal.on_accept_pause(&case.shard, ip, lacking, case.now));
        assert_eq!((line.level, case.total(Counter::AcceptPaused)), (Level::ERROR, 1));
        line.text
    };
    assert!(pause(None).contains("raise the limit of open files"));
    assert_eq!(pause(Some(&"no memory")), "accepting paused for a moment: no memory");
    let case = Case::new();
    let waited = Duration::from_secs(7);
    let line = line_of(|| case.journal.on_reclaimed(&case.shard, case_ip(), waited, case.now));
    assert!(line.text.contains("idle longest (7 s)"), "{}", line.text);
    assert_eq!(case.total(Counter::Reclaimed), 1);
}

fn case_ip() -> IpAddr {
    addr("127.0.0.1:443").ip()
}
