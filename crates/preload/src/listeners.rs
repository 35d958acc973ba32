//! Listening sockets: made ready for headers when the program listens, or when it first accepts on one that it inherited.

use core::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketType, getsockname, sockopt};
use truepeer_handover::{ELSEWHERE, RunRules, is_elsewhere};

use crate::ours::FdSet;
use crate::say;

/// Those that have been made ready, by descriptor. One that is closed is forgotten; one whose number is given to another
/// without our notice is not made ready, so that its connections are handed over later, not wrongly.
static SEEN: FdSet = FdSet::new();

/// As long a queue as the machine permits (net.core.somaxconn): silent connections wait in it, too.
pub(crate) const BACKLOG: i32 = 65_535;
/// The kernel gives a connection to accept() when its first data comes, or after about so many seconds.
const DEFER_SECONDS: libc::c_int = 1;

/// Whether a socket is, or will be, one of the listeners that are meant.
pub(crate) fn is_meant(socket: BorrowedFd<'_>, rules: &RunRules) -> bool {
    let is_tcp = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    // A listener on all addresses may have connections that are meant by their own.
    let may_be = |local: SocketAddr| {
        local.ip().is_unspecified()
            && rules.listeners.addresses.iter().any(|meant| meant.port() == local.port())
    };
    is_tcp
        && (rules.listeners.all()
            || local(socket).is_some_and(|local| rules.listeners.has(local) || may_be(local)))
}

/// The address that a socket is bound to.
pub(crate) fn local(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(socket).ok()?).ok()
}

/// Lets connections wait in the kernel until their header is there.
pub(crate) fn make_ready(socket: BorrowedFd<'_>) {
    SEEN.insert(socket.as_raw_fd());
    // Where it fails (another protocol), connections come without their header and wait here.
    set_defer_accept(socket);
}

/// A listener that was not seen before: inherited, or passed on by the service manager.
pub(crate) fn on_first_accept(socket: BorrowedFd<'_>, rules: &RunRules) {
    let listens = || sockopt::socket_acceptconn(socket) == Ok(true);
    if SEEN.insert(socket.as_raw_fd()) && listens() && is_meant(socket, rules) {
        make_ready(socket);
        if is_elsewhere(socket) {
            say::always(format_args!("{ELSEWHERE}"));
        }
        let _ = rustix::net::listen(socket, BACKLOG);
    }
}

/// A descriptor was closed: the next one of that number is another.
pub(crate) fn forget(fd: i32) {
    SEEN.remove(fd);
}

/// Whether a descriptor is known as a listener's.
pub(crate) fn is_seen(fd: i32) -> bool {
    SEEN.has(fd)
}

fn set_defer_accept(socket: BorrowedFd<'_>) {
    let seconds = DEFER_SECONDS;
    // SAFETY: the option takes one c_int; pointer and length name exactly that local.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            4,
        )
    };
}
