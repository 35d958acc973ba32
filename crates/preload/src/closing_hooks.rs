//! Hooks for the C library functions that close descriptors or replace what is under their numbers. A part of
//! the border to C (see `hooks`); it keeps the library's own descriptors open.

use core::ffi::{c_int, c_uint};

use rustix::io::{Errno, FdFlags, fcntl_getfd};

use crate::abi::{answer, borrow, by_kernel, last_errno, plainly, word};
use crate::{forks, listeners, moving, ours};

/// # Safety
/// The requirements of close(2): the caller owns the descriptor.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    forks::notice();
    if ours::OURS.has(fd) {
        if let Some(fd) = borrow(fd) {
            ours::close_on_exec(fd);
        }
        return 0;
    }
    forget(fd);
    plainly(libc::SYS_close, [word(fd), 0, 0, 0])
}

/// The program may free the data by which its epoll reports a listener. A child of vfork(2) closes its own
/// descriptors, but would forget the parent's.
fn forget(fd: c_int) {
    if listeners::is_seen(fd) && moving::is_owner() {
        listeners::forget(fd);
        moving::withdraw_reminders();
    }
}

/// # Safety
/// The requirements of close_range(2): the caller owns the descriptors.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    forks::notice();
    if first > last {
        return plain_close_range(first, last, flags); // which refuses it
    }
    // With CLOSE_RANGE_CLOEXEC nothing is closed yet.
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0 {
        listeners::seen_within(first, last).for_each(forget);
    }
    let mut first = first;
    for ours in ours::OURS.within(first, last) {
        if let Some(fd) = c_int::try_from(ours).ok().and_then(borrow) {
            ours::close_on_exec(fd);
        }
        if ours > first && plain_close_range(first, ours - 1, flags) != 0 {
            return -1;
        }
        first = ours + 1;
    }
    if first > last { 0 } else { plain_close_range(first, last, flags) }
}

fn plain_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    plainly(libc::SYS_close_range, [first as usize, last as usize, word(flags), 0])
}

/// # Safety
/// The requirements of closefrom(3): the caller owns the descriptors.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: by the contract of closefrom(3) the caller owns all descriptors from `first` on.
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

/// # Safety
/// The requirements of dup2(2): the caller owns the descriptor `new`, which is closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // dup2(2) with equal numbers replaces nothing. It fails if the descriptor is closed.
        return if is_open(old) { new } else { plainly(libc::SYS_dup, [word(old), 0, 0, 0]) };
    }
    // SAFETY: dup3 requires that the caller owns the descriptor `new`, as dup2 does. The two differ only for
    // equal numbers, which were handled above.
    unsafe { dup3(old, new, 0) }
}

/// # Safety
/// The requirements of dup3(2): the caller owns the descriptor `new`, which is closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    forks::notice();
    let replace = || by_kernel(libc::SYS_dup3, [word(old), word(new), word(flags), 0, 0, 0]);
    let work = || {
        if !ours::OURS.has(new) || old == new || !is_open(old) || flags & !libc::O_CLOEXEC != 0 {
            return None;
        }
        if moving::make_room(new).is_err() {
            // It may have been closed meanwhile. If not, fail with EBUSY, as the kernel does for a number
            // that another thread is taking.
            return ours::OURS.has(new).then_some(Err(Errno::BUSY));
        }
        let replaced = replace();
        if replaced < 0 {
            let errno = last_errno();
            // The library's descriptor now has another number, and `new` was not replaced.
            by_kernel(libc::SYS_close, [word(new), 0, 0, 0, 0, 0]);
            return Some(Err(errno));
        }
        Some(Ok(new))
    };
    let plainly_replaced = || {
        ours::wait_until_closed();
        c_int::try_from(replace()).unwrap_or(-1)
    };
    let replaced = answer(work, plainly_replaced);
    if replaced >= 0 {
        forget(new);
    }
    replaced
}

fn is_open(fd: c_int) -> bool {
    borrow(fd).is_some_and(|fd| fcntl_getfd(fd).is_ok_and(|flags| flags.bits() <= FdFlags::CLOEXEC.bits()))
}
