//! Listening sockets handed to us by a service manager (`LISTEN_FDS`, see sd_listen_fds(3)).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};

/// The first inherited descriptor: 0, 1 and 2 are the standard streams.
const FIRST: RawFd = 3;

/// Takes the descriptors that the service manager passed to this process: none unless `LISTEN_PID` is ours.
///
/// Call it once, early, before anything else opens files.
#[must_use]
pub fn take_listening_sockets() -> Vec<OwnedFd> {
    (FIRST..).take(listening_sockets_for_us() as usize).map(adopt).collect()
}

/// How many descriptors the service manager passed to this process: none unless `LISTEN_PID` is ours.
#[must_use]
pub fn listening_sockets_for_us() -> u32 {
    let for_us = number("LISTEN_PID") == Some(std::process::id());
    if for_us { number("LISTEN_FDS").unwrap_or(0) } else { 0 }
}

/// Closes so many descriptors that the service manager passed ([`listening_sockets_for_us`]), after a program that was
/// started has them. What they lead to is left as it is.
///
/// Call it once in a process, and never together with [`take_listening_sockets`].
pub fn close_listening_sockets(count: u32) {
    for raw in (FIRST..).take(count as usize) {
        // SAFETY: as in `adopt`; these numbers were taken when this process began, and nobody has closed them since.
        drop(unsafe { OwnedFd::from_raw_fd(raw) });
    }
}

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

fn adopt(raw: RawFd) -> OwnedFd {
    // SAFETY: the service manager opened descriptors 3 .. 3+LISTEN_FDS for this very process (LISTEN_PID was checked)
    // and gave them up; the caller calls once and before opening files, so nobody else owns them.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // A failure leaves the descriptor inheritable, which is harmless: we start no programs.
    let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
    // Service managers pass blocking sockets, at which an accept() that comes too late would wait.
    let _ = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
    fd
}
