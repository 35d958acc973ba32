//! Sends and receives one datagram on another process's socket, with its name and control data (cmsg(3)) in
//! that process's layout; and one on a unix socket, with the descriptors that it passes.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// Sends one datagram with control data (cmsg(3)) that another process has laid out, to `to` or to the
/// connected address. Never blocks.
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
    // SAFETY: each pointer and its length describe a whole local buffer that outlives the call; the kernel
    // writes only there.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags | libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| last_errno())?;
    bytes.truncate(length);
    let written: usize = message.msg_controllen as _;
    control.truncate(written);
    let named = name.len().min(message.msg_namelen as usize);
    Ok(ReceivedMessage { bytes, length, name: name[..named].to_vec(), control, flags: message.msg_flags })
}

/// A datagram of a unix socket with SO_PASSCRED, and the process that sent it.
#[derive(Debug)]
pub struct ProcessMessage {
    /// The whole datagram.
    pub bytes: Vec<u8>,
    /// The sender's id in this process's namespace; `None` outside of it. It may have ended by now.
    pub sender: Option<i32>,
    /// Passed by SCM_RIGHTS, with FD_CLOEXEC.
    pub descriptors: Vec<OwnedFd>,
}

/// The kernel's SCM_MAX_FD.
const MOST_DESCRIPTORS: usize = 253;
/// struct cmsghdr of a 64-bit machine: a length of 8 bytes that includes itself, level and type.
const CMSGHDR: usize = 16;
const DESCRIPTOR: usize = size_of::<RawFd>();
const UCRED: usize = 12;

/// Receives one datagram of at most `room` bytes. Never blocks.
///
/// # Errors
/// Those of recvmsg(2): EAGAIN if there is no datagram. EMSGSIZE if it, or what it passes, was cut.
pub fn receive_from_process(socket: BorrowedFd<'_>, room: usize) -> Result<ProcessMessage, Errno> {
    let control_room = CMSGHDR + UCRED.next_multiple_of(8) + CMSGHDR + MOST_DESCRIPTORS * DESCRIPTOR + 4;
    let received = receive_datagram(socket, room, control_room, libc::MSG_CMSG_CLOEXEC)?;
    let (mut sender, mut descriptors) = (None, Vec::new());
    let mut rest = received.control.as_slice();
    while let Some((header, _)) = rest.split_at_checked(CMSGHDR) {
        let length = rest[..8].try_into().map_or(0, u64::from_ne_bytes);
        let length = usize::try_from(length).unwrap_or(0).clamp(CMSGHDR, rest.len());
        let data = &rest[CMSGHDR..length];
        match (int(&header[8..]), int(&header[12..])) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                // SAFETY: OwnedFd requires an open descriptor without another owner. The kernel has just
                // created these for this process in recvmsg(2), and `received` is dropped
                // here without being shown to anyone.
                let own = data.chunks_exact(DESCRIPTOR).map(|fd| unsafe { OwnedFd::from_raw_fd(int(fd)) });
                descriptors.extend(own);
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => sender = Some(int(data)).filter(|pid| *pid > 0),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    if received.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(Errno::MSGSIZE);
    }
    Ok(ProcessMessage { bytes: received.bytes, sender, descriptors })
}

/// Control data for [`send_datagram`] that passes descriptors (SCM_RIGHTS).
#[must_use]
pub fn rights(descriptors: &[OwnedFd]) -> Vec<u8> {
    if descriptors.is_empty() {
        return Vec::new();
    }
    let length = CMSGHDR + DESCRIPTOR * descriptors.len();
    let mut control = (length as u64).to_ne_bytes().to_vec();
    control.extend([libc::SOL_SOCKET, libc::SCM_RIGHTS].iter().flat_map(|number| number.to_ne_bytes()));
    control.extend(descriptors.iter().flat_map(|fd| fd.as_raw_fd().to_ne_bytes()));
    control.resize(length.next_multiple_of(8), 0);
    control
}

fn int(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
