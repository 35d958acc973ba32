//! What `truepeer connect --udp-dialect` does with a program's datagrams: a header before those that are meant, and off the
//! answers that carry it back.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use truepeer_handover::{ConnectSettings, Datagrams, Send, SendRequest, now, sends_datagrams};

use crate::role::role;

fn telling() -> Option<(&'static ConnectSettings, &'static Datagrams)> {
    let role = role()?;
    Some((role.sending.as_ref()?, role.datagrams.as_ref()?))
}

/// Whether anything may have to be put before what this socket sends.
pub(crate) fn is_meant(socket: BorrowedFd<'_>) -> bool {
    telling().is_some() && sends_datagrams(socket)
}

/// Whether anything may have to be taken off what this socket receives.
pub(crate) fn is_carried_back(socket: BorrowedFd<'_>) -> bool {
    telling().is_some_and(|(_, datagrams)| datagrams.is_carried_back()) && sends_datagrams(socket)
}

/// What this socket's last datagram came to was nobody, as a receiving call has heard.
pub(crate) fn on_refused(socket: BorrowedFd<'_>) {
    if let Some((_, datagrams)) = telling().filter(|(_, datagrams)| datagrams.has_flows())
        && sends_datagrams(socket)
    {
        datagrams.on_refused(socket);
    }
}

/// Sends a message with its header; `None` if it has none: nothing was sent then. How many of the program's own bytes went.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &SendRequest<'_>,
    send: Send<'_>,
) -> Option<Result<usize, Errno>> {
    let (sending, datagrams) = telling()?;
    datagrams.send(socket, message, sending, now(), send).transpose()
}

/// Whether what has come begins with the header that our datagrams have.
pub(crate) fn carries_ours(socket: BorrowedFd<'_>, from: Option<SocketAddr>, start: &[u8]) -> bool {
    telling().is_some_and(|(sending, datagrams)| datagrams.carries_ours(socket, from, start, sending))
}
