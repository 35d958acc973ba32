//! Descriptors of ours in a process that is not: programs that close "all" descriptors must not close these, and must not be
//! given their numbers while we believe them to be ours.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How often, and how long each time, a closing thread is waited for.
const GLANCES: u32 = 100;
const GLANCE: Duration = Duration::from_millis(1);

/// Descriptors up to 65535 are kept track of; beyond, a program that closes everything closes ours, too.
const WORDS: usize = 1024;

/// A set of small numbers, by a bit for each; no lock.
#[derive(Debug)]
pub(crate) struct FdSet([AtomicU64; WORDS]);

/// All descriptors of ours.
pub(crate) static OURS: FdSet = FdSet::new();
/// Of these, the connections that wait for their header: a forked child closes its copies.
pub(crate) static WAITING: FdSet = FdSet::new();

impl FdSet {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    fn word(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Whether it is news.
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

    /// Takes all members out, one after the other.
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

/// Higher ones would cost: the kernel's table of descriptors, which every fork copies, reaches to the highest.
const HIGHEST: u64 = 1024;
const ROOM: u64 = 64;

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn duplicate(fd: &OwnedFd, lowest: u64) -> Result<OwnedFd, Errno> {
    let lowest = RawFd::try_from(lowest).unwrap_or(0);
    fcntl_dupfd_cloexec(fd, lowest).or_else(|_| fcntl_dupfd_cloexec(fd, 3))
}

/// Moves a descriptor to a high number, so that the program finds the low ones as it would without us, and protects it.
pub(crate) fn keep(fd: OwnedFd, inherited_by_exec: bool) -> Result<OwnedFd, Errno> {
    let kept = duplicate(&fd, limit().min(HIGHEST).saturating_sub(ROOM))?;
    if inherited_by_exec {
        fcntl_setfd(&kept, FdFlags::empty())?;
    }
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// A connection that waits, moved to a high number: ours until it is handed over. There may be as many as half of the
/// program's descriptors.
pub(crate) fn keep_waiting(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let kept = duplicate(&fd, (limit() / 2).min(HIGHEST - ROOM))?;
    WAITING.insert(kept.as_raw_fd());
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// One of ours under another number as well: the program wants `taken` for itself, and replaces what is there.
///
/// # Errors
/// EMFILE if the program has used up all its numbers, and may have no more.
pub(crate) fn another_number(taken: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: not -1: it is in `OURS`, and open until the caller gives the number to the program.
    let fd = unsafe { BorrowedFd::borrow_raw(taken) };
    let kept = fcntl_dupfd_cloexec(fd, taken.saturating_add(1))
        .or_else(|_| beyond_the_limit(fd))
        .or_else(|_| fcntl_dupfd_cloexec(fd, 3))?;
    // As it was: inherited by what the program executes, or not any more (`close_on_exec`).
    fcntl_setfd(&kept, fcntl_getfd(fd)?)?;
    if WAITING.has(taken) {
        WAITING.insert(kept.as_raw_fd());
    }
    OURS.insert(kept.as_raw_fd());
    Ok(kept)
}

/// Where the program's own limit ends, and it can't put anything: descriptors stay open when the limit is lowered again.
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

/// A program that closes whatever may be open, before it executes another perhaps, as another user: ours stays open here, but
/// doesn't go there. Who may, finds the family by `/proc`.
pub(crate) fn close_on_exec(fd: BorrowedFd<'_>) {
    // Nothing but a wrong number makes it fail.
    let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
}

/// Held while a connection is no longer ours and not closed yet, and while the program forks: the child would have a copy
/// that nobody closes. Held for a few instructions, by a thread that nothing can interrupt.
static CLOSING: AtomicBool = AtomicBool::new(false);

fn hold() {
    while CLOSING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Closes a descriptor of ours; for the waiter alone, which no signal interrupts.
pub(crate) fn close(fd: OwnedFd) {
    hold();
    release(fd.as_raw_fd());
    drop(fd);
    CLOSING.store(false, Ordering::Release);
}

/// Does something that opens a descriptor under any free number and closes it again; for the waiter alone, which no signal interrupts. What the
/// program puts under that number meanwhile would be closed, so [`wait_until_closed`] waits for its end.
pub(crate) fn with_a_passing_descriptor<T>(work: impl FnOnce() -> T) -> T {
    hold();
    let done = work();
    CLOSING.store(false, Ordering::Release);
    done
}

/// Waits until a descriptor that is no longer ours is closed, too: what the program puts under its number before that, [`close`] would
/// close. A signal handler may have interrupted a thread that forks, and can't wait for it: hence a bound.
pub(crate) fn wait_until_closed() {
    for _ in 0..GLANCES {
        if !CLOSING.load(Ordering::Acquire) {
            return;
        }
        std::thread::sleep(GLANCE);
    }
}

/// Before the program forks.
pub(crate) fn before_fork() {
    hold();
}

/// After it has forked, in the parent and in the child.
pub(crate) fn after_fork() {
    CLOSING.store(false, Ordering::Release);
}

/// No longer ours.
pub(crate) fn release(fd: RawFd) {
    WAITING.remove(fd);
    OURS.remove(fd);
}

/// In a forked child: the waiting connections are the parent's.
pub(crate) fn close_waiting() {
    WAITING.drain(|fd| {
        OURS.remove(fd);
        // SAFETY: the set holds descriptors that `keep_waiting` was given and nobody else closes (`close` is hooked); in the
        // child, which has one thread, nothing else uses them.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
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
