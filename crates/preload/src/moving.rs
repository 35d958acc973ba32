//! Releases a number that the library uses to the program, and moves the library's descriptor to another
//! number.
//!
//! A descriptor that the program's threads use keeps its number in one place ([`crate::movable::Movable`]);
//! the thread that wants the number moves it. A descriptor that only the waiter uses is moved by the waiter,
//! on request.

use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::RawFd;

use rustix::io::Errno;
use rustix::process::getpid;

use crate::role::role;
use crate::{bell, movable, probe, waiter};

/// The process that owns the descriptors. A child of vfork(2) shares this memory but has its own descriptors.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Call it when the library is loaded, and in a forked child.
pub(crate) fn begin() {
    PROCESS.store(own_process(), Ordering::Relaxed);
    movable::nobody_moves();
}

/// Whether the library's descriptors are this process's: not in a child of vfork(2).
pub(crate) fn is_owner() -> bool {
    PROCESS.load(Ordering::Relaxed) == own_process()
}

fn own_process() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// Withdraws the reminders in the program's epolls: it is about to close a listener, and may free the data by
/// which its epoll reports it. Waits for the waiter, for at most a second.
pub(crate) fn withdraw_reminders() {
    if waiter::reminds() && is_owner() {
        // Without an answer, the program may be told once more of a listener that it has closed.
        let _ = movable::alone(waiter::withdraw_reminders);
    }
}

/// Releases `taken`, a number of the library's, to the program. It stays open until the caller replaces it.
///
/// # Errors
/// EBUSY if that is not possible now.
pub(crate) fn make_room(taken: RawFd) -> Result<(), Errno> {
    if !is_owner() {
        return Ok(()); // the parent keeps its descriptors, under the same numbers
    }
    movable::alone(|| {
        let family = role().and_then(|role| role.accepting.as_ref()).map(|role| &role.family);
        let is_familys = family.map_or(Ok(false), |family| family.move_from(taken))?;
        if is_familys || probe::move_from(taken)? || bell::move_from(taken)? || waiter::move_from(taken)? {
            Ok(())
        } else {
            Err(Errno::BUSY)
        }
    })
}
