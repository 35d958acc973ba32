//! `getpeername()` and `getsockname()`: who a connection's client is, and what it connected to.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname, sockopt};
use truepeer_handover::{Destination, Name};

use crate::role::Accepting;

/// The client, if the connection has one by name; `None`: the kernel's answer holds.
///
/// # Errors
/// What getpeername(2) says: a connection that was reset has no peer any more.
pub(crate) fn client(socket: BorrowedFd<'_>, role: &Accepting) -> Result<Option<SocketAddr>, Errno> {
    match name(socket, role) {
        Some(name) => getpeername(socket).map(|_| Some(name.client)),
        None => Ok(None),
    }
}

/// What the client connected to, where that is asked for.
///
/// # Errors
/// What getsockname(2) says.
pub(crate) fn destination(socket: BorrowedFd<'_>, role: &Accepting) -> Result<Option<SocketAddr>, Errno> {
    if role.rules.destination == Destination::Socket {
        return Ok(None);
    }
    match name(socket, role).and_then(|name| name.destination) {
        Some(destination) => getsockname(socket).map(|_| Some(destination)),
        None => Ok(None),
    }
}

fn name(socket: BorrowedFd<'_>, role: &Accepting) -> Option<Name> {
    role.family.names.find(sockopt::socket_cookie(socket).ok()?)
}
