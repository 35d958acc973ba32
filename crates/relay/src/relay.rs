//! The relay as its owner sees it: started with listeners, asked for counters, stopped.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use truepeer_policy::Policy;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Counters;
use truepeer_session::listening::ListenError;
use truepeer_session::mailbox::{Postbox, mailbox};
use truepeer_session::settings::ListenerSettings;
use truepeer_sys::CallError;

use crate::entrances;
use crate::worker::{Order, Team, Worker};

/// A running relay. Dropping it stops it.
#[derive(Debug)]
pub struct Relay {
    workers: Vec<(Postbox<Order>, JoinHandle<()>)>,
    journal: Arc<Journal>,
    budgets: Budgets,
    listening: Vec<SocketAddr>,
}

/// A listener: what it follows, and who may do what on it.
#[derive(Debug, Clone)]
pub struct Listening {
    /// How sessions are handled.
    pub settings: ListenerSettings,
    /// Whose sessions they are and where they go.
    pub policy: Arc<Policy>,
}

/// The relay can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listening socket can't be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker can't get what every worker needs.
    #[error("can't start a worker: {0}")]
    Worker(#[from] CallError),
    /// The system refuses one more thread.
    #[error("can't start a worker thread")]
    Thread(#[source] std::io::Error),
}

impl Relay {
    /// Opens every listener, or takes it from `inherited`, then starts `workers` threads, which write to `journal`.
    ///
    /// # Errors
    /// Nothing listens if one of them can't: see [`StartError`].
    pub fn start(
        listeners: Vec<Listening>,
        workers: usize,
        inherited: Vec<OwnedFd>,
        budgets: Budgets,
        journal: Arc<Journal>,
    ) -> Result<Self, StartError> {
        let workers = workers.max(1);
        let entrances = entrances::open(&listeners, workers, inherited)?;
        let listening = entrances::addresses(&entrances);
        let boxes = (0..workers).map(|_| mailbox()).collect::<Result<Vec<_>, _>>()?;
        let team = Team {
            postboxes: boxes.iter().map(|(postbox, _)| postbox.clone()).collect(),
            loads: boxes.iter().map(|_| AtomicUsize::new(0)).collect(),
        };
        let (team, listeners) = (Arc::new(team), Arc::new(listeners));
        let mut relay = Self { workers: Vec::new(), journal, budgets, listening };
        for (number, ((postbox, mailbox), entrances)) in boxes.into_iter().zip(entrances).enumerate() {
            let worker = Worker::new(
                number,
                Arc::clone(&team),
                Arc::clone(&listeners),
                entrances,
                mailbox,
                relay.budgets.clone(),
                Arc::clone(&relay.journal),
            )?;
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || worker.run())
                .map_err(StartError::Thread)?;
            relay.workers.push((postbox, thread));
        }
        Ok(relay)
    }

    /// Where connections are accepted, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.journal.counters
    }

    /// Sessions now.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.budgets.sessions.used()
    }

    /// Sessions at most.
    #[must_use]
    pub fn most_sessions(&self) -> usize {
        self.budgets.sessions.limit()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for (postbox, _) in &self.workers {
            // A worker that has ended already needs no order.
            let _ = postbox.post(Order::Stop);
        }
        for (_, thread) in self.workers.drain(..) {
            // A panic of a worker was reported when it happened.
            let _ = thread.join();
        }
    }
}
