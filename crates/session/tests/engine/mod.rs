//! What every engine does when its owner changes it. The tests of each engine include this file.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use truepeer_policy::{BackendAddr, Backends, HeaderRule, Policy, PrefixSet, Source};
use truepeer_proto::Version;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counter;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId, SessionFilter};
use truepeer_testbed::sessions::{
    ANY_PORT, LONG, accept, backend, check_that_it_works, dial, session, wait_until,
};

pub(crate) const ONE: ListenerId = ListenerId::new(1);
pub(crate) const TWO: ListenerId = ListenerId::new(2);

/// An engine under test.
pub(crate) trait Subject: Engine<Rules: Clone> + Sized {
    /// What a client reads when its session has been silent for too long.
    const IDLE_END: Result<usize, ErrorKind>;

    fn start(
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError>;

    fn rules(settings: ListenerSettings, policy: Policy) -> Self::Rules;
}

pub(crate) struct Case<E> {
    pub(crate) engine: E,
    pub(crate) journal: Arc<Journal>,
    ends: Receiver<()>,
}

impl<E: Subject> Case<E> {
    pub(crate) fn new() -> Self {
        let (journal, (ended, ends)) = (Arc::<Journal>::default(), channel());
        let on_end = move || {
            let _ = ended.send(());
        };
        let budgets = Budgets::for_open_files(256, true, true);
        Self { engine: E::start(&budgets, &journal, on_end).expect("an engine"), journal, ends }
    }

    pub(crate) fn open(&mut self, id: ListenerId, rules: E::Rules) -> SocketAddr {
        self.engine.open(id, rules, &mut Vec::new()).expect("a listener")[0]
    }

    /// The sessions on all pages.
    fn listed(&self) -> usize {
        let (list, mut start, mut count) = (self.engine.sessions(), None, 0);
        loop {
            let page = list.page(&SessionFilter::default(), start);
            count += page.sessions.len();
            match page.next {
                Some(next) => start = Some(next),
                None => return count,
            }
        }
    }
}

/// Rules that send all sessions to `backend`. A header names the client, so no privileges are needed.
pub(crate) fn rules<E: Subject>(address: SocketAddr, backend: SocketAddr) -> E::Rules {
    E::rules(ListenerSettings::on(address), policy(backend))
}

pub(crate) fn policy(backend: SocketAddr) -> Policy {
    let backend = BackendAddr::new(backend);
    let mut policy = Policy::to(Backends::both(backend, backend));
    policy.senders.allow = PrefixSet::loopback();
    policy.senders.header = HeaderRule::Forbid;
    (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    policy
}

/// Makes each function of this file a test of an engine.
macro_rules! conforms {
    ($engine:ty) => {
        conformance::conforms! {
            $engine:
            new_rules_apply_to_new_sessions_only
            a_closed_listener_keeps_its_sessions_and_frees_its_address
            a_drained_engine_ends_with_its_last_session
            an_engine_stopped_by_its_owner_reports_no_end
            listeners_are_counted_apart
            impossible_changes_are_refused
        }
    };
    ($engine:ty: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                conformance::$name::<$engine>();
            }
        )*
    };
}
pub(crate) use conforms;

pub(crate) fn new_rules_apply_to_new_sessions_only<E: Subject>() {
    let mut case = Case::<E>::new();
    let ((first, to_first), (second, to_second)) = (backend(), backend());
    let address = case.open(ONE, rules::<E>(ANY_PORT, to_first));
    let mut old = session(address, &first);
    check_that_it_works(&mut old);
    let mut settings = ListenerSettings::on(ANY_PORT);
    settings.idle_timeout = Some(Duration::from_millis(100));
    case.engine.set_rules(ONE, E::rules(settings, policy(to_second))).expect("the sockets stay the same");
    let (mut new, _received) = session(address, &second);
    // The new rules have an idle time-out, which ends the new session. The old session's rules have none.
    assert_eq!(new.read(&mut [0]).map_err(|error| error.kind()), E::IDLE_END);
    check_that_it_works(&mut old);
    // Its client may see the end before it is counted.
    wait_until(|| case.journal.counters.of(ONE, Counter::IdleTimeout) == 1);
}

pub(crate) fn a_closed_listener_keeps_its_sessions_and_frees_its_address<E: Subject>() {
    let mut case = Case::<E>::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, rules::<E>(ANY_PORT, to_backend));
    let mut old = session(address, &backend);
    let just_come: Vec<_> = (0..20).map(|_| dial(address).expect("a connection")).collect();
    case.engine.close(ONE).expect("it is open");
    assert_eq!(dial(address).expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    check_that_it_works(&mut old);
    for mut sender in &just_come {
        sender.write_all(b"x").expect("a session");
    }
    for _ in &just_come {
        accept(&backend).read_exact(&mut [0]).expect("a byte of each of them");
    }
    assert_eq!(case.open(TWO, rules::<E>(address, to_backend)), address);
    check_that_it_works(&mut session(address, &backend));
    check_that_it_works(&mut old);
}

pub(crate) fn a_drained_engine_ends_with_its_last_session<E: Subject>() {
    let mut case = Case::<E>::new();
    let (backend, to_backend) = backend();
    let address = case.open(ONE, rules::<E>(ANY_PORT, to_backend));
    let mut last = session(address, &backend);
    case.engine.drain();
    wait_until(|| dial(address).is_err());
    // Including those that were dialled before the listener was closed.
    drop(backend);
    check_that_it_works(&mut last);
    assert_eq!(case.engine.health(), Health::Serving);
    // It can still be seen, and ended.
    wait_until(|| case.listed() == 1);
    drop(last);
    case.ends.recv_timeout(LONG).expect("the owner is told");
    assert_eq!(case.engine.health(), Health::Ended);
}

pub(crate) fn an_engine_stopped_by_its_owner_reports_no_end<E: Subject>() {
    let case = Case::<E>::new();
    drop(case.engine);
    assert!(case.ends.recv().is_err());
}

pub(crate) fn listeners_are_counted_apart<E: Subject>() {
    let mut case = Case::<E>::new();
    let (backend, to_backend) = backend();
    let one = case.open(ONE, rules::<E>(ANY_PORT, to_backend));
    let two = case.open(TWO, rules::<E>(ANY_PORT, to_backend));
    let sessions = [session(one, &backend), session(two, &backend), session(two, &backend)];
    let counters = &case.journal.counters;
    // The backend may have the header before the worker counts the session.
    wait_until(|| counters.of(ONE, Counter::Relayed) == 1 && counters.of(TWO, Counter::Relayed) == 2);
    let snapshot = case.engine.snapshot();
    let seen: Vec<_> = snapshot.listeners.iter().map(|one| (one.id, one.addresses[0], one.open)).collect();
    assert_eq!(seen, [(ONE, one, 1), (TWO, two, 2)]);
    drop(sessions);
    wait_until(|| counters.open(ONE) + counters.open(TWO) == 0);
}

pub(crate) fn impossible_changes_are_refused<E: Subject>() {
    let mut case = Case::<E>::new();
    let (_backend, to_backend) = backend();
    let here = rules::<E>(ANY_PORT, to_backend);
    assert!(matches!(case.engine.close(ONE), Err(EngineError::NotOpen(ONE))));
    assert!(matches!(case.engine.set_rules(ONE, here.clone()), Err(EngineError::NotOpen(ONE))));
    case.open(ONE, here.clone());
    assert!(matches!(case.engine.open(ONE, here, &mut Vec::new()), Err(EngineError::IsOpen(ONE))));
    let mut transparent = ListenerSettings::on(ANY_PORT);
    transparent.transparent = true;
    let elsewhere = ListenerSettings::on(SocketAddr::new(ANY_PORT.ip(), 9));
    for (settings, differs) in [(transparent, "transparency"), (elsewhere, "address")] {
        let error = case.engine.set_rules(ONE, E::rules(settings, policy(to_backend)));
        let error = error.expect_err("new sockets would be needed");
        assert!(matches!(error, EngineError::OtherSockets { id: ONE, what } if what == differs), "{error}");
    }
    let other = TcpListener::bind(ANY_PORT).expect("a listener");
    let taken = other.local_addr().expect("its address");
    let refused = case.engine.open(TWO, rules::<E>(taken, to_backend), &mut Vec::new());
    assert!(matches!(refused, Err(EngineError::Listen(_))), "{refused:?}");
    assert_eq!(case.engine.snapshot().listeners.len(), 1);
}
