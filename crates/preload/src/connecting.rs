//! `connect()`: the header goes first, whoever writes afterwards.
//!
//! It is given to the kernel together with the connection (MSG_FASTOPEN), which sends it with the SYN, or as the first data
//! once it is connected. So it is in the queue before the program knows of the connection: one that may not wait, or whose
//! waiting is ended by a signal or by SO_SNDTIMEO. Where the kernel won't take it along, the program has to wait until it is
//! sent.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendFlags, SocketType, bind, connect, connect_unspec, getsockname, send, sockopt,
};
use truepeer_handover::{ConnectSettings, OutgoingHeader};
use truepeer_proto::Transport;

use crate::say;

/// Where the kernel can't take the header along (net.ipv4.tcp_fastopen without 1): how long the program may have to wait.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Whether this connection is to begin with a header.
pub(crate) fn is_meant(socket: BorrowedFd<'_>, to: SocketAddr, sending: &ConnectSettings) -> bool {
    let is_tcp = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    is_tcp && sending.is_told(to) && !is_under_way(socket)
}

/// A second connect() on the same socket only asks how the first one went.
fn is_under_way(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: TCP_INFO fills at most as many bytes as the length says, which is that of the local; its first byte is the state.
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

/// `enum tcp_state`: not connected, nor about to be.
const TCP_CLOSE: u8 = 7;

/// Connects as connect(2) does.
///
/// # Errors
/// Those of connect(2); where the header can't be sent, what send(2) says.
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

/// Waits for a connection that has begun, as the kernel does within connect().
fn wait(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    match connect(socket, &to) {
        Err(Errno::ISCONN) => Ok(()),
        // The first call would have said so.
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
    let opening = sending.opening(own, to, Transport::Stream).map_err(|_| Errno::INVAL)?;
    say::in_detail(format_args!("{to}: told of {}", sending.from.unwrap_or(own)));
    Ok(opening)
}

/// The header names the connection's own address, which it would have only afterwards.
fn take_an_address(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    if bound.port() != 0 && !bound.ip().is_unspecified() {
        return Ok(());
    }
    let domain = sockopt::socket_domain(socket)?;
    let probe = rustix::net::socket(domain, SocketType::DGRAM, None)?;
    connect(&probe, &to)?;
    let route = SocketAddr::try_from(getsockname(&probe)?).map_err(|_| Errno::AFNOSUPPORT)?;
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
    match rustix::net::sendto(socket, bytes, flags, &to)? {
        sent if sent == bytes.len() => Ok(()),
        // No segment is shorter than a header.
        _ => Err(Errno::MSGSIZE),
    }
}

/// linux/tcp.h, since Linux 4.15.
const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;

fn connect_and_wait(socket: BorrowedFd<'_>, to: SocketAddr, opening: &OutgoingHeader) -> Result<(), Errno> {
    match retry_on_intr(|| connect(socket, &to)) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::ALREADY | Errno::ISCONN) => {
            let limit = Timespec::try_from(CONNECT_LIMIT).map_err(|_| Errno::INVAL)?;
            let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
            if retry_on_intr(|| poll(&mut fds, Some(&limit)))? == 0 {
                // Broken off: there must be no connection that begins with something else.
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
