//! A worker: one thread, one epoll, its own sessions.
//!
//! ```text
//! epoll ─┬─ a listening socket ───────▶ accept, perhaps pass to a less busy worker
//!        ├─ a downstream socket (UDP) ▶ Flows::on_downstream; a flow's upstream socket ─▶ Flows::on_reply
//!        ├─ the mailbox ───────────────▶ orders: open, close, set rules, adopt a connection, drain, stop
//!        └─ a session's socket ────────▶ Session::on_event ─▶ Verdict ─▶ wait, another turn, or close
//! then: further turns, then passed deadlines
//! ```
//! A panic within a session's turn ends only that session, by a reset.

mod event;
mod left;
mod listening;
mod operator;
mod order;
mod probe;
mod team;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use tracing::error;
use truepeer_policy::{HeaderTimes, SenderAddr};
use truepeer_session::budget::Budgets;
use truepeer_session::connect_as::{CONFLICT_RETRY, ROUTE_RETRY};
use truepeer_session::counters::{Counter, Shard};
use truepeer_session::deadlines::{Deadlines, Link, Linked, QueueId};
use truepeer_session::mailbox::Mailbox;
use truepeer_session::table::{Key, Table};
use truepeer_session::{CloseReason, Journal, ListenerId, ListenerRules};
#[cfg(test)]
use truepeer_splice::Reason;
use truepeer_splice::Watched;
use truepeer_sys::{CallError, Named};

use self::event::EventSource;
use self::listening::{Accepted, ListeningSocket, ListeningSockets, accept};
pub(crate) use self::order::{AcceptedConnection, FlowsOrder, Order};
pub(crate) use self::team::Team;
use crate::kernel::{Kernel, KernelSocket, readiness};
use crate::leaving;
use crate::listener::{Listener, Waits};
use crate::listener_sockets::ListenerSockets;
use crate::splicing::Offloads;
use crate::tcp::context::{Context, Tokens};
use crate::tcp::left::{LEFT_CHECK, MOVING_CHECK};
use crate::tcp::relaying::{RESET_CHECK, Side};
use crate::tcp::session::{Deadline, Session, Verdict};
use crate::udp::{self, UdpFlows};

/// The size of the read buffer of a worker: room for the longest header, and for one copy.
const SCRATCH_BYTES: usize = 128 << 10;
/// How many events one epoll_wait takes.
const EVENTS: usize = 256;
/// How many connections are accepted before sessions get a turn.
const BATCH: usize = 256;
/// How many connections are still accepted from a listening socket that closes: the kernel has completed them
/// and would reset them.
const LAST_CONNECTIONS: usize = 4096;

/// The parts of a worker. Its thread creates the worker from them.
pub(crate) struct Seat {
    pub(crate) number: usize,
    pub(crate) team: Arc<Team>,
    pub(crate) mailbox: Mailbox<Order>,
    pub(crate) budgets: Budgets,
    pub(crate) journal: Arc<Journal>,
    pub(crate) offloads: Offloads,
    epoll: OwnedFd,
}

impl Seat {
    /// Everything that a worker needs from the system.
    pub(crate) fn new(
        number: usize,
        team: Arc<Team>,
        mailbox: Mailbox<Order>,
        budgets: Budgets,
        journal: Arc<Journal>,
        offloads: Offloads,
    ) -> Result<Self, CallError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).named("epoll_create1")?;
        let bell = EventData::new_u64(EventSource::Bell.to_bits());
        epoll::add(&epoll, mailbox.bell(), bell, EventFlags::IN).named("epoll_ctl")?;
        Ok(Self { number, team, mailbox, budgets, journal, offloads, epoll })
    }
}

/// A session, and the listener whose rules it started with.
struct Entry {
    session: Session<Kernel>,
    listener: Rc<Listener>,
}

impl Linked for Entry {
    fn link(&mut self) -> &mut Link {
        self.session.link()
    }
}

/// One thread of the relay.
pub(crate) struct Worker {
    number: usize,
    team: Arc<Team>,
    mailbox: Mailbox<Order>,
    budgets: Budgets,
    journal: Arc<Journal>,
    kernel: Kernel,
    /// The open listeners, with the rules for new sessions.
    listeners: Vec<Rc<Listener>>,
    listening: ListeningSockets,
    sessions: Table<Entry>,
    flows: UdpFlows,
    deadlines: Deadlines<Deadline>,
    conflict_retry: QueueId,
    route_retry: QueueId,
    reset_check: QueueId,
    leaving: [QueueId; leaving::CHECKS as usize],
    left: QueueId,
    moving: QueueId,
    /// Sessions that have asked for another turn.
    again: Vec<Key>,
    scratch: Box<[u8]>,
    /// Sessions of another process whose listener is not open yet.
    unclaimed: Vec<Watched>,
    /// Backends are probed until then.
    probes_until: Option<Instant>,
    /// Another process has the sessions that have left user space.
    lets_go: bool,
    is_draining: bool,
    is_stopping: bool,
}

impl Worker {
    pub(crate) fn new(seat: Seat) -> Self {
        let Seat { number, team, mailbox, budgets, journal, offloads, epoll } = seat;
        let mut flows = UdpFlows::default();
        flows.set_offload(offloads.flows);
        let mut deadlines = Deadlines::default();
        let conflict_retry = deadlines.queue(Deadline::ConflictRetry, CONFLICT_RETRY);
        let route_retry = deadlines.queue(Deadline::RouteRetry, ROUTE_RETRY);
        let reset_check = deadlines.queue(Deadline::ResetCheck, RESET_CHECK);
        let leaving = std::array::from_fn(|number| {
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            deadlines.queue(Deadline::Leaving(number), leaving::check(number))
        });
        let left = deadlines.queue(Deadline::Left { moves: false }, LEFT_CHECK);
        let moving = deadlines.queue(Deadline::Left { moves: true }, MOVING_CHECK);
        Self {
            number,
            team,
            mailbox,
            journal,
            kernel: Kernel::new(epoll, budgets.pipes.clone(), offloads.sessions),
            budgets,
            listeners: Vec::new(),
            listening: ListeningSockets::default(),
            sessions: Table::new(),
            flows,
            deadlines,
            conflict_retry,
            route_retry,
            reset_check,
            leaving,
            left,
            moving,
            again: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            unclaimed: Vec::new(),
            probes_until: None,
            lets_go: false,
            is_draining: false,
            is_stopping: false,
        }
    }

    /// Runs until it is told to stop, or until its last session and flow have ended after it was told to
    /// drain.
    ///
    /// # Errors
    /// epoll_wait(2) failed.
    pub(crate) fn run(mut self) -> Result<(), CallError> {
        truepeer_sys::host::prepare();
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_stopping && !self.is_drained() {
            let timeout = self.timeout(Instant::now());
            let waited = epoll::wait(
                self.kernel.epoll(),
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            let now = Instant::now();
            match waited {
                Ok(_) => {
                    for event in events.drain(..) {
                        self.dispatch(event, now);
                    }
                }
                Err(Errno::INTR) => {}
                // The error will persist: continuing would spin.
                Err(errno) => {
                    self.close_all();
                    return Err(CallError { call: "epoll_wait", errno });
                }
            }
            self.give_further_turns(now);
            self.expire(now);
        }
        self.close_all();
        Ok(())
    }

    /// Whether nothing is left to do after [`Order::Drain`].
    fn is_drained(&mut self) -> bool {
        if !self.is_draining || !self.sessions.is_empty() || !self.flows.is_empty() {
            return false;
        }
        // Another worker may have passed a connection before it saw that this one accepts none.
        self.read_mail(Instant::now());
        self.sessions.is_empty()
    }

    fn close_all(&mut self) {
        let now = Instant::now();
        for key in self.sessions.keys() {
            self.give_turn(key, now, |_, _, _| Verdict::Close(CloseReason::Stopping));
        }
        self.with_flows(now, UdpFlows::stop);
    }

    fn timeout(&mut self, now: Instant) -> Option<Timespec> {
        if !self.again.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let of_sessions = self.deadlines.next(&mut self.sessions);
        let next =
            [of_sessions, self.flows.next_deadline(), self.listening.paused_until(), self.probes_until]
                .into_iter()
                .flatten()
                .min()?;
        let left = next.saturating_duration_since(now);
        // Round up: waking just before the deadline would only wait again.
        Timespec::try_from(left + std::time::Duration::from_micros(500)).ok()
    }

    fn dispatch(&mut self, event: epoll::Event, now: Instant) {
        match EventSource::from_bits(event.data.u64()) {
            EventSource::Bell => self.read_mail(now),
            EventSource::Listening(place) => self.accept_at(place, now),
            EventSource::UdpDownstream(place) => {
                self.with_flows(now, |flows, cx| flows.on_downstream(cx, place))
            }
            EventSource::Flow(key) => self.with_flows(now, |flows, cx| flows.on_reply(cx, key)),
            EventSource::Session(key, side) => {
                let ready = readiness(event.flags);
                self.give_turn(key, now, |session, cx, scratch| session.on_event(cx, scratch, side, ready));
            }
        }
    }

    fn with_flows(&mut self, now: Instant, work: impl FnOnce(&mut UdpFlows, &udp::FlowContext<'_>)) {
        let cx = udp::FlowContext {
            epoll: self.kernel.epoll(),
            budgets: &self.budgets,
            journal: &self.journal,
            now,
            downstream_token: |place| EventSource::UdpDownstream(place).to_bits(),
            flow_token: |key| EventSource::Flow(key).to_bits(),
        };
        let flows = &mut self.flows;
        // AssertUnwindSafe: flows keep their state between turns in their table, and no call leaves that
        // half-changed.
        if catch_unwind(AssertUnwindSafe(|| work(flows, &cx))).is_err() {
            error!("a defect in truepeer has lost datagrams; please report the panic above");
        }
    }

    fn read_mail(&mut self, now: Instant) {
        for order in self.mailbox.empty() {
            match order {
                Order::Open { id, rules, sockets, done } => {
                    let opened = self.open(id, rules, sockets, now);
                    self.claim_left(now);
                    if opened.is_err() {
                        self.close(id, now);
                    }
                    let _ = done.send(opened); // the requester may have given up
                }
                Order::Close { id, done } => {
                    self.close(id, now);
                    let _ = done.send(());
                }
                Order::SetRules { id, rules, done } => {
                    self.end_denied(id, &rules.policy, now);
                    self.set_rules(id, rules);
                    let _ = done.send(());
                }
                Order::Adopt { id, rules, connection } => {
                    let listener = self.known(id).unwrap_or_else(|| self.listener(id, rules));
                    self.begin(&listener, connection, now);
                }
                Order::Flows(order) => self.with_flows(now, |flows, cx| move_flows(flows, cx, order)),
                Order::Sessions(order) => self.on_session_order(order, now),
                Order::Left(watched) => self.adopt_left(watched, now),
                Order::ReleaseSessions { done } => {
                    self.lets_go = true;
                    self.release_sessions(|_| true, now);
                    let _ = done.send(());
                }
                Order::ProbeBackends => self.probe_backends(now),
                Order::Drain => self.drain(now),
                Order::Stop => self.is_stopping = true,
                #[cfg(test)]
                Order::Hold(until) => _ = until.recv(),
                #[cfg(test)]
                Order::Break => {
                    let no_epoll = std::fs::File::open("/dev/null").expect("it is there").into();
                    self.kernel = Kernel::new(no_epoll, self.budgets.pipes.clone(), Err(Reason::NotLoaded));
                }
            }
        }
    }

    fn open(
        &mut self,
        id: ListenerId,
        rules: Arc<ListenerRules>,
        sockets: ListenerSockets,
        now: Instant,
    ) -> Result<(), CallError> {
        let listener = self.listener(id, rules);
        self.listeners.push(Rc::clone(&listener));
        for socket in sockets.tcp {
            self.listening
                .open(self.kernel.epoll(), ListeningSocket { socket, listener: Rc::clone(&listener) })?;
        }
        let mut opened = Ok(());
        self.with_flows(now, |flows, cx| {
            opened = sockets
                .udp
                .into_iter()
                .try_for_each(|downstream| flows.open_downstream(cx, downstream, &listener));
        });
        opened
    }

    /// Accepts the connections that the kernel has already completed, then closes the listener's sockets.
    fn close(&mut self, id: ListenerId, now: Instant) {
        for listening in self.listening.close(self.kernel.epoll(), id) {
            self.accept_rest(&listening, now);
        }
        self.with_flows(now, |flows, cx| flows.close_downstreams(cx, id));
        self.listeners.retain(|listener| listener.id != id);
    }

    fn set_rules(&mut self, id: ListenerId, rules: Arc<ListenerRules>) {
        let listener = self.listener(id, rules);
        self.listening.set_listener(&listener);
        self.flows.set_listener(&listener);
        if let Some(known) = self.listeners.iter_mut().find(|known| known.id == id) {
            *known = listener;
        }
    }

    fn drain(&mut self, now: Instant) {
        self.is_draining = true;
        self.team.leave(self.number);
        self.flows.drain();
        self.release_sessions(|listener| listener.rules.settings.leaves_spliced, now);
        let ids: Vec<_> = self.listeners.iter().map(|listener| listener.id).collect();
        for id in ids {
            for listening in self.listening.close(self.kernel.epoll(), id) {
                self.accept_rest(&listening, now);
            }
        }
    }

    /// The listener with the rules for new sessions, if it is open.
    fn known(&self, id: ListenerId) -> Option<Rc<Listener>> {
        self.listeners.iter().find(|listener| listener.id == id).map(Rc::clone)
    }

    /// A listener with `rules`. Its sessions are counted with those that it already has.
    fn listener(&mut self, id: ListenerId, rules: Arc<ListenerRules>) -> Rc<Listener> {
        let shard = self
            .known(id)
            .map_or_else(|| self.journal.counters.shard(id), |listener| Arc::clone(&listener.shard));
        let settings = &rules.settings;
        let HeaderTimes { timeout, wait } = settings.header_times;
        let waits = Waits {
            header: self.deadlines.queue(Deadline::Header, timeout),
            header_wait: self.deadlines.queue(Deadline::HeaderWait, wait),
            header_rest: self.deadlines.queue(Deadline::HeaderRest, timeout.saturating_sub(wait)),
            connect: self.deadlines.queue(Deadline::Connect, settings.connect_timeout),
            idle: settings.idle_timeout.map(|idle| self.deadlines.queue(Deadline::Idle, idle)),
        };
        Rc::new(Listener { id, rules, shard, waits })
    }

    /// A listening socket has connections waiting.
    fn accept_at(&mut self, place: usize, now: Instant) {
        let Some(listening) = self.listening.at(place) else { return };
        if let Err(lacking) = self.accept_from(&listening, BATCH, now) {
            self.listening.pause(self.kernel.epoll(), &self.journal, lacking, now);
        }
    }

    /// Accepts the connections that wait at a closing listening socket.
    fn accept_rest(&mut self, listening: &ListeningSocket, now: Instant) {
        // What can't be accepted is reset when the listening socket is dropped.
        let _ = self.accept_from(listening, LAST_CONNECTIONS, now);
    }

    /// Accepts at most so many connections.
    ///
    /// # Errors
    /// The resource that the system lacks; `None`: sessions.
    fn accept_from(
        &mut self,
        listening: &ListeningSocket,
        most: usize,
        now: Instant,
    ) -> Result<(), Option<Errno>> {
        for _ in 0..most {
            let permit = self.budgets.sessions.take(1).ok_or(None)?;
            match accept(&listening.socket) {
                Accepted::Connection(socket, sender) => {
                    listening.listener.shard.count(Counter::Accepted);
                    self.place(&listening.listener, AcceptedConnection { socket, sender, permit }, now);
                }
                Accepted::Lost => {}
                Accepted::Nobody => break,
                Accepted::OutOf(errno) => return Err(Some(errno)),
            }
        }
        Ok(())
    }

    /// Begins a session here, or with the worker that has least to do.
    fn place(&mut self, listener: &Rc<Listener>, connection: AcceptedConnection, now: Instant) {
        let chosen = self.team.place(self.number);
        if chosen == self.number {
            return self.begin(listener, connection, now);
        }
        let (id, rules) = (listener.id, Arc::clone(&listener.rules));
        if let Err(Order::Adopt { connection, .. }) =
            self.team.postboxes[chosen].post(Order::Adopt { id, rules, connection })
        {
            self.team.move_back(chosen, self.number);
            self.begin(listener, connection, now);
        }
    }

    /// A session begins here, where it has been counted already.
    fn begin(&mut self, listener: &Rc<Listener>, connection: AcceptedConnection, now: Instant) {
        let AcceptedConnection { socket, sender, permit } = connection;
        let sender = SenderAddr::new(sender);
        if let Err(refusal) = listener.rules.policy.admit(sender) {
            self.team.on_end(self.number);
            let arrival = (sender, listener.rules.settings.address);
            return self.journal.on_refused_sender(&listener.shard, arrival, &refusal, now);
        }
        listener.shard.on_open();
        let session = Session::new(KernelSocket::from(socket), sender, now, permit);
        let key = self.sessions.insert(Entry { session, listener: Rc::clone(listener) });
        self.give_turn(key, now, |session, cx, scratch| session.begin(cx, scratch));
    }

    /// Gives the session of `key` a turn, if it still exists, and carries out its verdict.
    fn give_turn<F>(&mut self, key: Key, now: Instant, turn: F)
    where
        F: FnOnce(&mut Session<Kernel>, &mut Context<'_, Kernel>, &mut [u8]) -> Verdict,
    {
        let Some(Entry { session, listener }) = self.sessions.get_mut(key) else { return };
        let mut cx = Context {
            io: &mut self.kernel,
            tokens: Tokens {
                downstream: EventSource::Session(key, Side::Downstream).to_bits(),
                upstream: EventSource::Session(key, Side::Upstream).to_bits(),
            },
            settings: &listener.rules.settings,
            policy: &listener.rules.policy,
            budgets: &self.budgets,
            journal: &self.journal,
            shard: &listener.shard,
            now,
        };
        let scratch = &mut *self.scratch;
        // AssertUnwindSafe: a panic can leave only the session's own state half-changed, and the session is
        // dropped. The panic resets the sockets that it drops (`KernelSocket`).
        let verdict = catch_unwind(AssertUnwindSafe(|| turn(session, &mut cx, scratch)))
            .unwrap_or(Verdict::Close(CloseReason::Panicked));
        let lets_go = self.lets_go || (self.is_draining && listener.rules.settings.leaves_spliced);
        match verdict {
            Verdict::Wait(deadline) if !matches!(deadline, Deadline::Left { .. }) || !lets_go => {
                let waits = &listener.waits;
                let queue = match deadline {
                    Deadline::Unchanged => return,
                    Deadline::Header => Some(waits.header),
                    Deadline::HeaderWait => Some(waits.header_wait),
                    Deadline::HeaderRest => Some(waits.header_rest),
                    Deadline::Connect => Some(waits.connect),
                    Deadline::ConflictRetry => Some(self.conflict_retry),
                    Deadline::RouteRetry => Some(self.route_retry),
                    Deadline::ResetCheck => Some(self.reset_check),
                    Deadline::Leaving(number) => Some(self.leaving[usize::from(number)]),
                    Deadline::Left { moves: false } => Some(self.left),
                    Deadline::Left { moves: true } => Some(self.moving),
                    Deadline::Idle => waits.idle,
                };
                match queue {
                    Some(queue) => self.deadlines.start(&mut self.sessions, key, queue, now),
                    None => self.deadlines.cancel(&mut self.sessions, key),
                }
            }
            Verdict::Again => self.again.push(key),
            Verdict::Wait(_) | Verdict::Offloaded => {
                listener.shard.on_end();
                self.team.on_end(self.number);
                self.deadlines.cancel(&mut self.sessions, key);
                self.sessions.remove(key);
            }
            Verdict::Close(reason) => {
                // AssertUnwindSafe: the session is dropped after this, whatever state the panic left.
                let _ = catch_unwind(AssertUnwindSafe(|| session.close(&mut cx, &reason)));
                let shard: &Shard = &listener.shard;
                shard.on_end();
                self.team.on_end(self.number);
                self.deadlines.cancel(&mut self.sessions, key);
                self.sessions.remove(key);
            }
        }
    }

    fn give_further_turns(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.again) {
            self.give_turn(key, now, Session::turn);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((key, deadline)) = self.deadlines.expire(&mut self.sessions, now) {
            self.give_turn(key, now, |session, cx, scratch| session.on_deadline(cx, scratch, deadline));
        }
        self.with_flows(now, UdpFlows::expire);
        self.listening.resume(self.kernel.epoll(), &self.journal, now);
        self.end_probes_if_due(now);
    }
}

/// The requester may have given up.
fn move_flows(flows: &mut UdpFlows, cx: &udp::FlowContext<'_>, order: FlowsOrder) {
    match order {
        FlowsOrder::Pause { done } => {
            flows.pause(cx);
            let _ = done.send(Ok(()));
        }
        FlowsOrder::Resume { done } => _ = done.send(flows.resume(cx)),
        FlowsOrder::Describe { id, done } => _ = done.send(flows.describe(cx, id)),
        FlowsOrder::Release { id, done } => {
            flows.release(cx, id);
            let _ = done.send(Ok(()));
        }
        FlowsOrder::Adopt { flows: moving, done } => _ = done.send(flows.adopt_all(cx, moving)),
        FlowsOrder::ReadNoMore => flows.read_no_more(cx),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle session holds its entry and the box of its route, and no buffer.
    #[test]
    fn an_idle_session_takes_at_most_half_a_kibibyte() {
        let bytes = size_of::<Option<Entry>>() + size_of::<truepeer_policy::Route>();
        println!("{bytes} bytes for an idle session");
        assert!(bytes <= 512, "{bytes}");
    }
}
