//! A worker: one thread, one epoll, its own sessions.
//!
//! ```text
//! epoll ─┬─ a door (listening socket) ─▶ accept, perhaps hand over to a worker with less to do
//!        ├─ a gate (UDP socket) ───────▶ Flows::on_gate; a flow's upstream socket ─▶ Flows::on_reply
//!        ├─ the mailbox ───────────────▶ adopt a connection, stop
//!        └─ a session's socket ────────▶ Session::on_event ─▶ Verdict ─▶ wait, another turn, or close
//! then: further turns, then deadlines that have passed
//! ```

mod accepting;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use truepeer_policy::{HeaderTimes, SenderAddr};
use truepeer_session::CloseReason;
use truepeer_session::Journal;
use truepeer_session::budget::{Budgets, Permit};
use truepeer_session::connect_as::CONFLICT_RETRY;
use truepeer_session::counters::Shard;
use truepeer_session::deadlines::{Deadlines, QueueId};
use truepeer_session::mailbox::{Mailbox, Postbox};
use truepeer_session::table::{Key, Table};
use truepeer_sys::{CallError, Named};

use crate::entrances::{Door, Entrances};
use crate::kernel::{Kernel, Pipe, readiness};
use crate::relay::Listening;
use crate::tcp::relaying::{RESET_CHECK, Side};
use crate::tcp::session::{Context, Deadline, Session, Tokens, Verdict};
use crate::udp::{self, Flows};

/// The buffer for reading, per worker: room for the longest header, and for what is copied at once.
const SCRATCH_BYTES: usize = 128 << 10;
/// Events taken from the kernel at once.
const EVENTS: usize = 256;
/// User data of events that are not a session's: no key has such a place.
const BELL: u64 = u64::MAX;
const FIRST_DOOR: u64 = u64::MAX - (1 << 20);
const FIRST_GATE: u64 = FIRST_DOOR - (1 << 20);
/// Set in the user data of a flow's upstream socket; no session lives at so high a place.
const FLOW: u64 = 1 << 63;

/// What a worker can be told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Serve a connection that a busier worker has accepted.
    Adopt { listener: u16, socket: OwnedFd, sender: SocketAddr, permit: Permit },
    /// End.
    Stop,
}

/// All workers, as each sees the others.
#[derive(Debug)]
pub(crate) struct Team {
    pub(crate) postboxes: Vec<Postbox<Order>>,
    /// Sessions of each worker.
    pub(crate) loads: Vec<AtomicUsize>,
}

/// The queues for one listener's deadlines.
#[derive(Debug)]
struct Waits {
    header: QueueId,
    header_wait: QueueId,
    header_rest: QueueId,
    connect: QueueId,
    idle: Option<QueueId>,
}

/// One thread's part of the relay.
pub(crate) struct Worker {
    number: usize,
    team: Arc<Team>,
    listeners: Arc<Vec<Listening>>,
    doors: Vec<Door>,
    /// Set while the doors are closed for want of descriptors or memory.
    paused_until: Option<Instant>,
    mailbox: Mailbox<Order>,
    budgets: Budgets,
    journal: Arc<Journal>,
    shard: Arc<Shard>,
    kernel: Kernel,
    sessions: Table<Session<OwnedFd, Pipe>>,
    flows: Flows,
    deadlines: Deadlines,
    waits: Vec<Waits>,
    conflict_retry: QueueId,
    reset_check: QueueId,
    /// Sessions that want another turn.
    again: Vec<Key>,
    scratch: Box<[u8]>,
    stopping: bool,
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        team: Arc<Team>,
        listeners: Arc<Vec<Listening>>,
        entrances: Entrances,
        mailbox: Mailbox<Order>,
        budgets: Budgets,
        journal: Arc<Journal>,
    ) -> Result<Self, CallError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).named("epoll_create1")?;
        epoll::add(&epoll, mailbox.bell(), EventData::new_u64(BELL), EventFlags::IN).named("epoll_ctl")?;
        let mut deadlines = Deadlines::default();
        let conflict_retry = deadlines.queue(CONFLICT_RETRY);
        let reset_check = deadlines.queue(RESET_CHECK);
        let waits = listeners.iter().map(|listener| waits(&mut deadlines, listener)).collect();
        let flows = Flows::new(&listeners, entrances.gates);
        flows.watch_gates(&epoll, |number| FIRST_GATE + number as u64).named("epoll_ctl")?;
        let mut worker = Self {
            number,
            team,
            listeners,
            doors: entrances.doors,
            paused_until: None,
            mailbox,
            shard: journal.counters.shard(),
            journal,
            kernel: Kernel::new(epoll, budgets.pipes.clone()),
            budgets,
            sessions: Table::new(),
            flows,
            deadlines,
            waits,
            conflict_retry,
            reset_check,
            again: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            stopping: false,
        };
        worker.open_doors()?;
        Ok(worker)
    }

    /// Works until it is told to stop.
    pub(crate) fn run(mut self) {
        truepeer_sys::host::prepare();
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stopping {
            let timeout = self.timeout(Instant::now());
            let waited = epoll::wait(
                self.kernel.epoll(),
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            let now = Instant::now();
            if waited.is_ok() {
                for event in events.drain(..) {
                    self.dispatch(event, now);
                }
            }
            self.give_further_turns(now);
            self.expire(now);
        }
        self.close_all();
    }

    fn close_all(&mut self) {
        let now = Instant::now();
        for key in self.sessions.keys() {
            self.give_turn(key, now, |_, _, _| Verdict::Close(CloseReason::Stopping));
        }
    }

    fn timeout(&mut self, now: Instant) -> Option<Timespec> {
        if !self.again.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let of_sessions = self.deadlines.next(&mut self.sessions);
        let next =
            [of_sessions, self.flows.next_deadline(), self.paused_until].into_iter().flatten().min()?;
        let left = next.saturating_duration_since(now);
        // Rounded up: waking just before a deadline would only mean to wait again.
        Timespec::try_from(left + std::time::Duration::from_micros(500)).ok()
    }

    fn dispatch(&mut self, event: epoll::Event, now: Instant) {
        match event.data.u64() {
            BELL => self.read_mail(now),
            door if door >= FIRST_DOOR => self.accept_at(door - FIRST_DOOR, now),
            gate if gate >= FIRST_GATE => {
                let number = usize::try_from(gate - FIRST_GATE).unwrap_or(usize::MAX);
                self.with_flows(now, |flows, cx| flows.on_gate(cx, number));
            }
            flow if flow & FLOW != 0 => {
                self.with_flows(now, |flows, cx| flows.on_reply(cx, Key::from_bits(flow & !FLOW)));
            }
            token => {
                let side = if token & 1 == 0 { Side::Downstream } else { Side::Upstream };
                let ready = readiness(event.flags);
                self.give_turn(Key::from_bits(token >> 1), now, |session, cx, scratch| {
                    session.on_event(cx, scratch, side, ready)
                });
            }
        }
    }

    fn with_flows(&mut self, now: Instant, work: impl FnOnce(&mut Flows, &udp::Context<'_>)) {
        let cx = udp::Context {
            epoll: self.kernel.epoll(),
            listeners: &self.listeners,
            budgets: &self.budgets,
            journal: &self.journal,
            shard: &self.shard,
            now,
            token: |key| FLOW | key.to_bits(),
        };
        work(&mut self.flows, &cx);
    }

    fn read_mail(&mut self, now: Instant) {
        for order in self.mailbox.empty() {
            match order {
                Order::Adopt { listener, socket, sender, permit } => {
                    self.begin(listener, socket, sender, permit, now);
                }
                Order::Stop => self.stopping = true,
            }
        }
    }

    /// A session begins here.
    fn begin(&mut self, listener: u16, socket: OwnedFd, sender: SocketAddr, permit: Permit, now: Instant) {
        let sender = SenderAddr::new(sender);
        if let Err(refusal) = self.listeners[usize::from(listener)].policy.admit(sender) {
            return self.journal.on_refused_sender(&self.shard, sender, &refusal, now);
        }
        let key = self.sessions.insert(Session::new(socket, sender, listener, now, permit));
        self.publish_load();
        self.give_turn(key, now, |session, cx, scratch| session.begin(cx, scratch));
    }

    fn publish_load(&self) {
        self.team.loads[self.number].store(self.sessions.len(), Ordering::Relaxed);
    }

    /// Lets the session of `key` work, if it still lives, and does what it wants then.
    fn give_turn<F>(&mut self, key: Key, now: Instant, turn: F)
    where
        F: FnOnce(&mut Session<OwnedFd, Pipe>, &mut Context<'_, Kernel>, &mut [u8]) -> Verdict,
    {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let listener = usize::from(session.listener());
        let Listening { settings, policy } = &self.listeners[listener];
        let mut cx = Context {
            io: &mut self.kernel,
            tokens: Tokens { downstream: key.to_bits() << 1, upstream: key.to_bits() << 1 | 1 },
            settings,
            policy,
            budgets: &self.budgets,
            journal: &self.journal,
            shard: &self.shard,
            now,
        };
        match turn(session, &mut cx, &mut self.scratch) {
            Verdict::Wait(deadline) => self.set_deadline(key, listener, deadline, now),
            Verdict::Again => self.again.push(key),
            Verdict::Close(reason) => {
                session.close(&mut cx, &reason);
                self.deadlines.cancel(&mut self.sessions, key);
                self.sessions.remove(key);
                self.publish_load();
            }
        }
    }

    fn set_deadline(&mut self, key: Key, listener: usize, deadline: Deadline, now: Instant) {
        let waits = &self.waits[listener];
        let queue = match deadline {
            Deadline::Unchanged => return,
            Deadline::Header => Some(waits.header),
            Deadline::HeaderWait => Some(waits.header_wait),
            Deadline::HeaderRest => Some(waits.header_rest),
            Deadline::Connect => Some(waits.connect),
            Deadline::ConflictRetry => Some(self.conflict_retry),
            Deadline::ResetCheck => Some(self.reset_check),
            Deadline::Idle => waits.idle,
        };
        match queue {
            Some(queue) => self.deadlines.start(&mut self.sessions, key, queue, now),
            None => self.deadlines.cancel(&mut self.sessions, key),
        }
    }

    fn give_further_turns(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.again) {
            self.give_turn(key, now, Session::turn);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((key, queue)) = self.deadlines.expire(&mut self.sessions, now) {
            let deadline = self.purpose(queue);
            self.give_turn(key, now, |session, cx, scratch| session.on_deadline(cx, scratch, deadline));
        }
        self.with_flows(now, Flows::expire);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            if self.open_doors().is_err() {
                self.pause(None, now);
            }
        }
    }

    fn purpose(&self, queue: QueueId) -> Deadline {
        if queue == self.conflict_retry {
            return Deadline::ConflictRetry;
        }
        if queue == self.reset_check {
            return Deadline::ResetCheck;
        }
        let is = |of: fn(&Waits) -> Option<QueueId>| self.waits.iter().any(|waits| of(waits) == Some(queue));
        match () {
            () if is(|waits| Some(waits.header)) => Deadline::Header,
            () if is(|waits| Some(waits.header_wait)) => Deadline::HeaderWait,
            () if is(|waits| Some(waits.header_rest)) => Deadline::HeaderRest,
            () if is(|waits| Some(waits.connect)) => Deadline::Connect,
            () => Deadline::Idle,
        }
    }
}

fn waits(deadlines: &mut Deadlines, listener: &Listening) -> Waits {
    let settings = &listener.settings;
    let HeaderTimes { timeout, wait } = settings.header_times;
    Waits {
        header: deadlines.queue(timeout),
        header_wait: deadlines.queue(wait),
        header_rest: deadlines.queue(timeout.saturating_sub(wait)),
        connect: deadlines.queue(settings.connect_timeout),
        idle: settings.idle_timeout.map(|idle| deadlines.queue(idle)),
    }
}
