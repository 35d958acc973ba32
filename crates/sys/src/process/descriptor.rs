//! Another process's descriptors.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Why a descriptor can't be duplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The process has no such descriptor (its own call would fail with EBADF).
    NoDescriptor,
    /// The thread has ended.
    NoThread,
    /// This process may not inspect the other one (EPERM), or has no free descriptors.
    Forbidden(Errno),
}

/// Duplicates descriptor `number` of the process of `thread`. A thread's id can be reused by another process
/// at any time, so check afterwards that it is still the same thread.
///
/// # Errors
/// See [`Reach`].
pub fn descriptor_of(thread: i32, number: i32) -> Result<OwnedFd, Reach> {
    if number < 0 {
        return Err(Reach::NoDescriptor);
    }
    let handle = handle_of(thread)?;
    pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()).map_err(|errno| match errno {
        Errno::BADF => Reach::NoDescriptor,
        Errno::SRCH => Reach::NoThread,
        errno => Reach::Forbidden(errno),
    })
}

fn handle_of(thread: i32) -> Result<OwnedFd, Reach> {
    let pid = Pid::from_raw(thread).ok_or(Reach::NoThread)?;
    // Linux 6.9: of the thread itself.
    match pidfd_open(pid, PidfdFlags::from_bits_retain(libc::PIDFD_THREAD)) {
        Err(Errno::INVAL) => {}
        opened => return opened.map_err(refused),
    }
    match pidfd_open(pid, PidfdFlags::empty()) {
        // Not the first thread of its process (ENOENT since Linux 6.9).
        Err(Errno::INVAL | Errno::NOENT) => {
            pidfd_open(leader_of(thread)?, PidfdFlags::empty()).map_err(refused)
        }
        opened => opened.map_err(refused),
    }
}

fn refused(errno: Errno) -> Reach {
    if errno == Errno::SRCH { Reach::NoThread } else { Reach::Forbidden(errno) }
}

fn leader_of(thread: i32) -> Result<Pid, Reach> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).map_err(|_| Reach::NoThread)?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok()).and_then(Pid::from_raw).ok_or(Reach::NoThread)
}
