//! Making room for the program under a number that the library uses: whoever uses it continues under another one.
//!
//! What the program's threads use too has its number in one place ([`crate::movable::Movable`]), and is moved by the thread
//! that wants the number. What the waiter alone uses, the waiter moves when it is asked to.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use std::os::fd::RawFd;
use std::thread;

use rustix::io::Errno;
use rustix::process::getpid;

use crate::role::role;
use crate::{probe, waiter};

/// One thread at a time. A signal handler that has interrupted it can't wait for it: hence a bound.
static MOVING: AtomicBool = AtomicBool::new(false);
const GLANCES: u32 = 1000;
const GLANCE: Duration = Duration::from_millis(1);

/// The process that the descriptors belong to. A child of vfork(2) has this memory and descriptors of its own.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// To be called when the library is loaded, and in a forked child.
pub(crate) fn begin() {
    PROCESS.store(own_process(), Ordering::Relaxed);
    MOVING.store(false, Ordering::Release);
}

fn own_process() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// Leaves `taken`, which is one of ours, to the program. It stays open until the caller replaces it.
///
/// # Errors
/// EBUSY where that can't be done now.
pub(crate) fn make_room(taken: RawFd) -> Result<(), Errno> {
    if PROCESS.load(Ordering::Relaxed) != own_process() {
        return Ok(()); // the parent keeps what it has, under the same number
    }
    alone(|| {
        let family = role().and_then(|role| role.accepting.as_ref()).map(|role| &role.family);
        let is_familys = family.map_or(Ok(false), |family| family.move_from(taken))?;
        if is_familys || probe::move_from(taken)? || waiter::move_from(taken)? {
            Ok(())
        } else {
            Err(Errno::BUSY)
        }
    })
}

/// While no other thread makes room, or makes something anew.
///
/// # Errors
/// EBUSY if another one takes too long for it.
pub(crate) fn alone<T>(work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..GLANCES {
        if !MOVING.swap(true, Ordering::Acquire) {
            let done = work();
            MOVING.store(false, Ordering::Release);
            return done;
        }
        thread::sleep(GLANCE);
    }
    Err(Errno::BUSY)
}
