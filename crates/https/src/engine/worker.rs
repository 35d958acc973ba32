//! A worker: a thread with an event loop, and a task that carries out orders.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use truepeer_session::budget::Budgets;
use truepeer_session::listening::{ListenOptions, listen};
use truepeer_session::registry::SessionOrder;
use truepeer_session::workers::{OrderQueue, Workers};
use truepeer_session::{EngineError, Journal, ListenerId};
use truepeer_stream::open::OpenConnections;
use truepeer_stream::reactor::{self, Reactor, Remote};
use truepeer_sys::Named as _;

use super::listener::{HttpsListener, HttpsRules};
use crate::downstream::{Closing, IdleList, WorkerState, accept};

/// An order to a worker. When it is carried out, the worker answers on `done`.
pub(super) enum HttpsOrder {
    /// Open one more listener.
    Open {
        id: ListenerId,
        rules: HttpsRules,
        source: ListenerSource,
        done: Sender<Result<SocketAddr, EngineError>>,
    },
    /// Accept no more connections for this listener, and close its socket. `done` is dropped then.
    Close { id: ListenerId, done: Sender<()> },
    /// Duplicate the listener's sockets. A socket that several workers share comes once for each.
    Sockets { id: ListenerId, done: Sender<Result<Vec<OwnedFd>, EngineError>> },
    /// New connections of the listener follow these rules.
    SetRules { id: ListenerId, rules: HttpsRules, done: Sender<()> },
    /// List or end connections, for the operator.
    Sessions(SessionOrder),
}

impl From<SessionOrder> for HttpsOrder {
    fn from(order: SessionOrder) -> Self {
        Self::Sessions(order)
    }
}

/// The origin of a worker's listening socket.
pub(super) enum ListenerSource {
    Inherited(OwnedFd),
    New(SocketAddr, ListenOptions),
}

impl ListenerSource {
    /// Call this in the worker's thread: a network stack in user space ties a socket to the thread that opens
    /// it.
    fn open(self) -> Result<OwnedFd, EngineError> {
        match self {
            Self::Inherited(socket) => Ok(socket),
            Self::New(address, options) => Ok(listen(address, options)?),
        }
    }
}

/// A queue of orders for a worker.
#[derive(Debug, Clone)]
pub(super) struct OrderSender {
    orders: Sender<HttpsOrder>,
    /// Wakes the task that carries them out.
    bell: WakerCell,
    pub(super) remote: Remote,
}

type WakerCell = Arc<Mutex<Waker>>;

impl OrderQueue for OrderSender {
    type Order = HttpsOrder;

    fn order(&self, order: HttpsOrder) -> Result<(), EngineError> {
        self.orders.send(order).map_err(|_| EngineError::WorkerGone)?;
        self.bell.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
        Ok(())
    }
}

/// Starts a thread with its own event loop.
pub(super) fn start_worker(
    workers: &Workers<OrderSender>,
    common: Common,
) -> Result<(OrderSender, JoinHandle<()>), EngineError> {
    let ((orders, inbox), bell) = (channel(), WakerCell::new(Mutex::new(Waker::noop().clone())));
    let (report, started) = channel();
    let rung = Arc::clone(&bell);
    let work = move || {
        let reactor = match Reactor::new().named("epoll_create1") {
            Ok(reactor) => reactor,
            Err(error) => {
                let _ = report.send(Err(error)); // the starting thread waits for it
                return Ok(());
            }
        };
        // Opened by the first header instead, they could find no free descriptor, and its claim would be
        // refused.
        truepeer_sys::host::prepare();
        let _ = report.send(Ok(reactor.remote()));
        let worker = HttpsWorker {
            reactor: reactor.clone(),
            common,
            listeners: RefCell::default(),
            connections: OpenConnections::default(),
        };
        reactor.spawn_attendant(worker.obey(inbox, rung));
        reactor.run().named("epoll_wait")
    };
    let thread = workers.spawn(format!("tls-{}", workers.count()), work)?;
    let remote = started.recv().map_err(|_| EngineError::WorkerGone)??;
    Ok((OrderSender { orders, bell, remote }, thread))
}

/// The state that all listeners of a worker share.
pub(super) struct Common {
    pub(super) journal: Arc<Journal>,
    pub(super) budgets: Budgets,
    pub(super) idle: IdleList,
}

struct HttpsWorker {
    reactor: Reactor,
    common: Common,
    listeners: RefCell<Vec<OpenSocket>>,
    connections: OpenConnections,
}

/// A socket of a listener, and the task that accepts from it.
struct OpenSocket {
    listener: Rc<HttpsListener>,
    closing: Rc<Closing>,
    /// The task closes it.
    socket: Weak<reactor::TcpListener>,
}

impl HttpsWorker {
    /// Carries out orders, also while the loop drains: its connections are still listed, and can be ended.
    async fn obey(self, inbox: Receiver<HttpsOrder>, bell: WakerCell) {
        std::future::poll_fn(|cx| {
            bell.lock().unwrap_or_else(PoisonError::into_inner).clone_from(cx.waker());
            loop {
                match inbox.try_recv() {
                    Ok(order) => self.carry_out(order),
                    Err(TryRecvError::Empty) => return Poll::Pending,
                    Err(TryRecvError::Disconnected) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    fn carry_out(&self, order: HttpsOrder) {
        // A requester may have given up.
        match order {
            HttpsOrder::Open { id, rules, source, done } => {
                let _ = done.send(self.open(id, rules, source));
            }
            HttpsOrder::Close { id, done } => {
                for open in self.listeners.borrow_mut().extract_if(.., |open| open.listener.id == id) {
                    open.closing.close(done.clone());
                }
            }
            HttpsOrder::SetRules { id, rules, done } => {
                for open in self.listeners.borrow().iter().filter(|open| open.listener.id == id) {
                    open.listener.set_rules(rules.clone());
                }
                let _ = done.send(());
            }
            HttpsOrder::Sessions(SessionOrder::Page { filter, start, done }) => {
                let _ = done.send(self.connections.page(&filter, start, self.reactor.now()));
            }
            HttpsOrder::Sessions(SessionOrder::End { id, done }) => {
                let _ = done.send(self.connections.end(id.key));
            }
            HttpsOrder::Sessions(SessionOrder::EndBanned) => self.connections.end_banned(),
            HttpsOrder::Sockets { id, done } => {
                let listeners = self.listeners.borrow();
                let of_id = listeners.iter().filter(|open| open.listener.id == id);
                let sockets = of_id.filter_map(|open| open.socket.upgrade()).map(|socket| socket.duplicate());
                let sockets: io::Result<_> = sockets.collect();
                let sockets = sockets.named("fcntl(F_DUPFD_CLOEXEC)").map_err(EngineError::from);
                let _ = done.send(sockets);
            }
        }
    }

    /// Opens the listener, and makes a task of it.
    fn open(
        &self,
        id: ListenerId,
        rules: HttpsRules,
        source: ListenerSource,
    ) -> Result<SocketAddr, EngineError> {
        let wanted = rules.listening.settings.address;
        let socket = Rc::new(reactor::TcpListener::new(&self.reactor, source.open()?).named("epoll_ctl")?);
        let address = socket.local_address().unwrap_or(wanted);
        let common = &self.common;
        let worker = WorkerState {
            journal: Arc::clone(&common.journal),
            shard: common.journal.counters.shard(id),
            budgets: common.budgets.clone(),
            idle: common.idle.clone(),
        };
        let listener = HttpsListener::new(&self.reactor, id, rules, worker, &self.connections);
        let closing = Rc::<Closing>::default();
        self.listeners.borrow_mut().push(OpenSocket {
            listener: Rc::clone(&listener),
            closing: Rc::clone(&closing),
            socket: Rc::downgrade(&socket),
        });
        let (reactor, worker) = (self.reactor.clone(), Rc::clone(&listener.worker));
        let begin = move |stream, sender| listener.begin(stream, sender);
        self.reactor.spawn(async move {
            accept(reactor, socket, wanted.ip(), worker, &closing, begin).await;
            closing.on_closed();
        });
        Ok(address)
    }
}
