//! The [`Engine`] for TLS and HTTP. Its sessions are tunnels and exchanges.

mod listener;
mod sessions;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use rustix::net::SocketType;
use truepeer_session::budget::Budgets;
use truepeer_session::listening::{ListenOptions, take_inherited};
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{
    Engine, EngineError, Health, Journal, ListenerId, ListenerSnapshot, SessionList, Snapshot, Supervision,
};
use truepeer_sys::Named as _;

pub use self::listener::HttpsRules;
use self::sessions::HttpsSessions;
use self::worker::{Common, ListenerSource, Order, OrderSender, start_worker};
use crate::downstream::{ClientConnections, IdleConnections};

/// Running tunnels and exchanges. Dropping it stops them: connections that are open are reset.
#[derive(Debug)]
pub struct Https {
    workers: Vec<(OrderSender, JoinHandle<()>)>,
    supervision: Arc<Supervision>,
    journal: Arc<Journal>,
    listeners: BTreeMap<ListenerId, OpenListener>,
}

#[derive(Debug)]
struct OpenListener {
    settings: ListenerSettings,
    addresses: Vec<SocketAddr>,
}

impl Https {
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
        let mut https = Self {
            workers: Vec::new(),
            supervision: Supervision::new(on_end),
            journal: Arc::clone(journal),
            listeners: BTreeMap::new(),
        };
        let workers = workers.max(1);
        let (clients, idle) = (Arc::new(ClientConnections::default()), IdleConnections::new(workers));
        for number in 0..workers {
            let common = Common {
                journal: Arc::clone(journal),
                budgets: budgets.clone(),
                clients: Arc::clone(&clients),
                idle: idle.of(number),
            };
            let watched = https.supervision.watch();
            https.workers.push(start_worker(number, watched, common)?);
        }
        Ok(https)
    }

    /// Opens the listener in each worker in turn. For port 0, all use the port that the first one got. Each
    /// worker opens its own socket, because a network stack in user space ties a socket to the thread that opens
    /// it.
    fn open_in_all(
        &self,
        id: ListenerId,
        rules: &HttpsRules,
        inherited: &[OwnedFd],
    ) -> Result<SocketAddr, EngineError> {
        let settings = &rules.listening.settings;
        let mut address = settings.address;
        let options = ListenOptions { reuse_port: self.workers.len() > 1, transparent: settings.transparent };
        // Each inherited socket needs a worker, or its connections would wait for ever.
        for number in 0..self.workers.len().max(inherited.len()) {
            let (postbox, _) = &self.workers[number % self.workers.len()];
            let source = match inherited.get(number % inherited.len().max(1)) {
                Some(shared) => {
                    ListenerSource::Inherited(shared.try_clone().named("fcntl(F_DUPFD_CLOEXEC)")?)
                }
                None => ListenerSource::New(address, options),
            };
            let (done, answer) = channel();
            postbox.post(Order::Open { id, rules: rules.clone(), source, done })?;
            address = answer.recv().map_err(|_| EngineError::WorkerGone)??;
        }
        Ok(address)
    }

    fn close_in_all(&self, id: ListenerId) -> Result<(), EngineError> {
        let (done, answers) = channel();
        for (postbox, _) in &self.workers {
            postbox.post(Order::Close { id, done: done.clone() })?;
        }
        drop(done);
        // No value is sent: the other end is dropped when the listener's socket has been closed.
        let _ = answers.recv();
        Ok(())
    }
}

impl Engine for Https {
    type Rules = HttpsRules;

    fn open(
        &mut self,
        id: ListenerId,
        rules: HttpsRules,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError> {
        if self.listeners.contains_key(&id) {
            return Err(EngineError::IsOpen(id));
        }
        let ours = take_inherited(inherited, rules.listening.settings.address, SocketType::STREAM);
        match self.open_in_all(id, &rules, &ours) {
            Ok(address) => {
                let addresses = vec![address];
                let settings = rules.listening.settings;
                self.listeners.insert(id, OpenListener { settings, addresses: addresses.clone() });
                Ok(addresses)
            }
            Err(error) => {
                // Report the first error.
                let _ = self.close_in_all(id);
                Err(error)
            }
        }
    }

    fn close(&mut self, id: ListenerId) -> Result<(), EngineError> {
        self.listeners.remove(&id).ok_or(EngineError::NotOpen(id))?;
        self.close_in_all(id)
    }

    fn set_rules(&mut self, id: ListenerId, rules: HttpsRules) -> Result<(), EngineError> {
        let listener = self.listeners.get_mut(&id).ok_or(EngineError::NotOpen(id))?;
        let settings = &rules.listening.settings;
        if let Some(what) = settings.needs_other_sockets(&listener.settings) {
            return Err(EngineError::OtherSockets { id, what });
        }
        listener.settings = settings.clone();
        let (done, answers) = channel();
        for (postbox, _) in &self.workers {
            postbox.post(Order::SetRules { id, rules: rules.clone(), done: done.clone() })?;
        }
        drop(done);
        // No value is sent: the other end is dropped when all workers have the rules.
        let _ = answers.recv();
        Ok(())
    }

    fn sockets(&self, id: ListenerId) -> Result<Vec<OwnedFd>, EngineError> {
        self.listeners.get(&id).ok_or(EngineError::NotOpen(id))?;
        let mut sockets = Vec::new();
        for (postbox, _) in &self.workers {
            let (done, answer) = channel();
            postbox.post(Order::Sockets { id, done })?;
            sockets.extend(answer.recv().map_err(|_| EngineError::WorkerGone)??);
        }
        Ok(sockets)
    }

    fn drain(&mut self) {
        for (postbox, _) in &self.workers {
            postbox.remote.drain();
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
        Arc::new(HttpsSessions(self.workers.iter().map(|(postbox, _)| postbox.clone()).collect()))
    }

    fn health(&self) -> Health {
        self.supervision.health()
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.supervision.stop();
        for (postbox, _) in &self.workers {
            postbox.remote.stop();
        }
        for (_, thread) in self.workers.drain(..) {
            // A worker's panic has already been reported.
            let _ = thread.join();
        }
    }
}
