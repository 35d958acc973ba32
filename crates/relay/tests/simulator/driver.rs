//! The worker's part in a simulation: tokens, verdicts, further turns, and deadlines on a clock that jumps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use truepeer_policy::{BackendAddr, Backends, Policy, PrefixSet, SenderAddr};
use truepeer_session::budget::{Budget, Budgets};
use truepeer_session::counters::{Counter, Shard};
use truepeer_session::deadlines::{Deadlines, QueueId};
use truepeer_session::settings::ListenerSettings;
use truepeer_session::table::{Key, Table};
use truepeer_session::{CloseReason, Journal, ListenerId};

use super::connection::Rooms;
use super::io::{Hardships, SimIo};
use super::party::Script;
use super::world::{Backend, World};
use crate::io::Token;
use crate::kernel::readiness;
use crate::leaving::{CHECKS, check};
use crate::tcp::context::{Context, Tokens};
use crate::tcp::left::{LEFT_CHECK, MOVING_CHECK};
use crate::tcp::relaying::{RESET_CHECK, Side};
use crate::tcp::session::{Deadline, Session, Verdict};
use truepeer_session::connect_as::{CONFLICT_RETRY, ROUTE_RETRY};

const SCRATCH_BYTES: usize = 128 << 10;
/// After this many rounds a simulation counts as endless.
const MOST_ROUNDS: usize = 100_000;

/// A session that has ended.
#[derive(Debug)]
pub(super) struct Closed {
    /// The index of its downstream connection.
    pub(super) client: usize,
    pub(super) reason: CloseReason,
    /// The time since the simulation started.
    pub(super) after: Duration,
}

pub(super) struct Driver {
    pub(super) io: SimIo,
    pub(super) settings: ListenerSettings,
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) journal: Journal,
    shard: Arc<Shard>,
    pub(super) closed: Vec<Closed>,
    /// The largest number of bytes held after any turn.
    pub(super) most_backlog: usize,
    sessions: Table<Session<SimIo>>,
    clients: Vec<(Key, usize)>,
    deadlines: Deadlines<Deadline>,
    queues: Vec<(Deadline, QueueId)>,
    again: Vec<Key>,
    start: Instant,
    now: Instant,
    scratch: Vec<u8>,
}

/// Rules that admit every sender and use a backend on this machine.
pub(super) fn open_policy() -> Policy {
    let mut policy = Policy::to(Backends::both(
        BackendAddr::new(SocketAddr::from(([127, 0, 0, 1], 80))),
        BackendAddr::new("[::1]:80".parse().expect("an address")),
    ));
    policy.senders.allow = PrefixSet::any();
    policy
}

pub(super) fn budgets(pipes: usize, backlog_bytes: usize, header_bytes: usize) -> Budgets {
    Budgets {
        flows: Budget::new(0),
        sessions: Budget::new(16),
        pipes: Budget::new(pipes),
        backlog_bytes: Budget::new(backlog_bytes),
        header_bytes: Budget::new(header_bytes),
        clients: Arc::default(),
    }
}

impl Driver {
    pub(super) fn new(
        seed: u64,
        settings: ListenerSettings,
        policy: Policy,
        budgets: Budgets,
        hardships: Hardships,
    ) -> Self {
        let world = Rc::new(RefCell::new(World::new(seed)));
        let mut deadlines = Deadlines::default();
        let mut queues = vec![
            (Deadline::ConflictRetry, deadlines.queue(Deadline::ConflictRetry, CONFLICT_RETRY)),
            (Deadline::RouteRetry, deadlines.queue(Deadline::RouteRetry, ROUTE_RETRY)),
            (Deadline::ResetCheck, deadlines.queue(Deadline::ResetCheck, RESET_CHECK)),
            (Deadline::Header, deadlines.queue(Deadline::Header, settings.header_times.timeout)),
            (Deadline::HeaderWait, deadlines.queue(Deadline::HeaderWait, settings.header_times.wait)),
            (
                Deadline::HeaderRest,
                deadlines
                    .queue(Deadline::HeaderRest, settings.header_times.timeout - settings.header_times.wait),
            ),
            (Deadline::Connect, deadlines.queue(Deadline::Connect, settings.connect_timeout)),
        ];
        queues.extend((0..CHECKS).map(|number| {
            (Deadline::Leaving(number), deadlines.queue(Deadline::Leaving(number), check(number)))
        }));
        for (moves, after) in [(false, LEFT_CHECK), (true, MOVING_CHECK)] {
            queues.push((Deadline::Left { moves }, deadlines.queue(Deadline::Left { moves }, after)));
        }
        queues.extend(
            settings.idle_timeout.map(|idle| (Deadline::Idle, deadlines.queue(Deadline::Idle, idle))),
        );
        let (now, journal) = (Instant::now(), Journal::default());
        Self {
            io: SimIo::new(world, hardships, budgets.pipes.clone()),
            settings,
            policy,
            budgets,
            shard: journal.counters.shard(ListenerId::new(0)),
            journal,
            closed: Vec::new(),
            most_backlog: 0,
            sessions: Table::new(),
            clients: Vec::new(),
            deadlines,
            queues,
            again: Vec::new(),
            start: now,
            now,
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// Accepts a connection. The last byte of its client's address is the session's number.
    pub(super) fn begin(&mut self, number: u8, client: Script, rooms: Rooms, backend: Backend) -> usize {
        let id = self.io.world().accept(number, client, rooms, backend);
        let sender = SenderAddr::new(SocketAddr::from(([127, 0, 0, number], 40_000)));
        let permit = self.budgets.sessions.take(1).expect("room for a session");
        let session = Session::new(self.io.socket(id), sender, self.now, permit);
        let key = self.sessions.insert(session);
        self.clients.push((key, id));
        self.give_turn(key, |session, cx, scratch| session.begin(cx, scratch));
        id
    }

    /// Runs everything that can happen. Time passes only from deadline to deadline.
    pub(super) fn run(&mut self) {
        for _ in 0..MOST_ROUNDS {
            self.settle();
            match self.deadlines.next(&mut self.sessions) {
                Some(next) => self.expire(next),
                None => return,
            }
        }
        panic!("there is always one more deadline");
    }

    /// Runs everything that can happen until this time since the start.
    pub(super) fn run_until(&mut self, after: Duration) {
        let until = self.start + after;
        for _ in 0..MOST_ROUNDS {
            self.settle();
            match self.deadlines.next(&mut self.sessions) {
                Some(next) if next <= until => self.expire(next),
                _ => return self.now = until,
            }
        }
        panic!("there is always one more deadline");
    }

    /// The same, with an action every `tick`, until the last session has ended.
    pub(super) fn run_ticking(&mut self, tick: Duration, mut on_tick: impl FnMut(&mut World)) {
        for _ in 0..MOST_ROUNDS {
            self.settle();
            if self.len() == 0 {
                return;
            }
            on_tick(&mut self.io.world());
            self.settle();
            self.expire(self.now + tick);
        }
        panic!("a session never ends");
    }

    /// A worker that takes this long for each round.
    pub(super) fn run_slowly(&mut self, round: Duration) {
        for _ in 0..MOST_ROUNDS {
            if self.len() == 0 {
                return self.settle();
            }
            while self.io.world().step() {}
            if self.work_now_and_then() {
                self.expire(self.now + round);
            }
        }
        panic!("a session never ends");
    }

    /// Runs everything that needs no time.
    fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            let moved = self.io.world().step();
            let worked = self.work_now_and_then();
            if !(moved || worked || self.is_busy()) {
                return;
            }
        }
        panic!("the simulation does not come to rest");
    }

    fn is_busy(&self) -> bool {
        !self.again.is_empty() || self.io.world().has_edges()
    }

    /// One round of the event loop, unless the worker is slow.
    fn work_now_and_then(&mut self) -> bool {
        let (slow, most) = {
            let dice = &mut self.io.world().dice;
            (dice.percent(60), dice.up_to(4))
        };
        if slow {
            // A look at a session that leaves may come before the worker has read the events.
            if self.io.offload.is_ok() && self.io.world().dice.percent(5) {
                self.expire(self.now + check(0));
                return true;
            }
            return false;
        }
        let events = self.io.world().take_events(most);
        let worked = !events.is_empty() || !self.again.is_empty();
        for (token, flags) in events {
            self.dispatch(token, flags);
        }
        for key in std::mem::take(&mut self.again) {
            self.give_turn(key, Session::turn);
        }
        worked
    }

    fn dispatch(&mut self, token: Token, flags: EventFlags) {
        let side = if token & 1 == 0 { Side::Downstream } else { Side::Upstream };
        self.give_turn(Key::from_bits(token >> 1), |session, cx, scratch| {
            session.on_event(cx, scratch, side, readiness(flags))
        });
    }

    fn expire(&mut self, now: Instant) {
        self.now = now;
        while let Some((key, deadline)) = self.deadlines.expire(&mut self.sessions, now) {
            self.give_turn(key, |session, cx, scratch| session.on_deadline(cx, scratch, deadline));
        }
    }

    fn give_turn<F>(&mut self, key: Key, turn: F)
    where
        F: FnOnce(&mut Session<SimIo>, &mut Context<'_, SimIo>, &mut [u8]) -> Verdict,
    {
        let before = self.io.world().calls;
        let Some(session) = self.sessions.get_mut(key) else { return };
        let mut cx = Context {
            io: &mut self.io,
            tokens: Tokens { downstream: key.to_bits() << 1, upstream: key.to_bits() << 1 | 1 },
            settings: &self.settings,
            policy: &self.policy,
            budgets: &self.budgets,
            journal: &self.journal,
            shard: &self.shard,
            now: self.now,
        };
        let verdict = turn(session, &mut cx, &mut self.scratch);
        let after = cx.io.world().calls;
        self.most_backlog = self.most_backlog.max(self.budgets.backlog_bytes.used());
        match verdict {
            Verdict::Wait(deadline) => self.set_deadline(key, deadline),
            Verdict::Again => {
                assert!(after > before, "another turn is asked for without progress");
                assert!(!self.again.contains(&key), "two further turns are asked for at once");
                self.again.push(key);
            }
            Verdict::Offloaded => {
                self.deadlines.cancel(&mut self.sessions, key);
                self.sessions.remove(key);
            }
            Verdict::Close(reason) => {
                session.close(&mut cx, &reason);
                self.deadlines.cancel(&mut self.sessions, key);
                self.sessions.remove(key);
                let (_, client) = *self.clients.iter().find(|(known, _)| *known == key).expect("its client");
                self.closed.push(Closed { client, reason, after: self.now - self.start });
            }
        }
    }

    fn set_deadline(&mut self, key: Key, deadline: Deadline) {
        if deadline == Deadline::Unchanged {
            return;
        }
        match self.queues.iter().find(|(known, _)| *known == deadline) {
            Some((_, queue)) => self.deadlines.start(&mut self.sessions, key, *queue, self.now),
            None => self.deadlines.cancel(&mut self.sessions, key),
        }
    }

    /// The operator's or another process's orders for all sessions that have left user space.
    pub(super) fn order_left(&mut self, verdict: impl Fn() -> Verdict) {
        for key in self.sessions.keys() {
            if self.sessions.get_mut(key).is_some_and(|session| session.has_left()) {
                self.give_turn(key, |_, _, _| verdict());
            }
        }
    }

    /// How often `counter` was counted.
    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.journal.counters.total(counter)
    }

    /// Why sessions have stayed in user space that were to leave it.
    pub(super) fn stays(&self) -> BTreeMap<&'static str, u64> {
        self.journal.counters.stays_of(ListenerId::new(0))
    }

    /// The number of live sessions.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Why the session of this client's connection ended.
    pub(super) fn reason(&self, client: usize) -> Option<&CloseReason> {
        self.closed.iter().find(|closed| closed.client == client).map(|closed| &closed.reason)
    }

    /// Everything that was taken has been given back.
    pub(super) fn check_that_nothing_is_left(mut self) {
        assert_eq!(self.len(), 0, "sessions live on");
        for place in &self.io.world().places {
            assert!(place.connection.is_closed(), "a socket is still open");
        }
        let Budgets { sessions, pipes, backlog_bytes, header_bytes, .. } = self.budgets.clone();
        self.io.hardships = Hardships::NONE;
        drop(self);
        for (budget, name) in
            [(sessions, "sessions"), (pipes, "pipes"), (backlog_bytes, "backlog"), (header_bytes, "header")]
        {
            assert_eq!(budget.used(), 0, "{name}");
        }
    }
}
