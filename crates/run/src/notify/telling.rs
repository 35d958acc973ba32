//! `truepeer connect` by notification: each connect() to a selected destination sends a header before the
//! program can send data.
//!
//! ```text
//! connect() ─▶ selected? ─no─▶ the kernel continues
//!                │
//!                └── the header goes with the SYN (MSG_FASTOPEN)
//!                      ├── taken along: the program waits, or gets EINPROGRESS, as without truepeer
//!                      └── not taken along: the supervisor connects and sends the header, then answers; the
//!                          program must wait, and no signal interrupts it before the header is sent
//! ```
//! If a signal interrupts a blocking connect(), the program still gets a connection (connect(2)), and it
//! begins with the header.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_cookie, socket_domain, socket_timeout, socket_type};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, connect, getsockname, send};
use tracing::debug;
use truepeer_handover::ConnectSettings;
use truepeer_sys::process::read_memory;
use truepeer_sys::seccomp::{Answer, Notification, Notifier, calls};
use truepeer_sys::socket::{is_unconnected, send_with_syn};

use super::caller::{descriptor_for, parse_address};
use super::guard::Ending;
use super::interrupt::still_waits;
use super::journal::SupervisorLog;
use super::relation::Relation;
use super::watch::{Watch, WatchedEvent};

/// How often waiting calls are checked. A signal waits at most this long.
const PERIOD: Duration = Duration::from_millis(100);

/// A connection that is not established yet.
#[derive(Debug)]
struct Connecting {
    socket: OwnedFd,
    to: SocketAddr,
    /// The calls that wait for it.
    call: Notification,
    /// Whether the kernel has the header already. If not, it is sent once the connection is established.
    is_told: bool,
    /// The deadline of the call (SO_SNDTIMEO).
    deadline: Option<Instant>,
}

/// Answers a program's connect().
#[derive(Debug)]
pub(super) struct Telling {
    sending: ConnectSettings,
    notifier: Notifier,
    watch: Watch,
    connecting: HashMap<u64, Connecting>,
    journal: SupervisorLog,
    relation: Relation,
}

impl Telling {
    pub(super) fn new(
        sending: &ConnectSettings,
        notifier: Notifier,
        relation: Relation,
    ) -> anyhow::Result<Self> {
        let watch = Watch::new(&notifier, &relation)?;
        Ok(Self {
            sending: sending.clone(),
            notifier,
            watch,
            connecting: HashMap::new(),
            journal: SupervisorLog::new(None),
            relation,
        })
    }

    /// Answers calls until the program and all its children have ended.
    pub(super) fn run(mut self) -> anyhow::Result<Ending> {
        loop {
            let limit = (!self.connecting.is_empty()).then_some(PERIOD);
            for event in self.watch.wait(&self.notifier, limit)? {
                match event {
                    WatchedEvent::Call => self.on_call()?,
                    WatchedEvent::Life => {
                        if let Some(ending) = self.relation.turn() {
                            return Ok(ending);
                        }
                    }
                    WatchedEvent::Guard | WatchedEvent::NobodyLeft => {
                        let ending = match event {
                            WatchedEvent::Guard => self.relation.on_guard(),
                            _ => self.relation.on_nobody_left(),
                        };
                        if let Some(ending) = ending {
                            return Ok(ending);
                        }
                    }
                    WatchedEvent::Socket(cookie) => self.on_decided(cookie),
                }
            }
            self.look_after(Instant::now());
        }
    }

    fn on_call(&mut self) -> anyhow::Result<()> {
        let Some(call) = self.notifier.receive()? else { return Ok(()) };
        if call.is_foreign {
            self.journal.on_foreign(call.thread);
            self.answer(&call, Answer::Fail(Errno::NOSYS));
            return Ok(());
        }
        if call.call == calls::IO_URING_SETUP {
            self.journal.on_io_uring(call.thread);
            self.answer(&call, Answer::Fail(Errno::NOSYS));
            return Ok(());
        }
        let Some(socket) = descriptor_for(&call, &self.notifier, &mut self.journal) else { return Ok(()) };
        let cookie = socket_cookie(&socket).unwrap_or_default();
        if let Some(connecting) = self.connecting.get_mut(&cookie) {
            connecting.call = call; // restarted after a signal
            return Ok(());
        }
        match self.destination(&call, socket.as_fd()) {
            Some(to) => self.on_connect(call, socket, cookie, to),
            None => {
                drop(socket);
                self.answer(&call, Answer::GoOn);
            }
        }
        Ok(())
    }

    /// The call's destination, if a header must be sent there. A call that the kernel would refuse is left to
    /// the kernel.
    fn destination(&self, call: &Notification, socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        let family = socket_domain(socket).ok()?;
        let is_tcp = matches!(family, AddressFamily::INET | AddressFamily::INET6)
            && socket_type(socket) == Ok(SocketType::STREAM);
        // A second connect() asks for the result of the first.
        if !is_tcp || !is_unconnected(socket) {
            return None;
        }
        let to = read_address(call, family)?;
        (self.notifier.is_waiting(call.id) && self.sending.is_told(to)).then_some(to)
    }

    fn on_connect(&mut self, call: Notification, socket: OwnedFd, cookie: u64, to: SocketAddr) {
        let flags = fcntl_getfl(&socket).unwrap_or(OFlags::empty());
        let is_told = match self.connect_at_once(socket.as_fd(), to) {
            Ok(()) if flags.contains(OFlags::NONBLOCK) => {
                return self.answer_about(socket, &call, Answer::Fail(Errno::INPROGRESS));
            }
            Ok(()) => true,
            Err(Errno::OPNOTSUPP | Errno::INPROGRESS | Errno::ALREADY) => false,
            Err(errno) => return self.answer_about(socket, &call, Answer::Fail(errno)),
        };
        match connect_without_waiting(socket.as_fd(), flags, to) {
            Ok(()) | Err(Errno::ISCONN) => {
                self.on_connected(Connecting { socket, to, call, is_told, deadline: None });
            }
            Err(Errno::INPROGRESS | Errno::ALREADY) => self.wait(call, socket, cookie, to, is_told),
            Err(errno) => self.answer_about(socket, &call, Answer::Fail(errno)),
        }
    }

    /// A non-blocking program may write as soon as the socket is connected, so the header must be in the send
    /// queue first.
    fn connect_at_once(&self, socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
        if self.sending.from.is_none() {
            take_an_address(socket, to)?;
        }
        let opening = self.opening(socket, to)?;
        send_with_syn(socket, to, &opening)
    }

    fn opening(&self, socket: BorrowedFd<'_>, to: SocketAddr) -> Result<Vec<u8>, Errno> {
        let own = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
        let opening = self.sending.opening(own, to).map_err(|_| Errno::INVAL)?;
        debug!(%to, "told of {}", self.sending.from.unwrap_or(own));
        Ok(opening.bytes().to_vec())
    }

    fn wait(&mut self, call: Notification, socket: OwnedFd, cookie: u64, to: SocketAddr, is_told: bool) {
        let limit = socket_timeout(&socket, Timeout::Send).ok().flatten();
        if let Err(errno) = self.watch.add(socket.as_fd(), cookie, epoll::EventFlags::OUT) {
            return self.answer_about(socket, &call, Answer::Fail(errno));
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        self.connecting.insert(cookie, Connecting { socket, to, call, is_told, deadline });
    }

    /// A connection was established or refused. connect() itself returns the result; a refused socket may
    /// then connect again.
    fn on_decided(&mut self, cookie: u64) {
        let Some(connecting) = self.connecting.remove(&cookie) else { return };
        let flags = fcntl_getfl(&connecting.socket).unwrap_or(OFlags::empty());
        let failure = match connect_without_waiting(connecting.socket.as_fd(), flags, connecting.to) {
            Err(Errno::INPROGRESS | Errno::ALREADY) => {
                self.connecting.insert(cookie, connecting);
                return;
            }
            Ok(()) | Err(Errno::ISCONN) => None,
            Err(errno) => Some(errno),
        };
        self.watch.remove(connecting.socket.as_fd());
        match failure {
            None => self.on_connected(connecting),
            Some(errno) => {
                self.answer_about(connecting.socket, &connecting.call, Answer::Fail(errno));
            }
        }
    }

    fn on_connected(&mut self, connecting: Connecting) {
        let Connecting { socket, to, call, is_told, .. } = connecting;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let told = if is_told {
            Ok(())
        } else {
            self.opening(socket.as_fd(), to).and_then(|opening| send(&socket, &opening, flags).map(drop))
        };
        let answer = match told {
            Ok(()) => Answer::Value(0),
            Err(errno) => Answer::Fail(errno),
        };
        self.answer_about(socket, &call, answer);
    }

    /// Drop the duplicate first: the program's close() must close the socket.
    fn answer_about(&mut self, socket: OwnedFd, call: &Notification, answer: Answer) {
        drop(socket);
        self.answer(call, answer);
    }

    fn answer(&mut self, call: &Notification, answer: Answer) {
        if let Err(error) = self.notifier.send(call.id, answer) {
            self.journal.on_trouble("can't answer a call", &error);
        }
    }

    /// Lets waiting calls return for signals and time-outs (the kernel returns EINPROGRESS for a time-out).
    fn look_after(&mut self, now: Instant) {
        let Self { connecting, notifier, watch, .. } = self;
        connecting.retain(|_, connecting| {
            let waits = if connecting.is_told {
                still_waits(notifier, &connecting.call, connecting.deadline, Errno::INPROGRESS, now)
            } else {
                notifier.is_waiting(connecting.call.id) // otherwise it was killed
            };
            if !waits {
                watch.remove(connecting.socket.as_fd());
            }
            waits
        });
    }
}

/// O_NONBLOCK belongs to the program's socket. It is changed only for this call, while no other call can use
/// the socket.
fn connect_without_waiting(socket: BorrowedFd<'_>, flags: OFlags, to: SocketAddr) -> Result<(), Errno> {
    if flags.contains(OFlags::NONBLOCK) {
        return connect(socket, &to);
    }
    fcntl_setfl(socket, flags | OFlags::NONBLOCK)?;
    let connected = connect(socket, &to);
    fcntl_setfl(socket, flags)?;
    connected
}

/// The header contains the local address. Without bind() the socket gets one only when it connects.
fn take_an_address(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    if bound.port() != 0 && !bound.ip().is_unspecified() {
        return Ok(());
    }
    let probe = rustix::net::socket(socket_domain(socket)?, SocketType::DGRAM, None)?;
    connect(&probe, &to)?;
    let route = SocketAddr::try_from(getsockname(&probe)?).map_err(|_| Errno::AFNOSUPPORT)?;
    bind(socket, &SocketAddr::new(route.ip(), bound.port()))
}

/// struct sockaddr_in or sockaddr_in6, in the caller's memory.
fn read_address(call: &Notification, family: AddressFamily) -> Option<SocketAddr> {
    const V4_LENGTH: usize = 16;
    const V6_LENGTH: usize = 28;
    let wanted = if family == AddressFamily::INET { V4_LENGTH } else { V6_LENGTH };
    if usize::try_from(call.int(2)).ok()? < wanted {
        return None;
    }
    let mut bytes = [0; V6_LENGTH];
    read_memory(call.thread, call.args[1], &mut bytes[..wanted]).ok()?;
    parse_address(&bytes, family)
}
