//! `sendto()` and its kin: each datagram that is meant gets a header in front (`truepeer connect --udp-dialect every`).

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use truepeer_handover::{Opening, asks_for_segments, header_of_datagram, sends_datagrams};

use crate::role::role;

/// Whether anything may have to be put before what this socket sends.
pub(crate) fn is_meant(socket: BorrowedFd<'_>) -> bool {
    role().and_then(|role| role.sending.as_ref()).is_some_and(|sending| sending.datagrams)
        && sends_datagrams(socket)
}

/// What goes before a datagram to `to`, or to where the socket is connected; `None` if it goes as it is.
///
/// # Errors
/// What the call must fail with: EIO if its control data asks for several datagrams at once.
pub(crate) fn header(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    control: &[u8],
) -> Result<Option<Opening>, Errno> {
    let Some(sending) = role().and_then(|role| role.sending.as_ref()) else { return Ok(None) };
    let Some(opening) = header_of_datagram(socket, to, sending)? else { return Ok(None) };
    if asks_for_segments(control) {
        return Err(Errno::IO);
    }
    Ok(Some(opening))
}
