//! The relay's public type: an [`Engine`] for TCP sessions and UDP flows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tracing::error;
use truepeer_session::budget::Budgets;
use truepeer_session::mailbox::{Postbox, mailbox};
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{
    Engine, EngineError, Health, Journal, ListenerId, ListenerRules, ListenerSnapshot, SessionList, Snapshot,
    Supervision,
};
use truepeer_sys::{CallError, Named as _};

use crate::entrances;
use crate::sessions::RelaySessions;
use crate::udp::moving::MovingFlow;
use crate::udp::tuples::Tuples;
use crate::worker::{FlowsOrder, Order, Seat, Team, Worker};

/// A running relay. Dropping it stops it.
#[derive(Debug)]
pub struct Relay {
    workers: Vec<(Postbox<Order>, JoinHandle<()>)>,
    supervision: Arc<Supervision>,
    journal: Arc<Journal>,
    listeners: BTreeMap<ListenerId, OpenListener>,
    /// Shared by all flows.
    tuples: Tuples,
}

#[derive(Debug)]
struct OpenListener {
    settings: ListenerSettings,
    addresses: Vec<SocketAddr>,
    /// None after a drain: the workers close them, and new connections must be refused then.
    sockets: Vec<Arc<OwnedFd>>,
}

impl Relay {
    /// Starts `workers` threads that write to `journal`. Listeners are [opened](Engine::open) later. A worker's
    /// thread calls `on_end` when a worker has ended unexpectedly, or as the last one after a drain.
    ///
    /// # Errors
    /// [`EngineError::Worker`] or [`EngineError::Thread`].
    pub fn start(
        workers: usize,
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let boxes = (0..workers.max(1)).map(|_| mailbox()).collect::<Result<Vec<_>, _>>()?;
        let team = Arc::new(Team::new(boxes.iter().map(|(postbox, _)| postbox.clone()).collect()));
        let mut relay = Self {
            workers: Vec::new(),
            supervision: Supervision::new(on_end),
            journal: Arc::clone(journal),
            listeners: BTreeMap::new(),
            tuples: Tuples::default(),
        };
        for (number, (postbox, mailbox)) in boxes.into_iter().enumerate() {
            let seat = Seat::new(number, Arc::clone(&team), mailbox, budgets.clone(), Arc::clone(journal))?;
            let watched = relay.supervision.watch();
            let name = format!("worker-{number}");
            let work = move || {
                let result = Worker::new(seat).run();
                if let Err(error) = &result {
                    error!("a worker has ended because epoll failed: {error}");
                }
                watched.end(result.map_err(|error| error.to_string()));
            };
            let thread = std::thread::Builder::new().name(name).spawn(work).map_err(EngineError::Thread)?;
            relay.workers.push((postbox, thread));
        }
        Ok(relay)
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
        let flows: Result<Vec<_>, CallError> =
            self.order(|done| Order::Flows(FlowsOrder::Describe { id, done }))?.into_iter().collect();
        Ok(flows?.into_iter().flatten().collect())
    }

    /// Another process serves this UDP listener and its flows now.
    ///
    /// # Errors
    /// The listener doesn't exist, or a worker has ended.
    pub fn release(&mut self, id: ListenerId) -> Result<(), EngineError> {
        self.listeners.remove(&id).ok_or(EngineError::NotOpen(id))?;
        self.order_flows(|done| FlowsOrder::Release { id, done })
    }

    /// Adopts the flows of another process. [Pause](Self::pause_flows) before, and open their listeners with that
    /// process's sockets. Returns how many have been adopted: not those whose listener or gate isn't here.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn adopt_flows(&self, mut flows: Vec<MovingFlow>) -> Result<usize, EngineError> {
        // A queue of deadlines is sorted.
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.state.silent_for));
        let mut by_worker: Vec<Vec<_>> = self.workers.iter().map(|_| Vec::new()).collect();
        for flow in flows {
            let worker = flow.gate % self.workers.len();
            by_worker[worker].push(flow);
        }
        let (done, answers) = channel();
        for ((postbox, _), flows) in self.workers.iter().zip(by_worker) {
            let order = Order::Flows(FlowsOrder::Adopt { flows, done: done.clone() });
            postbox.post(order).map_err(|_| EngineError::WorkerGone)?;
        }
        drop(done);
        Ok(self.answers(&answers)?.into_iter().sum())
    }

    fn order_flows(
        &self,
        order: impl Fn(Sender<Result<(), CallError>>) -> FlowsOrder,
    ) -> Result<(), EngineError> {
        let done: Result<(), CallError> = self.order(|done| Order::Flows(order(done)))?.into_iter().collect();
        Ok(done?)
    }

    /// Sends each worker an order, and waits until all have carried it out.
    fn order<T>(&self, order: impl Fn(Sender<T>) -> Order) -> Result<Vec<T>, EngineError> {
        let (done, answers) = channel();
        for (postbox, _) in &self.workers {
            postbox.post(order(done.clone())).map_err(|_| EngineError::WorkerGone)?;
        }
        drop(done);
        self.answers(&answers)
    }

    /// Keeps all workers busy until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold_all(&self) -> Vec<Sender<()>> {
        let hold = |(postbox, _): &(Postbox<Order>, _)| {
            let (held, until) = channel();
            postbox.post(Order::Hold(until)).expect("it works still");
            held
        };
        self.workers.iter().map(hold).collect()
    }

    /// Breaks the epoll of all workers.
    #[cfg(test)]
    pub(crate) fn break_all(&self) {
        for (postbox, _) in &self.workers {
            postbox.post(Order::Break).expect("it works still");
        }
    }

    fn answers<T>(&self, answers: &Receiver<T>) -> Result<Vec<T>, EngineError> {
        let answers: Vec<_> = answers.iter().collect();
        if answers.len() < self.workers.len() { Err(EngineError::WorkerGone) } else { Ok(answers) }
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
        if self.listeners.contains_key(&id) {
            return Err(EngineError::IsOpen(id));
        }
        let opened = entrances::open(id, &rules.settings, self.workers.len(), inherited, &self.tuples)?;
        let addresses = opened.addresses();
        let listener = OpenListener {
            settings: rules.settings.clone(),
            addresses: addresses.clone(),
            sockets: opened.sockets,
        };
        self.listeners.insert(id, listener);
        let (rules, (done, answers)) = (Arc::new(rules), channel());
        let posted = self.workers.iter().zip(opened.by_worker).try_for_each(|((postbox, _), entrances)| {
            let order = Order::Open { id, rules: Arc::clone(&rules), entrances, done: done.clone() };
            postbox.post(order).map_err(|_| EngineError::WorkerGone)
        });
        drop(done);
        let opened: Result<Vec<()>, EngineError> = posted.and_then(|()| {
            let answers: Vec<Result<(), CallError>> = self.answers(&answers)?;
            Ok(answers.into_iter().collect::<Result<_, _>>()?)
        });
        if let Err(error) = opened {
            // Report the first error.
            let _ = self.close(id);
            return Err(error);
        }
        Ok(addresses)
    }

    fn close(&mut self, id: ListenerId) -> Result<(), EngineError> {
        // Dropped at the end: until the workers have accepted what waits, the sockets must stay open.
        let _listener = self.listeners.remove(&id).ok_or(EngineError::NotOpen(id))?;
        self.order(|done| Order::Close { id, done }).map(|_| ())
    }

    fn set_rules(&mut self, id: ListenerId, rules: ListenerRules) -> Result<(), EngineError> {
        let listener = self.listeners.get_mut(&id).ok_or(EngineError::NotOpen(id))?;
        if let Some(what) = rules.settings.needs_other_sockets(&listener.settings) {
            return Err(EngineError::OtherSockets { id, what });
        }
        listener.settings = rules.settings.clone();
        let rules = Arc::new(rules);
        self.order(|done| Order::SetRules { id, rules: Arc::clone(&rules), done }).map(|_| ())
    }

    fn sockets(&self, id: ListenerId) -> Result<Vec<OwnedFd>, EngineError> {
        let listener = self.listeners.get(&id).ok_or(EngineError::NotOpen(id))?;
        let duplicates = listener.sockets.iter().map(|socket| socket.try_clone());
        Ok(duplicates.collect::<Result<_, _>>().named("fcntl(F_DUPFD_CLOEXEC)")?)
    }

    fn drain(&mut self) {
        self.listeners.values_mut().for_each(|listener| listener.sockets.clear());
        for (postbox, _) in &self.workers {
            // A worker that has ended needs no order.
            let _ = postbox.post(Order::Drain);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let listeners = self.listeners.iter().map(|(&id, listener)| ListenerSnapshot {
            id,
            addresses: listener.addresses.clone(),
            open: self.journal.counters.open(id),
        });
        Snapshot { listeners: listeners.collect() }
    }

    fn sessions(&self) -> Arc<dyn SessionList> {
        Arc::new(RelaySessions(self.workers.iter().map(|(postbox, _)| postbox.clone()).collect()))
    }

    fn health(&self) -> Health {
        self.supervision.health()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.supervision.stop();
        for (postbox, _) in &self.workers {
            // A worker that has ended needs no order.
            let _ = postbox.post(Order::Stop);
        }
        for (_, thread) in self.workers.drain(..) {
            // A worker's panic has already been reported.
            let _ = thread.join();
        }
    }
}
