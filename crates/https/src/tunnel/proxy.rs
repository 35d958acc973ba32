//! The tunnel as its owner sees it: started with listeners, told to read its certificates again, stopped.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::net::SocketType;
use tracing::error;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::listening::{ListenError, ListenOptions, listen, take_inherited};

use super::session::{Shared, serve};
use crate::downstream::{ClientConnections, House, IdleConnections, Listening, accept};
use crate::gateway::{Gateway, HttpOptions};
use crate::reactor::{Listener, Reactor, Remote};
use crate::tls::{ClientTls, ConfigError};

/// Backends that are spoken TLS with.
#[derive(Debug, Clone)]
pub struct Origin {
    /// How.
    pub tls: Arc<ClientTls>,
}

/// A listener, and how its backends are spoken with.
#[derive(Debug, Clone)]
pub struct TunnelListener {
    /// Its downstream side.
    pub listening: Listening,
    /// Set: TLS towards the backends.
    pub origin: Option<Origin>,
    /// Set: clients speak HTTP, and their requests are passed on one by one.
    pub http: Option<HttpOptions>,
}

/// Running tunnels. Dropping it stops them: connections that are open are reset.
#[derive(Debug)]
pub struct Tunnel {
    workers: Vec<(Remote, JoinHandle<()>)>,
    listeners: Vec<TunnelListener>,
    listening: Vec<SocketAddr>,
    crew: Arc<Crew>,
}

/// What is known of the workers together.
struct Crew {
    /// Those that have not ended.
    left: AtomicUsize,
    /// One has ended though nobody told it to.
    is_broken: AtomicBool,
    /// Called when the last one has ended, or one of them before its time.
    on_end: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("left", &self.left).finish_non_exhaustive()
    }
}

/// A worker's membership, for as long as its thread works; dropped by a panic, too.
struct Member {
    crew: Arc<Crew>,
    was_told: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        let others = self.crew.left.fetch_sub(1, Ordering::AcqRel) - 1;
        if !self.was_told {
            self.crew.is_broken.store(true, Ordering::Release);
        }
        if others == 0 || !self.was_told {
            (self.crew.on_end)();
        }
    }
}

/// Tunnels can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listening socket can't be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker can't get what every worker needs.
    #[error("can't start a worker")]
    Worker(#[source] std::io::Error),
}

impl Tunnel {
    /// Opens every listener, once for each of `workers` threads, or takes it from `inherited`, and starts them. `on_end` is
    /// called from a worker's thread: when all have ended after [`Tunnel::drain`], or one has by itself
    /// ([`Tunnel::is_broken`]).
    ///
    /// # Errors
    /// Nothing listens if one of them can't.
    pub fn start(
        listeners: Vec<TunnelListener>,
        workers: usize,
        mut inherited: Vec<OwnedFd>,
        budgets: &Budgets,
        journal: &Arc<Journal>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let workers = workers.max(1);
        let mut addresses: Vec<_> = listeners.iter().map(|one| one.listening.settings.address).collect();
        let inherited: Vec<Vec<OwnedFd>> = addresses
            .iter()
            .map(|address| take_inherited(&mut inherited, *address, SocketType::STREAM))
            .collect();
        let crew = Arc::new(Crew {
            left: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            on_end: Box::new(on_end),
        });
        let mut tunnel = Self { workers: Vec::new(), listeners, listening: Vec::new(), crew };
        // Declared after the tunnel, so that a failure ends the waiting workers before they are waited for.
        let mut gates = Vec::new();
        let (clients, idle) = (Arc::new(ClientConnections::default()), IdleConnections::new(workers));
        for number in 0..workers {
            let doors = doors(&tunnel.listeners, &addresses, &inherited, number, workers)?;
            let house = House {
                journal: Arc::clone(journal),
                shard: journal.counters.shard(),
                budgets: budgets.clone(),
                clients: Arc::clone(&clients),
                idle: idle.of(number),
            };
            let member = tunnel.crew.join();
            let (gate, opens) = channel();
            let job = Job { listeners: tunnel.listeners.clone(), doors, house, member, opens };
            let (started, thread) = start_worker(number, job)?;
            tunnel.workers.push((started.remote, thread));
            // Where the port is the kernel's choice, all of them have the first one's.
            addresses = started.listening;
            gates.push(gate);
        }
        for gate in gates {
            // Who has ended meanwhile has said why.
            let _ = gate.send(());
        }
        tunnel.listening = addresses;
        Ok(tunnel)
    }

    /// Where connections are accepted, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// Takes no more connections; those that are open go on until their exchanges and sessions have ended, idle ones are
    /// closed. Dropping the tunnel resets what is left.
    pub fn drain(&self) {
        for (remote, _) in &self.workers {
            remote.drain();
        }
    }

    /// Whether a worker has ended though it was not told to. Its part of the connections is lost, and new ones wait in
    /// its listeners: the program is to end.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.crew.is_broken.load(Ordering::Acquire)
    }

    /// Reads certificates, keys and authorities again. New handshakes use them; connections that are open stay.
    ///
    /// # Errors
    /// What is wrong with the first that can't be read: it stays as it was, and the others are read all the same.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let servers = self.listeners.iter().filter_map(|listener| listener.listening.tls.as_ref());
        let clients = self.listeners.iter().filter_map(|listener| listener.origin.as_ref());
        let mut result = Ok(());
        for outcome in servers.map(|tls| tls.reload()).chain(clients.map(|origin| origin.tls.reload())) {
            result = result.and(outcome);
        }
        result
    }
}

impl Crew {
    fn join(self: &Arc<Self>) -> Member {
        self.left.fetch_add(1, Ordering::AcqRel);
        Member { crew: Arc::clone(self), was_told: false }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for (remote, _) in &self.workers {
            remote.stop();
        }
        for (_, thread) in self.workers.drain(..) {
            // A panic of a worker was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A listening socket of one worker's, before it is opened.
enum Door {
    Inherited(OwnedFd),
    New(SocketAddr, ListenOptions),
}

/// Those of the worker with this number, one for each listener.
fn doors(
    listeners: &[TunnelListener],
    addresses: &[SocketAddr],
    inherited: &[Vec<OwnedFd>],
    number: usize,
    workers: usize,
) -> Result<Vec<Door>, StartError> {
    let door = |((listener, address), inherited): ((&TunnelListener, &SocketAddr), &Vec<OwnedFd>)| {
        Ok(match inherited.get(number % inherited.len().max(1)) {
            Some(shared) => Door::Inherited(shared.try_clone().map_err(StartError::Worker)?),
            None => {
                let transparent = listener.listening.settings.transparent;
                Door::New(*address, ListenOptions { reuse_port: workers > 1, transparent })
            }
        })
    };
    listeners.iter().zip(addresses).zip(inherited).map(door).collect()
}

impl Door {
    /// To be called by the worker itself: a network stack in user space gives a socket to the thread that opens it.
    fn open(self) -> Result<OwnedFd, StartError> {
        match self {
            Self::Inherited(socket) => Ok(socket),
            Self::New(address, options) => Ok(listen(address, options)?),
        }
    }
}

/// What a worker gets.
struct Job {
    listeners: Vec<TunnelListener>,
    doors: Vec<Door>,
    house: House,
    member: Member,
    /// Told when all workers have opened their listeners.
    opens: Receiver<()>,
}

/// What a worker says once its listeners are open.
struct Started {
    remote: Remote,
    listening: Vec<SocketAddr>,
}

/// Starts a thread with a loop of its own; returns when its listeners are open. It serves when it is told to.
fn start_worker(number: usize, job: Job) -> Result<(Started, JoinHandle<()>), StartError> {
    let (report, ready) = channel();
    let thread = std::thread::Builder::new()
        .name(format!("tls-{number}"))
        .spawn(move || work(job, &report))
        .map_err(StartError::Worker)?;
    let gone = || StartError::Worker(std::io::Error::other("the worker has ended at once"));
    let started = ready.recv().map_err(|_| gone()).and_then(|started| started)?;
    Ok((started, thread))
}

fn work(job: Job, report: &Sender<Result<Started, StartError>>) {
    let Job { listeners, doors, house, mut member, opens } = job;
    let prepared = prepare(listeners, doors, house).map(|(reactor, listening)| {
        let remote = reactor.remote();
        (reactor, Started { remote, listening })
    });
    let reactor = match prepared {
        Ok((reactor, started)) => {
            let _ = report.send(Ok(started));
            reactor
        }
        Err(error) => {
            // Whoever started us is waiting, and hears of it so.
            member.was_told = true;
            let _ = report.send(Err(error));
            return;
        }
    };
    if opens.recv().is_err() {
        // Another worker could not start.
        member.was_told = true;
        return;
    }
    match reactor.run() {
        Ok(()) => member.was_told = true,
        Err(failure) => {
            error!("a worker has ended, since the system does not tell it what is ready: {failure}")
        }
    }
}

/// Opens the listeners, and makes a task of each.
fn prepare(
    listeners: Vec<TunnelListener>,
    doors: Vec<Door>,
    house: House,
) -> Result<(Reactor, Vec<SocketAddr>), StartError> {
    let reactor = Reactor::new().map_err(StartError::Worker)?;
    let house = Rc::new(house);
    let mut addresses = Vec::new();
    for (TunnelListener { listening, origin, http }, door) in listeners.into_iter().zip(doors) {
        let listener = Listener::new(&reactor, door.open()?).map_err(StartError::Worker)?;
        addresses.push(listener.local_address().unwrap_or(listening.settings.address));
        let listening = Rc::new(listening);
        if let Some(options) = http {
            let gateway = Gateway::new(&reactor, options, origin, &listening, &house);
            let serve = move |tcp, sender, permit| Rc::clone(&gateway).serve(tcp, sender, permit);
            reactor.spawn(accept(reactor.clone(), listener, listening, Rc::clone(&house), serve));
            continue;
        }
        let shared = Rc::new(Shared { listening: Rc::clone(&listening), origin, house: Rc::clone(&house) });
        let serve = move |tcp, sender, permit| serve(Rc::clone(&shared), tcp, sender, permit);
        reactor.spawn(accept(reactor.clone(), listener, listening, Rc::clone(&house), serve));
    }
    Ok((reactor, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew() -> (Arc<Crew>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let on_end = Box::new(move || {
            counted.fetch_add(1, Ordering::AcqRel);
        });
        let (left, is_broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        (Arc::new(Crew { left, is_broken, on_end }), calls)
    }

    #[test]
    fn a_worker_that_panics_is_told_of_at_once() {
        let (crew, calls) = crew();
        let [panicking, _other] = [crew.join(), crew.join()];
        let thread = std::thread::spawn(move || {
            let _member = panicking;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert!(crew.is_broken.load(Ordering::Acquire));
        assert_eq!(calls.load(Ordering::Acquire), 1);
    }

    #[test]
    fn workers_that_were_told_to_end_are_told_of_together() {
        let (crew, calls) = crew();
        let members = [crew.join(), crew.join()];
        for (ended, mut member) in members.into_iter().enumerate() {
            assert_eq!(calls.load(Ordering::Acquire), ended / 2);
            member.was_told = true;
            drop(member);
        }
        assert_eq!(calls.load(Ordering::Acquire), 1);
        assert!(!crew.is_broken.load(Ordering::Acquire));
    }
}
