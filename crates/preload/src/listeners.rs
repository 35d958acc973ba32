//! Prepares listening sockets for headers: when the program calls listen(), or when it first accepts on an
//! inherited one.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketType, sockopt};
use truepeer_handover::{ELSEWHERE, ListenerAddr, RunRules, SocketId, is_elsewhere};
use truepeer_sys::marked::{getsockname, listen};
use truepeer_sys::segments::save_syn;
use truepeer_sys::socket::set_defer_accept;

use crate::ours::{self, FdSet};
use crate::say;

/// The prepared listeners, by descriptor. A closed one is forgotten. If a number is reused without our
/// notice, the new listener is not prepared: its connections are handed over later, but correctly.
static SEEN: FdSet = FdSet::new();

/// The largest backlog that the machine permits (net.core.somaxconn), because silent connections wait in the
/// queue, too.
pub(crate) const BACKLOG: i32 = 65_535;
/// With TCP_DEFER_ACCEPT the kernel gives a connection to accept() at its first data, or after about this
/// many seconds.
const DEFER: Duration = Duration::from_secs(1);

/// Whether a socket is, or will be, one of the listeners that are meant.
pub(crate) fn is_meant(socket: BorrowedFd<'_>, rules: &RunRules) -> bool {
    let is_tcp = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    is_tcp && (rules.listeners.all() || local(socket).is_some_and(|local| rules.listeners.may_have(local)))
}

/// The address that a socket is bound to.
pub(crate) fn local(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(socket).ok()?).ok()
}

/// Makes the kernel hold connections until their header is there, where each has one.
pub(crate) fn make_ready(socket: BorrowedFd<'_>, rules: &RunRules) {
    SEEN.insert(socket.as_raw_fd());
    if rules.listeners.all() || local(socket).is_some_and(|local| rules.listeners.has(local)) {
        // If it fails (another protocol), connections arrive without their header and wait in this library.
        let _ = set_defer_accept(socket, DEFER);
        if rules.has_optional {
            // If it fails (MPTCP), less is known about headers that come after the wait.
            let _ = save_syn(socket);
        }
    }
}

/// A listener that was not seen before: inherited, or passed on by the service manager.
pub(crate) fn on_first_accept(socket: BorrowedFd<'_>, rules: &RunRules) {
    let listens = || sockopt::socket_acceptconn(socket) == Ok(true);
    if SEEN.insert(socket.as_raw_fd()) && listens() && is_meant(socket, rules) {
        make_ready(socket, rules);
        if is_elsewhere(socket) {
            say::always(format_args!("{ELSEWHERE}"));
        }
        let _ = listen(socket, BACKLOG);
    }
}

/// The known listeners of this address, device and namespace, by descriptor.
pub(crate) fn at(address: ListenerAddr) -> impl Iterator<Item = (i32, SocketId)> {
    SEEN.members().filter_map(move |number| {
        let id = ours::inspect(number, |fd| {
            let listens = sockopt::socket_acceptconn(fd) == Ok(true) && ListenerAddr::of(fd) == Ok(address);
            if listens { SocketId::of(fd).ok() } else { None }
        })?;
        Some((number, id))
    })
}

/// A descriptor is about to be closed: its number will refer to something else.
pub(crate) fn forget(fd: i32) {
    SEEN.remove(fd);
}

/// The known listeners among these numbers.
pub(crate) fn seen_within(first: u32, last: u32) -> impl Iterator<Item = i32> {
    SEEN.members().filter(move |fd| (first..=last).contains(&fd.unsigned_abs()))
}

/// Whether a descriptor is known to be a listener.
pub(crate) fn is_seen(fd: i32) -> bool {
    SEEN.has(fd)
}
