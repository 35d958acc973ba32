//! The listeners that the supervisor accepts on, and their preparation.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tracing::{debug, warn};
use truepeer_handover::{ELSEWHERE, ListenerAddr, SocketId, is_elsewhere};
use truepeer_sys::segments::save_syn;
use truepeer_sys::socket::{local_address, set_defer_accept};

/// The kernel's IPPROTO_TCP and IPPROTO_MPTCP: Go's listeners are MPTCP sockets.
const PROTOCOLS: [u32; 2] = [6, 262];

/// A program's backlog is meant for clients that it serves at once, but silent connections wait in the same
/// queue. The kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Above this many listeners the cache is cleared. Each listener is found again when it is used.
const MOST_REMEMBERED: usize = 4096;

/// A listening socket. Several processes may hold it under different descriptors.
#[derive(Debug)]
pub(super) struct SupervisedListener {
    /// By which the kernel tells sockets apart (SO_COOKIE); never given away again.
    pub(super) cookie: u64,
    pub(super) id: SocketId,
    pub(super) address: ListenerAddr,
    pub(super) is_v6: bool,
    /// Whether the rules apply to all of its connections. Otherwise [`SupervisedListeners::have`] decides
    /// about each.
    pub(super) is_whole: bool,
}

/// The program's listeners.
#[derive(Debug)]
pub(super) struct SupervisedListeners {
    meant: truepeer_handover::Listeners,
    /// How long the kernel may hold a connection until its first data.
    defer: Option<Duration>,
    /// Some senders may send a header or none.
    has_optional: bool,
    known: HashMap<u64, Option<Arc<SupervisedListener>>>,
}

impl SupervisedListeners {
    pub(super) fn new(
        meant: truepeer_handover::Listeners,
        defer: Option<Duration>,
        has_optional: bool,
    ) -> Self {
        Self { meant, defer, has_optional, known: HashMap::new() }
    }

    /// The listener that this socket is; `None` if its connections are not ours to look at, or if it does not
    /// listen.
    pub(super) fn look(&mut self, socket: BorrowedFd<'_>) -> Option<Arc<SupervisedListener>> {
        let cookie = sockopt::socket_cookie(socket).ok()?;
        if let Some(known) = self.known.get(&cookie) {
            return known.clone();
        }
        if !is_tcp(socket) || sockopt::socket_acceptconn(socket) != Ok(true) {
            return None; // don't cache it: it may listen later
        }
        let (address, id) = (ListenerAddr::of(socket).ok()?, SocketId::of(socket).ok()?);
        let local = address.local;
        let listener = self.meant.may_have(local).then(|| {
            // Inherited, or passed by a service manager: its listen() was never seen.
            self.prepare(socket, local);
            let _ = rustix::net::listen(socket, BACKLOG);
            if is_elsewhere(socket) {
                warn!(listener = %local, "{ELSEWHERE}");
            }
            let is_whole = self.meant.has(local);
            Arc::new(SupervisedListener { cookie, id, address, is_v6: local.is_ipv6(), is_whole })
        });
        if self.known.len() >= MOST_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(cookie, listener.clone());
        listener
    }

    /// Carries out listen() for the program, with room for silent connections. `None`: not a supervised
    /// listener.
    pub(super) fn listen(&mut self, socket: BorrowedFd<'_>, backlog: i32) -> Option<Result<(), Errno>> {
        let local = is_tcp(socket).then(|| local_address(socket).ok())??;
        if !self.meant.may_have(local) {
            return None;
        }
        self.prepare(socket, local);
        // The kernel takes a negative backlog as a very large one.
        let backlog = if backlog < 0 { backlog } else { backlog.max(BACKLOG) };
        Some(rustix::net::listen(socket, backlog))
    }

    /// Whether the rules apply to this connection of a listener.
    pub(super) fn have(&self, connection: BorrowedFd<'_>) -> bool {
        local_address(connection).is_ok_and(|local| self.meant.has(local))
    }

    /// With TCP_DEFER_ACCEPT, a header in the first segment has arrived when accept() returns. Almost every
    /// connection then needs one look only. Where some connections have no header, none is held.
    fn prepare(&self, socket: BorrowedFd<'_>, local: SocketAddr) {
        if let Some(wait) = self.defer.filter(|_| self.meant.has(local))
            && let Err(error) = set_defer_accept(socket, wait)
        {
            debug!("{error}: the supervisor waits for each connection's first data");
        }
        if self.has_optional {
            // If it fails (MPTCP), less is known about headers that come after the wait.
            let _ = save_syn(socket);
        }
    }
}

fn is_tcp(socket: BorrowedFd<'_>) -> bool {
    let internet = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6));
    let stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    let protocol = sockopt::socket_protocol(socket).ok().flatten();
    internet && stream && protocol.is_some_and(|protocol| PROTOCOLS.contains(&protocol.as_raw().get()))
}
