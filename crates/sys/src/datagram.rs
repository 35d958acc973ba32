//! One datagram on a unix socket, with the descriptors that it passes and the process that sent it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

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
const CONTROL_ROOM: usize = CMSGHDR + UCRED.next_multiple_of(8) + CMSGHDR + MOST_DESCRIPTORS * DESCRIPTOR + 4;

/// Receives one datagram of at most `room` bytes. Never blocks.
///
/// # Errors
/// Those of recvmsg(2): EAGAIN if there is no datagram. EMSGSIZE if it, or what it passes, was cut.
pub fn receive_from_process(socket: BorrowedFd<'_>, room: usize) -> Result<ProcessMessage, Errno> {
    let (mut bytes, mut control) = (vec![0_u8; room], [0_u8; CONTROL_ROOM]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr consists of integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _; // musl has other integers than glibc here
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: each pointer and its length describe a whole local buffer that outlives the call; the kernel
    // writes only there.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    bytes.truncate(usize::try_from(length).map_err(|_| last_errno())?);
    let (mut sender, mut descriptors) = (None, Vec::new());
    let written: usize = message.msg_controllen as _;
    let mut rest = &control[..written];
    while let Some((header, _)) = rest.split_at_checked(CMSGHDR) {
        let length = rest[..8].try_into().map_or(0, u64::from_ne_bytes);
        let length = usize::try_from(length).unwrap_or(0).clamp(CMSGHDR, rest.len());
        let data = &rest[CMSGHDR..length];
        match (int(&header[8..]), int(&header[12..])) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                // SAFETY: OwnedFd requires an open descriptor without another owner. The kernel has just
                // created these for this process in recvmsg(2), and `control` is dropped here without being
                // shown to anyone.
                let own = data.chunks_exact(DESCRIPTOR).map(|fd| unsafe { OwnedFd::from_raw_fd(int(fd)) });
                descriptors.extend(own);
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => sender = Some(int(data)).filter(|pid| *pid > 0),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(Errno::MSGSIZE);
    }
    Ok(ProcessMessage { bytes, sender, descriptors })
}

/// Sends one datagram on a connected socket, and passes descriptors (SCM_RIGHTS). Never blocks.
///
/// # Errors
/// Those of sendmsg(2): EAGAIN if the receiver's queue is full. EMSGSIZE for more descriptors than the kernel
/// passes.
pub fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[OwnedFd],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

fn int(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
