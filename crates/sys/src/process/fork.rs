//! Becoming two processes that both go on.

use std::io;

use rustix::process::Pid;

use crate::{CallError, Named};

/// Which of the two this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The one that was there before, and the other's number.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Forks a process that has one thread only, so that no lock is held by a thread that the child hasn't.
///
/// # Errors
/// EINVAL if there are more threads; else as fork(2).
pub fn fork() -> Result<Forked, CallError> {
    let threads = std::fs::read_dir("/proc/self/task").named("readdir(/proc/self/task)")?.count();
    if threads != 1 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).named("fork");
    }
    // SAFETY: there is one thread (looked at above, and only it could start another), so the child is a whole process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).named("fork"),
        0 => Ok(Forked::Child),
        child => Ok(Pid::from_raw(child).map_or(Forked::Child, Forked::Parent)),
    }
}
