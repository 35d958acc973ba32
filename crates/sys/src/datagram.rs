//! Sends and receives one datagram on another process's socket, with its name and control data (cmsg(3)) in that
//! process's layout.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Sends one datagram with control data (cmsg(3)) that another process has laid out, to `to` or to the connected
/// address. Never blocks.
///
/// # Errors
/// Those of sendmsg(2): EAGAIN if the socket's buffer is full, EINVAL for invalid control data.
pub fn send_datagram(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    bytes: &[u8],
    control: &[u8],
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let to = to.map(socket2::SockAddr::from);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr consists of integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(to) = &to {
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
    }
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !control.is_empty() {
        message.msg_control = control.as_ptr().cast_mut().cast();
        message.msg_controllen = control.len() as _; // musl has other integers than glibc here
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: each pointer and its length describe a whole borrowed value that outlives the call, which only
    // reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// A received datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// As much of it as fits.
    pub bytes: Vec<u8>,
    /// The result of recvmsg(2): the whole length, if MSG_TRUNC was given.
    pub length: usize,
    /// struct sockaddr of the sender.
    pub name: Vec<u8>,
    /// Control data.
    pub control: Vec<u8>,
    /// `msg_flags`.
    pub flags: libc::c_int,
}

/// Receives one datagram with recvmsg(2)'s flags, with room for this many bytes of data and of control data.
/// Never blocks.
///
/// # Errors
/// Those of recvmsg(2): EAGAIN if there is no datagram.
pub fn receive_datagram(
    socket: BorrowedFd<'_>,
    room: usize,
    control_room: usize,
    flags: libc::c_int,
) -> Result<ReceivedMessage, Errno> {
    let (mut bytes, mut control) = (vec![0_u8; room], vec![0_u8; control_room]);
    let mut name = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr consists of integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = libc::socklen_t::try_from(name.len()).unwrap_or(0);
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: each pointer and its length describe a whole local buffer that outlives the call; the kernel writes
    // only there.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags | libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| last_errno())?;
    bytes.truncate(length);
    let written: usize = message.msg_controllen as _;
    control.truncate(written);
    let named = name.len().min(message.msg_namelen as usize);
    Ok(ReceivedMessage { bytes, length, name: name[..named].to_vec(), control, flags: message.msg_flags })
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
