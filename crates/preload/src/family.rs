//! What the processes of one program share: the table of names, and the queue of connections whose header came late.
//!
//! The first process makes both and says so in its environment; forked children have them anyway, executed programs find
//! them by that word, or the names through the first process's `/proc` directory, or their parent's. What a program closes
//! before it executes another is not inherited: it may be another user's, whom the kernel keeps out of `/proc`, too.

use std::env;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{getpid, getppid};
use truepeer_handover::{NO_CENSUS, Names, SocketDiag, WakeUp};

use crate::ready::Ready;
use crate::{ours, say};

/// `PID NAMES IN OUT`: who made it, and its descriptors there.
const VARIABLE: &str = "TRUEPEER_FAMILY";

/// The family's common goods.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) names: Names,
    pub(crate) ready: Ready,
    pub(crate) wake: WakeUp,
}

impl Family {
    /// Joins the family that the environment names, or founds one.
    pub(crate) fn join() -> Result<Self, Errno> {
        match env::var(VARIABLE).ok().and_then(|text| Self::find(&text)) {
            Some(family) => Ok(family),
            None => Self::found(),
        }
    }

    fn found() -> Result<Self, Errno> {
        let (names, fd) = Names::create()?;
        if !SocketDiag::new().is_answered() {
            say::always(format_args!("{NO_CENSUS}"));
        }
        let fd = ours::keep(fd, true)?;
        let ready = Ready::create()?;
        let [into, out] = ready.raw();
        let text = format!("{} {} {into} {out}", getpid().as_raw_nonzero(), fd.as_raw_fd());
        // SAFETY: called once, while the library is loaded: before the program has begun, with one thread.
        unsafe { env::set_var(VARIABLE, text) };
        // For the programs that this one executes.
        std::mem::forget(fd);
        Ok(Self { wake: names.wake_up(), names, ready })
    }

    fn find(text: &str) -> Option<Self> {
        let numbers: Vec<RawFd> = text.split(' ').map_while(|word| word.parse().ok()).collect();
        let &[pid, names_fd, into, out] = numbers.as_slice() else { return None };
        let names = inspect(names_fd, |fd| Names::open(fd).ok());
        if let Some(names) = names {
            let ready = Ready::inherited(into, out)?;
            ours::OURS.insert(names_fd);
            return Some(Self { wake: names.wake_up(), names, ready });
        }
        // The descriptors were closed on the way here. The names are enough for who doesn't accept connections.
        let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        let names = [pid, parent].into_iter().find_map(|pid| {
            let path = format!("/proc/{pid}/fd/{names_fd}");
            let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
            Names::open(fd.as_fd()).ok()
        })?;
        Some(Self { wake: names.wake_up(), names, ready: Ready::create().ok()? })
    }
}

/// Looks at a descriptor of the number that we were told, which may be anything by now, or nothing.
pub(crate) fn inspect<T>(fd: RawFd, look: impl FnOnce(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
    if fd < 0 {
        return None;
    }
    // SAFETY: not -1; if it is closed, fcntl says so, and nothing else is done with this number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let own: OwnedFd = fcntl_dupfd_cloexec(borrowed, 3).ok()?;
    look(own.as_fd())
}

/// Takes over a descriptor that was inherited on purpose.
pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
    ours::OURS.insert(fd);
    // SAFETY: the caller has looked at it: it is what the family's founder left open for us, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
