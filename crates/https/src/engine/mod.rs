//! The [`Engine`] for TLS and HTTP. Its sessions are tunnels and exchanges.

mod listener;
mod worker;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::SocketType;
use truepeer_session::budget::Budgets;
use truepeer_session::listeners::Listeners;
use truepeer_session::listening::{ListenOptions, take_inherited};
use truepeer_session::registry::SessionTable;
use truepeer_session::workers::Workers;
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId, SessionList, Snapshot};
use truepeer_sys::Named as _;

pub use self::listener::{HttpsRules, SessionRules, SiteRules, SitesRules};
use self::worker::{Common, HttpsOrder, ListenerSource, OrderSender, start_worker};
use crate::downstream::IdleConnections;

/// Running tunnels and exchanges. Dropping it stops them: connections that are open are reset.
#[derive(Debug)]
pub struct Https {
    workers: Workers<OrderSender>,
    journal: Arc<Journal>,
    listeners: Listeners<()>,
}

impl Https {
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
        let mut https = Self {
            workers: Workers::new(on_end),
            journal: Arc::clone(journal),
            listeners: Listeners::default(),
        };
        let workers = workers.max(1);
        let idle = IdleConnections::new(workers);
        for number in 0..workers {
            let common =
                Common { journal: Arc::clone(journal), budgets: budgets.clone(), idle: idle.of(number) };
            let (orders, thread) = start_worker(&https.workers, common)?;
            https.workers.add(orders, thread);
        }
        Ok(https)
    }

    /// Opens the listener in each worker in turn. For port 0, all use the port that the first one got. Each
    /// worker opens its own socket, because a network stack in user space ties a socket to the thread that
    /// opens it.
    fn open_in_all(
        &self,
        id: ListenerId,
        rules: &HttpsRules,
        inherited: &[OwnedFd],
    ) -> Result<SocketAddr, EngineError> {
        let settings = &rules.listening.settings;
        let mut address = settings.address;
        let reuse_port = self.workers.count() > 1;
        let options =
            ListenOptions { reuse_port, transparent: settings.transparent, v6_only: settings.v6_only };
        // Each inherited socket needs a worker, or its connections would wait for ever.
        for number in 0..self.workers.count().max(inherited.len()) {
            let source = match inherited.get(number % inherited.len().max(1)) {
                Some(shared) => {
                    ListenerSource::Inherited(shared.try_clone().named("fcntl(F_DUPFD_CLOEXEC)")?)
                }
                None => ListenerSource::New(address, options),
            };
            let open = |done| HttpsOrder::Open { id, rules: rules.clone(), source, done };
            address = self.workers.order_one(number, open)??;
        }
        Ok(address)
    }

    fn close_in_all(&self, id: ListenerId) -> Result<(), EngineError> {
        let closed = self.workers.post_all(|_, done| HttpsOrder::Close { id, done })?;
        // No value is sent: the other end is dropped when the listener's socket has been closed.
        let _ = closed.recv();
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
        self.listeners.check_vacant(id)?;
        let ours = take_inherited(inherited, rules.listening.settings.address, SocketType::STREAM);
        match self.open_in_all(id, &rules, &ours) {
            Ok(address) => {
                self.listeners.add(id, rules.listening.settings, vec![address], ());
                Ok(vec![address])
            }
            Err(error) => {
                // Report the first error.
                let _ = self.close_in_all(id);
                Err(error)
            }
        }
    }

    fn close(&mut self, id: ListenerId) -> Result<(), EngineError> {
        self.listeners.remove(id)?;
        self.close_in_all(id)
    }

    fn set_rules(&mut self, id: ListenerId, rules: HttpsRules) -> Result<(), EngineError> {
        self.listeners.set_settings(id, &rules.listening.settings)?;
        self.workers.order_all(|_, done| HttpsOrder::SetRules { id, rules: rules.clone(), done }).map(|_| ())
    }

    fn sockets(&self, id: ListenerId) -> Result<Vec<OwnedFd>, EngineError> {
        self.listeners.kept(id)?;
        let of = |number| self.workers.order_one(number, |done| HttpsOrder::Sockets { id, done })?;
        let sockets = (0..self.workers.count()).map(of).collect::<Result<Vec<_>, EngineError>>()?;
        Ok(sockets.into_iter().flatten().collect())
    }

    fn drain(&mut self) {
        self.workers.queues().for_each(|orders| orders.remote.drain());
    }

    fn snapshot(&self) -> Snapshot {
        self.listeners.snapshot(&self.journal.counters)
    }

    fn sessions(&self) -> Arc<dyn SessionList> {
        self.workers.sessions(&[SessionTable::Tls])
    }

    fn health(&self) -> Health {
        self.workers.health()
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.workers.stop(|orders| orders.remote.stop());
    }
}
