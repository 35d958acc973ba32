//! The library's descriptors in the application's process. A program that closes "all" descriptors must not
//! close these, and must not be given their numbers while the library still uses them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How often, and how long each time, to wait for a thread that is closing.
const ATTEMPTS: u32 = 300;
const INTERVAL: Duration = Duration::from_millis(1);

/// Descriptors up to 65535 are tracked. Higher ones are closed if a program closes everything.
const WORDS: usize = 1024;

/// A lock-free set of small numbers, one bit each.
#[derive(Debug)]
pub(crate) struct FdSet([AtomicU64; WORDS]);

/// All descriptors of the library.
pub(crate) static OURS: FdSet = FdSet::new();
/// The descriptors of connections that wait for their header: a forked child closes its copies.
pub(crate) static WAITING: FdSet = FdSet::new();

impl FdSet {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    fn word(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Adds a number. Returns whether it is new.
    pub(crate) fn insert(&self, fd: RawFd) -> bool {
        self.word(fd).is_none_or(|(word, bit)| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        if let Some((word, bit)) = self.word(fd) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    pub(crate) fn has(&self, fd: RawFd) -> bool {
        self.word(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// All members, in order.
    pub(crate) fn members(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let bits = word.load(Ordering::Acquire);
            let places = (0..64).filter(move |bit| bits & (1 << bit) != 0);
            places.filter_map(move |bit| RawFd::try_from(index * 64 + bit).ok())
        })
    }

    /// Removes all members, one after the other.
    pub(crate) fn drain(&self, mut each: impl FnMut(RawFd)) {
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let place = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Ok(fd) = RawFd::try_from(place) {
                    each(fd);
                }
            }
        }
    }

    /// The members within a range, in order.
    pub(crate) fn within(&self, first: u32, last: u32) -> impl Iterator<Item = u32> + '_ {
        let all = u32::try_from(WORDS * 64 - 1).unwrap_or(u32::MAX);
        (first..=last.min(all)).filter(move |fd| RawFd::try_from(*fd).is_ok_and(|fd| self.has(fd)))
    }
}

/// Higher numbers cost memory: the kernel's descriptor table, which every fork copies, extends to the highest
/// one.
const HIGHEST: u64 = 1024;
const ROOM: u64 = 64;

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn duplicate(fd: &OwnedFd, lowest: u64) -> Result<OwnedFd, Errno> {
    let lowest = RawFd::try_from(lowest).unwrap_or(0);
    fcntl_dupfd_cloexec(fd, lowest).or_else(|_| fcntl_dupfd_cloexec(fd, 3))
}

/// Moves a descriptor to a high number, so that the program gets the same low numbers as without the library,
/// and protects it.
pub(crate) fn keep(fd: OwnedFd, inherited_by_exec: bool) -> Result<OwnedFd, Errno> {
    let kept = duplicate(&fd, limit().min(HIGHEST).saturating_sub(ROOM))?;
    if inherited_by_exec {
        fcntl_setfd(&kept, FdFlags::empty())?;
    }
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// Moves a waiting connection to a high number; if none is free, it stays where it is. The library owns it
/// until it is handed over. Up to half of the program's descriptors can be waiting connections.
pub(crate) fn keep_waiting(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let kept = match duplicate(&fd, (limit() / 2).min(HIGHEST - ROOM)) {
        Err(Errno::MFILE | Errno::NFILE) => {
            fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
            fd
        }
        duplicate => duplicate?,
    };
    WAITING.insert(kept.as_raw_fd());
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// Duplicates a descriptor of the library to another number: the program wants `taken` for itself and will
/// replace it.
///
/// # Errors
/// EMFILE if the program has used all the numbers that its limit allows.
pub(crate) fn another_number(taken: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: BorrowedFd requires an open descriptor other than -1. The number is in `OURS`, and it stays
    // open until the caller releases it to the program.
    let fd = unsafe { BorrowedFd::borrow_raw(taken) };
    let kept = fcntl_dupfd_cloexec(fd, taken.saturating_add(1))
        .or_else(|_| beyond_the_limit(fd))
        .or_else(|_| fcntl_dupfd_cloexec(fd, 3))?;
    // Keeps the flag: inherited by executed programs, or no longer (`close_on_exec`).
    fcntl_setfd(&kept, fcntl_getfd(fd)?)?;
    if WAITING.has(taken) {
        WAITING.insert(kept.as_raw_fd());
    }
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// Finds a number at the end of the program's own limit, where the program can't use it: descriptors stay
/// open when the limit is lowered again.
fn beyond_the_limit(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let before = getrlimit(Resource::Nofile);
    let soft = before.current.filter(|soft| before.maximum.is_none_or(|hard| *soft < hard));
    let lowest = soft.and_then(|soft| RawFd::try_from(soft).ok()).ok_or(Errno::MFILE)?;
    let room = before.maximum.unwrap_or(u64::MAX).min(u64::from(lowest.unsigned_abs()) + ROOM);
    setrlimit(Resource::Nofile, Rlimit { current: Some(room), ..before })?;
    let kept = fcntl_dupfd_cloexec(fd, lowest);
    setrlimit(Resource::Nofile, before)?;
    kept
}

/// The program closes all descriptors, perhaps before it executes another program as another user. The
/// library's stay open, but are not inherited. A program with the permission finds the shared objects in
/// `/proc`.
pub(crate) fn close_on_exec(fd: BorrowedFd<'_>) {
    // It fails only for a closed descriptor.
    let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
}

/// Held between releasing a connection and closing it, and while the program forks: otherwise the child gets
/// a copy that it never closes. It is held for a few instructions, or while `/proc` is read, by a thread that
/// no signal interrupts.
static CLOSING: AtomicBool = AtomicBool::new(false);

fn hold() {
    while CLOSING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Closes a descriptor of the library. Only the waiter may call it, because signals don't interrupt the
/// waiter.
pub(crate) fn close(fd: OwnedFd) {
    hold();
    release(fd.as_raw_fd());
    drop(fd);
    CLOSING.store(false, Ordering::Release);
}

/// Runs code that opens a descriptor at any free number and closes it again. Only the waiter may call it,
/// because signals don't interrupt the waiter. The program may put a descriptor under the same number
/// meanwhile; [`wait_until_closed`] keeps it from being closed.
pub(crate) fn with_a_passing_descriptor<T>(work: impl FnOnce() -> T) -> T {
    hold();
    let done = work();
    CLOSING.store(false, Ordering::Release);
    done
}

/// Waits until a released descriptor is closed. Otherwise the program could put another descriptor under its
/// number, and [`close`] would close that. A signal handler can't wait for the forking thread that it has
/// interrupted, so the wait is bounded.
pub(crate) fn wait_until_closed() {
    for _ in 0..ATTEMPTS {
        if !CLOSING.load(Ordering::Acquire) {
            return;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Called before the program forks. The program's own handlers have run, and may hold locks for which the
/// thread that closes waits (jemalloc's, in a program that contains it), so the wait is bounded.
pub(crate) fn before_fork() {
    for _ in 0..ATTEMPTS {
        if !CLOSING.swap(true, Ordering::Acquire) {
            return;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Called after the fork, in parent and child.
pub(crate) fn after_fork() {
    CLOSING.store(false, Ordering::Release);
}

/// The library no longer owns it.
pub(crate) fn release(fd: RawFd) {
    WAITING.remove(fd);
    OURS.remove(fd);
}

/// Called in a forked child: the waiting connections belong to the parent.
pub(crate) fn close_waiting() {
    WAITING.drain(|fd| {
        OURS.remove(fd);
        // SAFETY: OwnedFd requires an open descriptor without another owner. The set contains descriptors
        // that `keep_waiting` took over and that the program can't close (`close` is hooked). The
        // child has one thread, so nothing else uses them.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    });
}

/// Opens what a descriptor number from the environment refers to now: perhaps something else, or nothing.
pub(crate) fn inspect<T>(fd: RawFd, look: impl FnOnce(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
    if fd < 0 {
        return None;
    }
    // SAFETY: BorrowedFd requires a number other than -1, which was checked. A closed descriptor makes fcntl
    // fail, and then the number is not used.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let own: OwnedFd = fcntl_dupfd_cloexec(borrowed, 3).ok()?;
    look(own.as_fd())
}

/// Takes over a descriptor that was inherited on purpose.
pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
    OURS.insert(fd);
    // SAFETY: the caller has checked that the descriptor is the one that the first process left open for this
    // library. No other code in this process knows it, so this is the only owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_the_numbers_added() {
        let set = FdSet::new();
        assert!(set.insert(3) && set.insert(64) && !set.insert(3));
        assert!(set.has(3) && !set.has(4) && !set.has(-1) && !set.has(RawFd::MAX));
        assert_eq!(set.within(0, u32::MAX).collect::<Vec<_>>(), [3, 64]);
        set.remove(3);
        let mut drained = Vec::new();
        set.drain(|fd| drained.push(fd));
        assert_eq!(drained, [64]);
    }
}
