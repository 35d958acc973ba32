//! What a forked child does with its copies of the library's state.
//!
//! fork(3) runs a handler in the child. A child by a clone(2) of the program's own (vsftpd), or by _Fork(3),
//! runs none, and would give its connections to the parent's waiter, under numbers that mean something else
//! there. The kernel gives each child zeros in place of one page (MADV_WIPEONFORK), by which the child
//! notices at its next call. A child by vfork(2) shares all memory, and has no copies.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::panic::catch_unwind;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::role::role;
use crate::{moving, ours, probe, supervised, waiter};

/// Not zero in a process that has done its work after a fork. Without a page (before Linux 4.14), children by
/// clone(2) are not noticed.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
const BYTES: usize = 4096;

/// Call it once, when the library is loaded.
pub(crate) fn begin() {
    moving::begin();
    // SAFETY: mmap(2) without MAP_FIXED creates a new mapping at a free address, so no existing memory is
    // affected.
    let page =
        unsafe { mmap_anonymous(null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let Ok(page) = page else { return };
    // SAFETY: the advice concerns the new mapping alone, which nothing uses yet.
    if unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) }.is_ok() {
        PAGE.store(page.cast(), Ordering::Relaxed);
        mark();
    }
}

fn word() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null, or that of a page that `begin` has mapped, readable, writable and never
    // unmapped. Zeros are a valid value, and it is used by atomic operations only.
    unsafe { PAGE.load(Ordering::Relaxed).as_ref() }
}

/// Returns whether it was marked before.
fn mark() -> bool {
    word().is_none_or(|word| word.swap(1, Ordering::AcqRel) != 0)
}

/// Call it in a forked child.
pub(crate) fn on_fork() {
    mark();
    ours::after_fork();
    // A panic must not reach the program.
    let _ = catch_unwind(|| {
        moving::begin();
        if let Some(accepting) = role().and_then(|role| role.accepting.as_ref()) {
            accepting.family.ready.on_fork();
            probe::on_fork();
        }
        supervised::on_fork();
        waiter::on_fork();
    });
}

/// Call it before anything that concerns the library's descriptors.
pub(crate) fn notice() {
    if word().is_some_and(|word| word.load(Ordering::Relaxed) == 0) && !mark() {
        on_fork();
    }
}
