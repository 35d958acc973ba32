//! `truepeer connect --udp-dialect`: adds a header to the program's datagrams, and removes it from answers
//! that carry it back.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use truepeer_handover::{ConnectSettings, Datagrams, Send, SendRequest, now, sends_datagrams};

use crate::role::role;

fn telling() -> Option<(&'static ConnectSettings, &'static Datagrams)> {
    let role = role()?;
    Some((role.sending.as_ref()?, role.datagrams.as_ref()?))
}

/// Whether datagrams from this socket may need a header.
pub(crate) fn is_meant(socket: BorrowedFd<'_>) -> bool {
    telling().is_some() && sends_datagrams(socket)
}

/// Whether datagrams that this socket receives may carry a header.
pub(crate) fn is_carried_back(socket: BorrowedFd<'_>) -> bool {
    telling().is_some_and(|(_, datagrams)| datagrams.is_carried_back()) && sends_datagrams(socket)
}

/// A receiving call has reported that this socket's last datagram found no receiver.
pub(crate) fn on_refused(socket: BorrowedFd<'_>) {
    if let Some((_, datagrams)) = telling().filter(|(_, datagrams)| datagrams.has_flows())
        && sends_datagrams(socket)
    {
        datagrams.on_refused(socket);
    }
}

/// Sends a message with its header and returns how many of the program's own bytes were sent. `None` if it
/// needs no header: then nothing was sent.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &SendRequest<'_>,
    send: Send<'_>,
) -> Option<Result<usize, Errno>> {
    let (sending, datagrams) = telling()?;
    datagrams.send(socket, message, sending, now(), send).transpose()
}

/// Whether the received bytes start with this socket's header.
pub(crate) fn carries_ours(socket: BorrowedFd<'_>, from: Option<SocketAddr>, start: &[u8]) -> bool {
    telling().is_some_and(|(sending, datagrams)| datagrams.carries_ours(socket, from, start, sending))
}
