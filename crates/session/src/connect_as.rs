//! Connects to backends, from the client's address if one is given.
//!
//! All system calls go through libc, and options that a network stack in user space doesn't support are
//! skipped. So such a stack can replace the kernel's.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use truepeer_policy::{OnConflict, Origin, Route};
use truepeer_sys::{CallError, Named as _, socket};

use crate::reason::Reason;

/// The delay between attempts to bind the client's own tuple. Its earlier connection may be closing.
pub const CONFLICT_RETRY: Duration = Duration::from_millis(20);
const CONFLICT_RETRIES: u8 = 2;
/// The delay between attempts while no route leads to the backend: programs that rewrite rules remove them
/// first. It is longer, because all sessions towards that backend wait at once.
pub const ROUTE_RETRY: Duration = Duration::from_millis(250);

/// The parameters of an upstream socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upstream {
    /// The source address; `None` leaves address and port to the kernel (`--send-proxy`).
    pub source: Option<SocketAddr>,
    /// The backend.
    pub backend: SocketAddr,
    /// The firewall mark of its packets; 0: none.
    pub mark: u32,
    /// The MTU of the sender's path. Segments of both directions fit through it, because packets of a
    /// session that leaves user space pass both paths.
    pub path_mtu: Option<u32>,
}

/// The smallest path MTU that truepeer believes: IPv6's minimum (RFC 8200, 5). One forged ICMP error makes
/// the kernel believe 552 for ten minutes, and backends would send tiny segments. A session with a narrower
/// path stays in user space.
pub const LEAST_PATH_MTU: u32 = 1280;

impl Upstream {
    /// The parameters for `route`.
    #[must_use]
    pub fn of(route: &Route, mark: u32) -> Self {
        Self { source: route.source, backend: route.backend.get(), mark, path_mtu: None }
    }

    /// Lets segments fit through a path of this MTU, or of [`LEAST_PATH_MTU`].
    #[must_use]
    pub fn through(mut self, path_mtu: Option<u32>) -> Self {
        self.path_mtu = path_mtu.map(|mtu| mtu.max(LEAST_PATH_MTU));
        self
    }

    /// Takes any port of the same address.
    #[must_use]
    pub fn from_any_port(mut self) -> Self {
        if let Some(source) = &mut self.source {
            source.set_port(0);
        }
        self
    }
}

/// Why an upstream socket could not be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The tuple (source address and port, backend address and port) is in use.
    #[error("the client's address and port are in use on this machine")]
    TupleInUse,
    /// A program on this host has a socket with the client's port, on the client's address or on a wildcard
    /// address.
    #[error("a program on this host holds the client's port (it listens on it on every address)")]
    PortHeld,
    /// The kernel chose the backend's own address and port, which only happens if nothing listens there.
    #[error("nothing listens on the backend's port, and the kernel connected the socket to itself")]
    WithItself,
    /// The kernel has no route to the backend, or one that refuses (`unreachable`).
    #[error(transparent)]
    NoRoute(CallError),
    /// Another system call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ConnectError {
    /// Why connect(2) has failed at once. The same error later comes from the network.
    #[must_use]
    pub fn at_once(error: CallError) -> Self {
        match error.errno {
            // connect(2): the tuple exists already, or no port is left for a new one.
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => Self::TupleInUse,
            Errno::NETUNREACH | Errno::HOSTUNREACH => Self::NoRoute(error),
            _ => error.into(),
        }
    }

    /// What to do about it, to append to the error; empty: nothing is known.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        let call = match self {
            Self::Call(call) | Self::NoRoute(call) => call,
            Self::TupleInUse => {
                return "; does this client connect through this machine twice?";
            }
            Self::PortHeld => {
                return "; give truepeer CAP_NET_ADMIN to share the port";
            }
            Self::WithItself => return "; is the backend running?",
        };
        match (call.call, call.errno) {
            (name, Errno::PERM) if name.contains("TRANSPARENT") || name.contains("MARK") => {
                "; give truepeer CAP_NET_RAW or CAP_NET_ADMIN, or run it as root"
            }
            ("bind" | "socket", Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {
                "; is IPv6 disabled on this machine?"
            }
            ("bind", Errno::ACCESS) => "; a client's port below 1024 needs CAP_NET_BIND_SERVICE or root",
            ("connect", Errno::CONNREFUSED) => {
                "; is the backend listening there? If so, a firewall refuses this client, as the bans of \
                fail2ban do"
            }
            _ => "",
        }
    }

    /// As it is counted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::TupleInUse | Self::NoRoute(_) | Self::Call(_) => Reason::ConnectFailed,
            Self::PortHeld => Reason::PortHeld,
            Self::WithItself => Reason::WithItself,
        }
    }
}

/// What to do when a tuple or port is in use, or no route leads to the backend at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterConflict {
    /// Try again after [`CONFLICT_RETRY`].
    Retry,
    /// Try again every [`ROUTE_RETRY`], within the time to connect. Not counted as a retry.
    AwaitRoute,
    /// Keep the client's address and let the kernel choose the port.
    AnyPort,
    /// Refuse the session.
    GiveUp,
}

impl AfterConflict {
    /// The next step after `error` and `retries` failed attempts for `route`. `None`: another attempt would
    /// fail, too.
    #[must_use]
    pub fn of(error: &ConnectError, route: &Route, retries: u8) -> Option<Self> {
        let most = match error {
            // A local sender that is its own client is using this tuple now, so waiting doesn't help.
            ConnectError::TupleInUse if route.origin == Origin::Header => CONFLICT_RETRIES,
            ConnectError::TupleInUse | ConnectError::PortHeld => 0,
            ConnectError::NoRoute(_) => return Some(Self::AwaitRoute),
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

/// Creates a non-blocking socket and starts to connect it. A connection in progress is not an error.
///
/// # Errors
/// [`ConnectError::TupleInUse`] or [`ConnectError::PortHeld`] if the client's tuple or port is in use,
/// otherwise the failed system call.
pub fn connect_as(upstream: &Upstream) -> Result<OwnedFd, ConnectError> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(upstream.backend), kind, None).named("socket")?;
    best_effort(socket.set_tcp_nodelay(true).named("setsockopt(TCP_NODELAY)"))?;
    best_effort(socket.set_out_of_band_inline(true).named("setsockopt(SO_OOBINLINE)"))?;
    if upstream.mark != 0 {
        best_effort(socket::set_mark(socket.as_fd(), upstream.mark))?;
    }
    if let Some(mtu) = upstream.path_mtu {
        best_effort(socket::limit_segments(socket.as_fd(), mtu, upstream.backend.is_ipv4()))?;
    }
    if let Some(source) = upstream.source {
        bind_as(&socket, source)?;
    }
    match socket.connect(&upstream.backend.into()).named("connect") {
        Ok(()) | Err(CallError { errno: Errno::INPROGRESS, .. }) => {
            refuse_itself(socket.as_fd(), upstream)?;
            Ok(socket.into())
        }
        Err(error) => Err(ConnectError::at_once(error)),
    }
}

fn bind_as(socket: &Socket, source: SocketAddr) -> Result<(), ConnectError> {
    best_effort(socket::set_transparent(socket.as_fd(), source))?;
    if source.port() == 0 {
        // Linux before 4.2 lacks the option and reserves a port at bind(). Fewer ports are available then.
        let _ = socket::set_bind_address_no_port(socket.as_fd());
    } else {
        // Several backends may be reached from one client port, and a port in TIME_WAIT may be reused.
        best_effort(socket.set_reuse_address(true).named("setsockopt(SO_REUSEADDR)"))?;
    }
    match socket.bind(&source.into()).named("bind") {
        Err(CallError { errno: Errno::ADDRINUSE, .. }) if source.port() == 0 => Err(ConnectError::TupleInUse),
        // Linux's inet_bind_conflict(): a listening socket on a wildcard address conflicts with every
        // address.
        Err(CallError { errno: Errno::ADDRINUSE, .. }) => {
            socket::bind_beside_listeners(socket.as_fd(), source).map_err(|_| ConnectError::PortHeld)
        }
        bound => Ok(bound?),
    }
}

/// If the kernel chose the port, it may have chosen the backend's own, if nothing listens there. Such a TCP
/// socket is connected to itself (a simultaneous open), and a UDP socket receives its own datagrams: the
/// client would get its own bytes back.
///
/// # Errors
/// [`ConnectError::WithItself`]; the socket must be dropped.
pub fn refuse_itself(socket: BorrowedFd<'_>, upstream: &Upstream) -> Result<(), ConnectError> {
    // If the source has a port, the policy checks this beforehand.
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

/// Ignores the error of a network stack in user space that doesn't support an option. Other errors (EPERM
/// from the kernel) are returned.
fn best_effort(set: Result<(), CallError>) -> Result<(), CallError> {
    match set {
        Err(CallError { errno: Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::NOSYS, .. }) => Ok(()),
        set => set,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// The segments that a backend sends to a sender whose path seems to have this MTU.
    fn segments_through(path_mtu: u32) -> u32 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let backend = listener.local_addr().expect("its address");
        let upstream = Upstream { source: None, backend, mark: 0, path_mtu: None }.through(Some(path_mtu));
        let _ours = TcpStream::from(connect_as(&upstream).expect("a connection"));
        let (accepted, _) = listener.accept().expect("a connection");
        socket2::SockRef::from(&accepted).tcp_mss().expect("TCP_MAXSEG")
    }

    #[test]
    fn advice_belongs_to_the_call_that_failed() {
        let rows = [
            ("setsockopt(IP_TRANSPARENT)", libc::EPERM, "CAP_NET_RAW or CAP_NET_ADMIN, or run it as root"),
            ("setsockopt(SO_MARK)", libc::EPERM, "CAP_NET_RAW or CAP_NET_ADMIN, or run it as root"),
            ("socket", libc::EAFNOSUPPORT, "is IPv6 disabled"),
            ("bind", libc::EADDRNOTAVAIL, "is IPv6 disabled"),
            ("bind", libc::EACCES, "a client's port below 1024 needs CAP_NET_BIND_SERVICE"),
            ("connect", libc::ECONNREFUSED, "is the backend listening there?"),
        ];
        let failed =
            |call, errno| ConnectError::Call(CallError { call, errno: Errno::from_raw_os_error(errno) });
        for (call, errno, expected) in rows {
            let advice = failed(call, errno).advice();
            assert!(advice.starts_with("; ") && advice.contains(expected), "{call}: {advice}");
        }
        assert_eq!(failed("connect", libc::EACCES).advice(), "");
        assert_eq!(failed("bind", libc::EPERM).advice(), "");
        assert!(ConnectError::PortHeld.advice().contains("CAP_NET_ADMIN"));
        assert!(ConnectError::TupleInUse.advice().contains("twice"));
    }

    #[test]
    fn the_kernel_may_not_choose_the_backends_own_port() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let local = listener.local_addr().expect("its address");
        let refused = |source, backend| {
            refuse_itself(listener.as_fd(), &Upstream { source, backend, mark: 0, path_mtu: None }).is_err()
        };
        let any_port = SocketAddr::new(local.ip(), 0);
        let unspecified = SocketAddr::new([0, 0, 0, 0].into(), local.port());
        let other_port = SocketAddr::new(local.ip(), local.port() ^ 1);
        assert!(refused(None, local));
        assert!(refused(Some(any_port), local));
        assert!(refused(None, unspecified));
        assert!(!refused(None, other_port));
        assert!(!refused(None, SocketAddr::new([127, 0, 0, 2].into(), local.port())));
        // The policy has checked a port that the client named.
        assert!(!refused(Some(local), local));
    }

    #[test]
    fn only_options_that_a_stack_lacks_are_skipped() {
        let set = |errno| best_effort(Err(CallError { call: "setsockopt", errno }));
        for lacking in [Errno::OPNOTSUPP, Errno::NOPROTOOPT, Errno::NOSYS] {
            assert!(set(lacking).is_ok(), "{lacking}");
        }
        assert!(set(Errno::PERM).is_err());
    }

    #[test]
    fn a_path_that_seems_tiny_makes_no_tiny_segments() {
        // Without 12 bytes of timestamps.
        assert!((1280 - 60..=1280 - 40).contains(&segments_through(552)), "{}", segments_through(552));
        assert!((1400 - 60..=1400 - 40).contains(&segments_through(1400)), "{}", segments_through(1400));
    }
}
