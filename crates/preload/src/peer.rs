//! `getpeername()` and `getsockname()`: a connection's client, and the address that it connected to.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt;
use truepeer_handover::{Destination, Name};
use truepeer_sys::marked::{getpeername, getsockname};

use crate::role::Accepting;

/// The client, if the connection has a name; `None`: the kernel's answer is right.
///
/// # Errors
/// Those of getpeername(2): a connection that was reset has no peer.
pub(crate) fn client(socket: BorrowedFd<'_>, role: &Accepting) -> Result<Option<SocketAddr>, Errno> {
    match name(socket, role) {
        Some(name) => getpeername(socket).map(|_| Some(name.client)),
        None => Ok(None),
    }
}

/// The address that the client connected to, if the settings ask for it.
///
/// # Errors
/// Those of getsockname(2).
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
