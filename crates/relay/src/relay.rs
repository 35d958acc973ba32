//! The relay's public type: an [`Engine`] for TCP sessions and UDP flows.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use truepeer_session::budget::Budgets;
use truepeer_session::listeners::Listeners;
use truepeer_session::mailbox::{Postbox, mailbox};
use truepeer_session::registry::SessionTable;
use truepeer_session::workers::Workers;
use truepeer_session::{
    Engine, EngineError, Health, Journal, ListenerId, ListenerRules, SessionList, Snapshot,
};
use truepeer_splice::Watched;
use truepeer_sys::{CallError, Named as _};

use crate::listener_sockets;
use crate::splicing::{Offloads, Splicing};
use crate::udp::moving::MovingFlow;
use crate::udp::tuples::Tuples;
use crate::worker::{FlowsOrder, Order, Seat, Team, Worker};

/// A running relay. Dropping it stops it.
#[derive(Debug)]
pub struct Relay {
    workers: Workers<Postbox<Order>>,
    journal: Arc<Journal>,
    /// With their sockets; none after a drain: the workers close them, and new connections must be refused
    /// then.
    listeners: Listeners<Vec<Arc<OwnedFd>>>,
    /// Shared by all flows.
    tuples: Tuples,
    /// Dropped before the workers end.
    splicing: Option<Splicing>,
}

impl Relay {
    /// Starts `workers` threads that write to `journal`. Listeners are [opened](Engine::open) later. A
    /// worker's thread calls `on_end` when a worker has ended unexpectedly, or as the last one after a
    /// drain.
    ///
    /// # Errors
    /// [`EngineError::Worker`] or [`EngineError::Thread`].
    pub fn start(
        workers: usize,
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        Self::start_offloading(workers, budgets, journal, Offloads::default(), on_end)
    }

    /// Likewise; sessions and flows whose settings say so leave user space.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_offloading(
        workers: usize,
        budgets: &Budgets,
        journal: &Arc<Journal>,
        offloads: Offloads,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let boxes = (0..workers.max(1)).map(|_| mailbox()).collect::<Result<Vec<_>, _>>()?;
        let team = Arc::new(Team::new(boxes.iter().map(|(postbox, _)| postbox.clone()).collect()));
        let mut relay = Self {
            workers: Workers::new(on_end),
            journal: Arc::clone(journal),
            listeners: Listeners::default(),
            tuples: Tuples::default(),
            splicing: offloads.sessions.clone().ok(),
        };
        for (number, (postbox, mailbox)) in boxes.into_iter().enumerate() {
            let (team, journal) = (Arc::clone(&team), Arc::clone(journal));
            let seat = Seat::new(number, team, mailbox, budgets.clone(), journal, offloads.clone())?;
            let thread = relay.workers.spawn(format!("worker-{number}"), move || Worker::new(seat).run())?;
            relay.workers.add(postbox, thread);
        }
        if let Ok(splicing) = &offloads.sessions {
            let team = Arc::clone(&team);
            let hand_out = move |adopted: Vec<Watched>| {
                for (watched, postbox) in adopted.into_iter().zip(team.postboxes.iter().cycle()) {
                    // Err: the worker has ended. The session goes on unwatched.
                    let _ = postbox.post(Order::Left(watched));
                }
            };
            splicing.sweep(hand_out).map_err(EngineError::Thread)?;
        }
        Ok(relay)
    }

    /// Lets another process, which serves by now, have the sessions that have left user space.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn release_spliced(&mut self) -> Result<(), EngineError> {
        let Some(splicing) = self.splicing.take() else { return Ok(()) };
        self.workers.order_all(|_, done| Order::ReleaseSessions { done })?;
        splicing.release();
        Ok(())
    }

    /// Has each session find out whether its backend still has the connection. To be called after rules or
    /// routes were missing: meanwhile the backends' replies left for the clients' own hosts, which reset
    /// the connections. A silent backend is probed for three seconds.
    pub fn probe_backends(&self) {
        for postbox in self.workers.queues() {
            // A worker that has ended has no sessions.
            let _ = postbox.post(Order::ProbeBackends);
        }
    }

    /// Reads no datagrams until [`Self::resume_flows`]: flows are about to move from or to another process.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn pause_flows(&self) -> Result<(), EngineError> {
        self.order_flows(|done| FlowsOrder::Pause { done })
    }

    /// Reads datagrams again, first those that came meanwhile.
    ///
    /// # Errors
    /// A worker has ended, or can't watch a socket.
    pub fn resume_flows(&self) -> Result<(), EngineError> {
        self.order_flows(|done| FlowsOrder::Resume { done })
    }

    /// The flows of a listener, with duplicates of their sockets. [Pause](Self::pause_flows) before.
    ///
    /// # Errors
    /// A worker has ended, or descriptors ran out.
    pub fn describe_flows(&self, id: ListenerId) -> Result<Vec<MovingFlow>, EngineError> {
        let flows = self.workers.order_all(|_, done| Order::Flows(FlowsOrder::Describe { id, done }))?;
        let flows: Result<Vec<_>, CallError> = flows.into_iter().collect();
        Ok(flows?.into_iter().flatten().collect())
    }

    /// Another process serves this UDP listener and its flows now.
    ///
    /// # Errors
    /// The listener doesn't exist, or a worker has ended.
    pub fn release(&mut self, id: ListenerId) -> Result<(), EngineError> {
        self.listeners.remove(id)?;
        self.order_flows(|done| FlowsOrder::Release { id, done })
    }

    /// Adopts the flows of another process. [Pause](Self::pause_flows) before, and open their listeners with
    /// that process's sockets. Returns how many have been adopted: not those whose listener or downstream
    /// socket isn't here.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn adopt_flows(&self, mut flows: Vec<MovingFlow>) -> Result<usize, EngineError> {
        // A queue of deadlines is sorted.
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.state.silent_for));
        let mut by_worker: Vec<Vec<_>> = self.workers.queues().map(|_| Vec::new()).collect();
        for flow in flows {
            let worker = flow.downstream % by_worker.len();
            by_worker[worker].push(flow);
        }
        let adopted = self.workers.order_all(|number, done| {
            Order::Flows(FlowsOrder::Adopt { flows: std::mem::take(&mut by_worker[number]), done })
        })?;
        Ok(adopted.into_iter().sum())
    }

    /// Reads no datagrams of senders any more, while replies still pass: whoever has duplicates of the
    /// listening sockets finds there what comes from now on.
    pub fn read_no_more(&self) {
        for postbox in self.workers.queues() {
            // A worker that has ended reads nothing.
            let _ = postbox.post(Order::Flows(FlowsOrder::ReadNoMore));
        }
    }

    fn order_flows(
        &self,
        order: impl Fn(Sender<Result<(), CallError>>) -> FlowsOrder,
    ) -> Result<(), EngineError> {
        let done = self.workers.order_all(|_, done| Order::Flows(order(done)))?;
        Ok(done.into_iter().collect::<Result<(), CallError>>()?)
    }

    /// Keeps all workers busy until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold_all(&self) -> Vec<Sender<()>> {
        let hold = |postbox: &Postbox<Order>| {
            let (held, until) = std::sync::mpsc::channel();
            postbox.post(Order::Hold(until)).expect("it works still");
            held
        };
        self.workers.queues().map(hold).collect()
    }

    /// Breaks the epoll of all workers.
    #[cfg(test)]
    pub(crate) fn break_all(&self) {
        for postbox in self.workers.queues() {
            postbox.post(Order::Break).expect("it works still");
        }
    }
}

impl Engine for Relay {
    type Rules = ListenerRules;

    fn open(
        &mut self,
        id: ListenerId,
        rules: ListenerRules,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError> {
        self.listeners.check_vacant(id)?;
        let opened =
            listener_sockets::open(id, &rules.settings, self.workers.count(), inherited, &self.tuples)?;
        let (addresses, mut by_worker) = (opened.addresses(), opened.by_worker);
        self.listeners.add(id, rules.settings.clone(), addresses.clone(), opened.sockets);
        let rules = Arc::new(rules);
        let opened = self.workers.order_all(|number, done| {
            let sockets = std::mem::take(&mut by_worker[number]);
            Order::Open { id, rules: Arc::clone(&rules), sockets, done }
        });
        let opened = opened.and_then(|opened| Ok(opened.into_iter().collect::<Result<(), CallError>>()?));
        if let Err(error) = opened {
            // Report the first error.
            let _ = self.close(id);
            return Err(error);
        }
        Ok(addresses)
    }

    fn close(&mut self, id: ListenerId) -> Result<(), EngineError> {
        // Dropped at the end: until the workers have accepted what waits, the sockets must stay open.
        let _sockets = self.listeners.remove(id)?;
        self.workers.order_all(|_, done| Order::Close { id, done }).map(|_| ())
    }

    fn set_rules(&mut self, id: ListenerId, rules: ListenerRules) -> Result<(), EngineError> {
        self.listeners.set_settings(id, &rules.settings)?;
        let rules = Arc::new(rules);
        self.workers.order_all(|_, done| Order::SetRules { id, rules: Arc::clone(&rules), done }).map(|_| ())
    }

    fn sockets(&self, id: ListenerId) -> Result<Vec<OwnedFd>, EngineError> {
        let duplicates = self.listeners.kept(id)?.iter().map(|socket| socket.try_clone());
        Ok(duplicates.collect::<Result<_, _>>().named("fcntl(F_DUPFD_CLOEXEC)")?)
    }

    fn drain(&mut self) {
        self.listeners.all_kept().for_each(Vec::clear);
        for postbox in self.workers.queues() {
            // A worker that has ended needs no order.
            let _ = postbox.post(Order::Drain);
        }
    }

    fn snapshot(&self) -> Snapshot {
        self.listeners.snapshot(&self.journal.counters)
    }

    fn sessions(&self) -> Arc<dyn SessionList> {
        self.workers.sessions(&[SessionTable::Tcp, SessionTable::Udp])
    }

    fn health(&self) -> Health {
        self.workers.health()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A worker that has ended needs no order.
        self.workers.stop(|postbox| _ = postbox.post(Order::Stop));
    }
}
