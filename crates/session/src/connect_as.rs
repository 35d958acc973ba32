//! Connections to backends, from the client's address where one is given.
//!
//! All system calls go through libc, and options that a network stack in user space doesn't know are skipped. So such a
//! stack can take the kernel's place.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use truepeer_policy::{OnConflict, Origin, Route};
use truepeer_sys::{CallError, Named as _, socket};

/// Delay between attempts to bind the client's own tuple. Its earlier connection may just be closing.
pub const CONFLICT_RETRY: Duration = Duration::from_millis(20);
const CONFLICT_RETRIES: u8 = 2;

/// How an upstream socket is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upstream {
    /// The address to appear from; `None` leaves both address and port to the kernel (`--send-proxy`).
    pub source: Option<SocketAddr>,
    /// The backend.
    pub backend: SocketAddr,
    /// Firewall mark for its packets; 0 sets none.
    pub mark: u32,
}

impl Upstream {
    /// As `route` says.
    #[must_use]
    pub fn of(route: &Route, mark: u32) -> Self {
        Self { source: route.source, backend: route.backend.get(), mark }
    }

    /// The same, from any port of the same address.
    #[must_use]
    pub fn from_any_port(mut self) -> Self {
        if let Some(source) = &mut self.source {
            source.set_port(0);
        }
        self
    }
}

/// Why an upstream socket could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The tuple (source address and port, backend address and port) is in use.
    #[error("the client's address and port are in use on this machine")]
    TupleInUse,
    /// Another program's socket on this host has the source port, on the client's address or on every one.
    #[error("a program on this host holds the client's port (it listens there on every address)")]
    PortHeld,
    /// The kernel chose the backend's own address and port, which only happens where nothing listens.
    #[error("nothing listens at the backend's port, and the kernel connected the socket with itself")]
    WithItself,
    /// Anything else.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ConnectError {
    /// A stable label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::TupleInUse | Self::Call(_) => "connect_failed",
            Self::PortHeld => "client_port_held",
            Self::WithItself => "connected_with_itself",
        }
    }
}

/// What to do about a tuple or a port that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterConflict {
    /// Try the same again after [`CONFLICT_RETRY`].
    Retry,
    /// Keep the client's address and leave the port to the kernel.
    AnyPort,
    /// Refuse the session.
    GiveUp,
}

impl AfterConflict {
    /// After `error`, and after `retries` for `route`, all in vain. `None`: it is not about a port.
    #[must_use]
    pub fn of(error: &ConnectError, route: &Route, retries: u8) -> Option<Self> {
        let most = match error {
            // A local sender that is its own client is using this tuple now: waiting would not free it.
            ConnectError::TupleInUse if route.origin == Origin::Header => CONFLICT_RETRIES,
            ConnectError::TupleInUse | ConnectError::PortHeld => 0,
            ConnectError::WithItself | ConnectError::Call(_) => return None,
        };
        if retries < most {
            return Some(Self::Retry);
        }
        Some(match route.on_conflict {
            OnConflict::Ephemeral => Self::AnyPort,
            OnConflict::Refuse => Self::GiveUp,
        })
    }
}

/// Makes a non-blocking socket and begins to connect it; a connection in progress is no error.
///
/// # Errors
/// [`ConnectError::TupleInUse`] or [`ConnectError::PortHeld`] if the client's tuple or port is taken; else what failed.
pub fn connect_as(upstream: &Upstream) -> Result<OwnedFd, ConnectError> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(upstream.backend), kind, None).named("socket")?;
    best_effort(socket.set_tcp_nodelay(true).named("setsockopt(TCP_NODELAY)"))?;
    best_effort(socket.set_out_of_band_inline(true).named("setsockopt(SO_OOBINLINE)"))?;
    if upstream.mark != 0 {
        best_effort(socket::set_mark(socket.as_fd(), upstream.mark))?;
    }
    if let Some(source) = upstream.source {
        bind_as(&socket, source)?;
    }
    match socket.connect(&upstream.backend.into()).named("connect") {
        Ok(()) | Err(CallError { errno: Errno::INPROGRESS, .. }) => {
            refuse_itself(socket.as_fd(), upstream)?;
            Ok(socket.into())
        }
        // connect(2): the tuple exists already, or no port is left that would make a new one.
        Err(CallError { errno: Errno::ADDRNOTAVAIL | Errno::ADDRINUSE, .. }) => Err(ConnectError::TupleInUse),
        Err(error) => Err(error.into()),
    }
}

fn bind_as(socket: &Socket, source: SocketAddr) -> Result<(), ConnectError> {
    best_effort(socket::set_transparent(socket.as_fd(), source))?;
    if source.port() == 0 {
        // Linux before 4.2 reserves a port at bind(): there are fewer ports, but it works.
        let _ = socket::set_bind_address_no_port(socket.as_fd());
    } else {
        // Several backends may be reached from one client port, and a port in TIME_WAIT may be used again.
        best_effort(socket.set_reuse_address(true).named("setsockopt(SO_REUSEADDR)"))?;
    }
    match socket.bind(&source.into()).named("bind") {
        Err(CallError { errno: Errno::ADDRINUSE, .. }) if source.port() == 0 => Err(ConnectError::TupleInUse),
        // Linux's inet_bind_conflict(): a socket in LISTEN without an address conflicts with every one.
        Err(CallError { errno: Errno::ADDRINUSE, .. }) => {
            socket::bind_beside_listeners(socket.as_fd(), source).map_err(|_| ConnectError::PortHeld)
        }
        bound => Ok(bound?),
    }
}

/// Where the kernel chose the port, it may have chosen the backend's own, if nothing listens there: such a TCP socket is
/// connected with itself (a simultaneous open), a UDP socket hears itself, and the client hears its own echo.
///
/// # Errors
/// [`ConnectError::WithItself`]; the socket must be dropped.
pub fn refuse_itself(socket: BorrowedFd<'_>, upstream: &Upstream) -> Result<(), ConnectError> {
    // Of a source that is given whole, the policy says the same beforehand.
    if upstream.source.is_some_and(|source| source.port() != 0) {
        return Ok(());
    }
    let backend = upstream.backend;
    let is_there = |local: SocketAddr| {
        local.port() == backend.port()
            && (local.ip() == backend.ip() || (backend.ip().is_unspecified() && local.ip().is_loopback()))
    };
    match socket::local_address(socket) {
        Ok(local) if is_there(local) => Err(ConnectError::WithItself),
        _ => Ok(()),
    }
}

/// Ignores that a network stack in user space doesn't know an option. Other errors (EPERM from the kernel) are returned.
fn best_effort(set: Result<(), CallError>) -> Result<(), CallError> {
    match set {
        Err(CallError { errno: Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::NOSYS, .. }) => Ok(()),
        set => set,
    }
}
