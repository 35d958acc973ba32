//! The workers of an engine, as their owner sees them: it orders all of them, waits for their answers, and
//! ends them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::error;
use truepeer_sys::CallError;

use crate::engine::EngineError;
use crate::mailbox::Postbox;
use crate::registry::{Page, PageStart, SessionFilter, SessionId, SessionList, SessionOrder, SessionTable};
use crate::supervision::{Health, Supervision};

/// How long a worker may take to list or end sessions: it may be busy with a round of events, or with
/// handshakes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends orders to one worker.
pub trait OrderQueue: Clone + Send + Sync + 'static {
    /// What the worker can be told. When it has carried out an order that has a `done`, it answers on it.
    type Order: From<SessionOrder>;

    /// Adds an order.
    ///
    /// # Errors
    /// [`EngineError::WorkerGone`].
    fn order(&self, order: Self::Order) -> Result<(), EngineError>;
}

impl<T: From<SessionOrder> + Send + 'static> OrderQueue for Postbox<T> {
    type Order = T;

    fn order(&self, order: T) -> Result<(), EngineError> {
        self.post(order).map_err(|_| EngineError::WorkerGone)
    }
}

/// All workers of an engine.
#[derive(Debug)]
pub struct Workers<Q> {
    all: Vec<(Q, JoinHandle<()>)>,
    supervision: Arc<Supervision>,
}

impl<Q: OrderQueue> Workers<Q> {
    /// No workers yet. A worker's thread calls `on_end` when a worker has ended unexpectedly, or as the last
    /// one after a drain.
    #[must_use]
    pub fn new(on_end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { all: Vec::new(), supervision: Supervision::new(on_end) }
    }

    /// Starts a worker's thread. The engine is broken if `work` fails or panics.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn spawn(
        &self,
        name: String,
        work: impl FnOnce() -> Result<(), CallError> + Send + 'static,
    ) -> Result<JoinHandle<()>, EngineError> {
        let watched = self.supervision.watch();
        let watched_work = move || {
            let result = work();
            if let Err(error) = &result {
                error!("a worker has ended because {error}");
            }
            watched.end(result.map_err(|error| error.to_string()));
        };
        std::thread::Builder::new().name(name).spawn(watched_work).map_err(EngineError::Thread)
    }

    /// Adds a worker that has started.
    pub fn add(&mut self, queue: Q, thread: JoinHandle<()>) {
        self.all.push((queue, thread));
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Their queues.
    pub fn queues(&self) -> impl Iterator<Item = &Q> {
        self.all.iter().map(|(queue, _)| queue)
    }

    /// Sends each worker the order that `order` makes for its number.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn post_all<T>(
        &self,
        mut order: impl FnMut(usize, Sender<T>) -> Q::Order,
    ) -> Result<Receiver<T>, EngineError> {
        let (done, answers) = channel();
        let mut numbered = self.queues().enumerate();
        numbered.try_for_each(|(number, queue)| queue.order(order(number, done.clone())))?;
        Ok(answers)
    }

    /// The same. Waits until all workers have carried out their order, and returns the answers as they came.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn order_all<T>(
        &self,
        order: impl FnMut(usize, Sender<T>) -> Q::Order,
    ) -> Result<Vec<T>, EngineError> {
        let answers: Vec<_> = self.post_all(order)?.iter().collect();
        if answers.len() < self.count() { Err(EngineError::WorkerGone) } else { Ok(answers) }
    }

    /// Sends an order to the worker of `number`, counted round all workers, and waits for its answer.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn order_one<T>(
        &self,
        number: usize,
        order: impl FnOnce(Sender<T>) -> Q::Order,
    ) -> Result<T, EngineError> {
        let (done, answer) = channel();
        self.all[number % self.count()].0.order(order(done))?;
        answer.recv().map_err(|_| EngineError::WorkerGone)
    }

    /// Their open sessions, which are in these tables.
    #[must_use]
    pub fn sessions(&self, tables: &'static [SessionTable]) -> Arc<dyn SessionList> {
        Arc::new(WorkerSessions { queues: self.queues().cloned().collect(), tables })
    }

    /// Whether they serve.
    #[must_use]
    pub fn health(&self) -> Health {
        self.supervision.health()
    }

    /// Ends all workers by `stop`. Their ends are not reported.
    pub fn stop(&mut self, stop: impl Fn(&Q)) {
        self.supervision.stop();
        self.queues().for_each(stop);
        for (_, thread) in self.all.drain(..) {
            // A worker's panic has already been reported.
            let _ = thread.join();
        }
    }
}

/// The open sessions of all workers: each is asked for its own.
struct WorkerSessions<Q> {
    queues: Vec<Q>,
    tables: &'static [SessionTable],
}

impl<Q: OrderQueue> WorkerSessions<Q> {
    /// `None`: the worker has ended, or is too busy.
    fn ask<T>(&self, worker: u16, order: impl FnOnce(Sender<T>) -> SessionOrder) -> Option<T> {
        let (done, answer) = channel();
        self.queues.get(usize::from(worker))?.order(order(done).into()).ok()?;
        answer.recv_timeout(ANSWER_TIMEOUT).ok()
    }
}

impl<Q: OrderQueue> SessionList for WorkerSessions<Q> {
    fn page(&self, filter: &SessionFilter, start: Option<PageStart>) -> Page {
        let first = |worker| PageStart { table: self.tables[0], worker, place: 0 };
        let start = start.unwrap_or(first(0));
        let asked = self.ask(start.worker, |done| SessionOrder::Page { filter: filter.clone(), start, done });
        let mut page = asked.unwrap_or_default();
        let other = start.worker + 1;
        if page.next.is_none() && usize::from(other) < self.queues.len() {
            page.next = Some(first(other));
        }
        page
    }

    fn end(&self, id: SessionId) -> bool {
        self.tables.contains(&id.table)
            && self.ask(id.worker, |done| SessionOrder::End { id, done }).unwrap_or(false)
    }

    fn end_banned(&self) {
        for queue in &self.queues {
            // A worker that has ended has no sessions.
            let _ = queue.order(SessionOrder::EndBanned.into());
        }
    }
}
