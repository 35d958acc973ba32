//! Listening sockets passed by a service manager (`LISTEN_FDS`, see sd_listen_fds(3)).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::getsockname;

/// The first inherited descriptor: 0, 1 and 2 are the standard streams.
const FIRST: RawFd = 3;

/// The sockets that the service manager passed to this process, unchanged. Dropping closes them.
#[derive(Debug, Default)]
pub struct PassedSockets(Vec<OwnedFd>);

/// The service manager announced more sockets than it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "LISTEN_FDS={count}, but descriptor {number} is not open: expected sockets at 3 to {}",
    u64::from(*.count) + 2
)]
pub struct NotPassed {
    count: u32,
    number: RawFd,
}

impl PassedSockets {
    /// Takes them. There are none unless `LISTEN_PID` is this process. Only the first call in a process
    /// returns any.
    ///
    /// # Errors
    /// A descriptor that should be a socket is not open, or was opened by this process.
    pub fn take() -> Result<Self, NotPassed> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let count = announced();
        if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
            return Ok(Self::default());
        }
        let numbers = (FIRST..).take(count as usize);
        if let Some(number) = numbers.clone().find(|number| !is_inherited(*number)) {
            return Err(NotPassed { count, number });
        }
        // SAFETY: OwnedFd requires an open descriptor without another owner. Each number is open and lacks
        // FD_CLOEXEC; this process opens nothing without that flag, so the descriptor came with exec. `TAKEN`
        // prevents a second owner.
        Ok(Self(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect()))
    }

    /// The number of sockets.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// For an event loop of this process: not inherited by others, and non-blocking.
    #[must_use]
    pub fn into_listening(self) -> Vec<OwnedFd> {
        for fd in &self.0 {
            // On failure the descriptor stays inheritable, which is harmless: this process starts no
            // programs.
            let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
            // Service managers pass blocking sockets, on which a late accept() would block.
            let _ = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
        }
        self.0
    }
}

/// The names of the sockets that the service manager passed (`LISTEN_FDNAMES`), with their addresses. The
/// sockets stay where they are; those without an IP address have no entry. Call it before
/// [`PassedSockets::take`].
#[must_use]
pub fn passed_names() -> Vec<(String, SocketAddr)> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let sockets = (FIRST..).take(announced() as usize);
    let named = names.split(':').zip(sockets).filter(|(_, number)| is_inherited(*number));
    named.filter_map(|(name, number)| Some((name.to_owned(), address(number)?))).collect()
}

/// The descriptor of this number that came with exec, not inherited further. `None`: there is none, or it was
/// taken already.
#[must_use]
pub fn take_passed(number: RawFd) -> Option<OwnedFd> {
    if number < FIRST || !is_inherited(number) {
        return None;
    }
    // SAFETY: OwnedFd requires an open descriptor without another owner. The number is open and lacks
    // FD_CLOEXEC; this process opens nothing without that flag, so the descriptor came with exec. It gets the
    // flag here, so no other call takes it.
    let passed = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&passed, FdFlags::CLOEXEC).ok()?;
    Some(passed)
}

/// Closes the descriptors that came with exec, except the standard streams. For a process in the background,
/// which must not keep files and sockets of its starter open.
///
/// # Errors
/// /proc is not mounted.
pub fn close_inherited() -> io::Result<()> {
    let names: Vec<_> = std::fs::read_dir("/proc/self/fd")?.map_while(Result::ok).collect();
    let numbers = names.iter().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number >= FIRST && is_inherited(*number)) {
        // SAFETY: OwnedFd requires an open descriptor without another owner. The number is open and lacks
        // FD_CLOEXEC; this process opens nothing without that flag, so the descriptor came with exec. Only
        // `PassedSockets` takes such descriptors, and a process calls either of the two.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
    Ok(())
}

/// The number of sockets that this process should have.
fn announced() -> u32 {
    let is_for_us = number("LISTEN_PID") == Some(std::process::id());
    number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or(0)
}

fn address(number: RawFd) -> Option<SocketAddr> {
    // SAFETY: BorrowedFd requires a number other than -1, and a descriptor that stays open for the borrow.
    // The borrow ends with this call; the number was found open, and nothing owns it yet that could close
    // it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    SocketAddr::try_from(getsockname(fd).ok()?).ok()
}

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Whether a descriptor came with exec.
fn is_inherited(number: RawFd) -> bool {
    // SAFETY: BorrowedFd requires a number other than -1. The borrow ends with this call, which fails with
    // EBADF if nothing is open there.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}
