//! `connect()`: the header is sent before anything that the program writes.
//!
//! The header is passed to the kernel together with the connection (MSG_FASTOPEN). The kernel sends it with
//! the SYN, or as the first data once connected. So it is in the send queue before the program knows of the
//! connection, even if connect() doesn't block, or is ended by a signal or by SO_SNDTIMEO. Where the kernel
//! doesn't support that, the program must block until the header is sent.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, connect_unspec, send, sockopt};
use truepeer_handover::{ConnectSettings, OutgoingHeader};
use truepeer_sys::marked::{connect, getsockname, sendto};

use crate::say;

/// Without support in the kernel (net.ipv4.tcp_fastopen without 1), the longest time that the program may
/// have to block.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Whether this connection is to begin with a header.
pub(crate) fn is_meant(socket: BorrowedFd<'_>, to: SocketAddr, sending: &ConnectSettings) -> bool {
    let is_tcp = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    is_tcp && sending.is_told(to) && !is_under_way(socket)
}

/// A second connect() on the same socket only asks for the result of the first.
fn is_under_way(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: TCP_INFO fills at most as many bytes as the length says, which is that of the local; its first
    // byte is the state.
    let state = unsafe {
        let mut info = [0_u8; 8];
        let mut len: libc::socklen_t = 8;
        let answer = libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        );
        if answer == 0 { info[0] } else { TCP_CLOSE }
    };
    state != TCP_CLOSE
}

/// `enum tcp_state`: neither connected nor connecting.
const TCP_CLOSE: u8 = 7;

/// Connects as connect(2) does.
///
/// # Errors
/// Those of connect(2); those of send(2) if the header can't be sent.
pub(crate) fn connect_telling(
    socket: BorrowedFd<'_>,
    to: SocketAddr,
    sending: &ConnectSettings,
) -> Result<(), Errno> {
    if sending.from.is_none() {
        take_an_address(socket, to)?;
    }
    let opening = opening(socket, to, sending)?;
    match send_with_syn(socket, to, opening.bytes()) {
        Ok(()) if fcntl_getfl(socket)?.contains(OFlags::NONBLOCK) => Err(Errno::INPROGRESS),
        Ok(()) => wait(socket, to),
        Err(Errno::OPNOTSUPP | Errno::INPROGRESS | Errno::ALREADY) => connect_and_wait(socket, to, &opening),
        Err(error) => Err(error),
    }
}

/// Waits for a connection in progress, as the kernel does within connect().
fn wait(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    match connect(socket, to) {
        Err(Errno::ISCONN) => Ok(()),
        // The first call would have reported it.
        Err(Errno::ALREADY) => Err(Errno::INPROGRESS),
        answer => answer,
    }
}

fn opening(
    socket: BorrowedFd<'_>,
    to: SocketAddr,
    sending: &ConnectSettings,
) -> Result<OutgoingHeader, Errno> {
    let own = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    if let Some(path) = sending.unread() {
        say::always(format_args!("{to}: not connected: {} could not be read", path.display()));
        return Err(Errno::ACCESS);
    }
    let opening = sending.opening(own, to).map_err(|_| Errno::INVAL)?;
    say::in_detail(format_args!("{to}: told of {}", sending.from.unwrap_or(own)));
    Ok(opening)
}

/// The header contains the local address. Without bind() the socket gets one only when it connects.
fn take_an_address(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    if bound.port() != 0 && !bound.ip().is_unspecified() {
        return Ok(());
    }
    let domain = sockopt::socket_domain(socket)?;
    let probe = rustix::net::socket(domain, SocketType::DGRAM, None)?;
    connect(probe.as_fd(), to)?;
    let route = SocketAddr::try_from(getsockname(probe.as_fd())?).map_err(|_| Errno::AFNOSUPPORT)?;
    bind(socket, &SocketAddr::new(route.ip(), bound.port()))
}

fn send_with_syn(socket: BorrowedFd<'_>, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let fastopen = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.unsigned_abs());
    // SAFETY: the option takes one c_int; pointer and length name exactly that local.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_FASTOPEN_NO_COOKIE,
            (&raw const on).cast(),
            4,
        )
    };
    if set != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = fastopen | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendto(socket, bytes, flags, to)? {
        sent if sent == bytes.len() => Ok(()),
        // A segment has always room for a header.
        _ => Err(Errno::MSGSIZE),
    }
}

/// linux/tcp.h, since Linux 4.15.
const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;

fn connect_and_wait(socket: BorrowedFd<'_>, to: SocketAddr, opening: &OutgoingHeader) -> Result<(), Errno> {
    match retry_on_intr(|| connect(socket, to)) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::ALREADY | Errno::ISCONN) => {
            let limit = Timespec::try_from(CONNECT_LIMIT).map_err(|_| Errno::INVAL)?;
            let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
            if retry_on_intr(|| poll(&mut fds, Some(&limit)))? == 0 {
                // Reset it: a connection must not start with anything but the header.
                connect_unspec(socket)?;
                return Err(Errno::TIMEDOUT);
            }
            sockopt::socket_error(socket)??;
        }
        Err(error) => return Err(error),
    }
    send_all(socket, opening)
}

fn send_all(socket: BorrowedFd<'_>, opening: &OutgoingHeader) -> Result<(), Errno> {
    let mut left = opening.bytes();
    while !left.is_empty() {
        let sent = retry_on_intr(|| send(socket, left, SendFlags::NOSIGNAL))?;
        left = left.get(sent..).unwrap_or_default();
    }
    Ok(())
}
