//! One thread at a time makes room for the program's descriptors, or makes one of the library's anew.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;

use rustix::io::Errno;

/// One thread at a time. A signal handler can't wait for the thread that it has interrupted, so the wait is
/// bounded.
static MOVING: AtomicBool = AtomicBool::new(false);
const ATTEMPTS: u32 = 1000;
const INTERVAL: Duration = Duration::from_millis(1);

/// Call this when the library is loaded, and in a forked child: no other thread runs there.
pub(crate) fn begin() {
    MOVING.store(false, Ordering::Release);
}

/// Runs while no other thread moves or recreates a descriptor.
///
/// # Errors
/// EBUSY if another thread takes too long.
pub(crate) fn alone<T>(work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..ATTEMPTS {
        if !MOVING.swap(true, Ordering::Acquire) {
            let done = work();
            MOVING.store(false, Ordering::Release);
            return done;
        }
        thread::sleep(INTERVAL);
    }
    Err(Errno::BUSY)
}
