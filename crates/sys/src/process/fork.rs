//! Forks into two processes that both continue.

use std::io;

use rustix::process::Pid;

use crate::error::{CallError, Named};

/// The process in which fork returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The parent, with the id of the child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks a process with only one thread, so that no lock is held by a thread that the child lacks.
///
/// # Errors
/// EINVAL if there are more threads, otherwise those of fork(2).
pub fn fork() -> Result<Forked, CallError> {
    let threads = std::fs::read_dir("/proc/self/task").named("readdir(/proc/self/task)")?.count();
    if threads != 1 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).named("fork");
    }
    // SAFETY: after fork, a child of a process with several threads may find locks held forever. There is one
    // thread (checked above, and only it could start another).
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).named("fork"),
        0 => Ok(Forked::Child),
        child => Ok(Pid::from_raw(child).map_or(Forked::Child, Forked::Parent)),
    }
}
