//! A descriptor that the program's threads use and whose number may change: the program may want the number
//! (dup2(2)), or may have closed it by a system call that this library doesn't see.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::thread;

use rustix::fs::fstat;
use rustix::io::Errno;

use crate::ours;

/// No descriptor.
pub(crate) const NOBODY: RawFd = -1;
/// A thread is opening it.
pub(crate) const STARTING: RawFd = -2;

/// How often, and how long each time, to wait for threads that use the old number. None of their calls
/// blocks.
const ATTEMPTS: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(1);

/// The end of a pipe, or a socket: they have an inode of their own, by which they are recognised.
#[derive(Debug)]
pub(crate) struct Movable {
    number: AtomicI32,
    inode: AtomicU64,
    /// The number of threads that have read the number and not finished their call.
    users: AtomicU32,
}

impl Movable {
    pub(crate) const fn nobody() -> Self {
        Self { number: AtomicI32::new(NOBODY), inode: AtomicU64::new(0), users: AtomicU32::new(0) }
    }

    pub(crate) fn holding(fd: OwnedFd) -> Self {
        let movable = Self::nobody();
        movable.hold(fd);
        movable
    }

    /// Replaces a lost descriptor. The old number is not closed, because it is the program's now.
    pub(crate) fn hold(&self, fd: OwnedFd) {
        self.inode.store(fstat(&fd).map_or(0, |stat| stat.st_ino), Ordering::SeqCst);
        self.number.store(fd.into_raw_fd(), Ordering::SeqCst);
    }

    pub(crate) fn number(&self) -> RawFd {
        self.number.load(Ordering::SeqCst)
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode.load(Ordering::SeqCst)
    }

    /// Changes the number from one of the two special values to the other. If it is a descriptor, returns
    /// that instead.
    pub(crate) fn change(&self, from: RawFd, to: RawFd) -> Result<(), RawFd> {
        self.number.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    /// Makes a call that doesn't block.
    ///
    /// # Errors
    /// The error of the call; EBADF if the descriptor is lost.
    pub(crate) fn with<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let number = self.number();
        // SAFETY: BorrowedFd requires a number other than -1, which was checked, and a descriptor that stays
        // open. While `users` counts this thread, `move_from` doesn't release the number. If the program
        // takes it with its own system calls, `is_inode` finds something else there, and the
        // descriptor is not used.
        let borrowed = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) });
        let done = match borrowed {
            Some(fd) if is_inode(fd, self.inode()) => call(fd),
            _ => Err(Errno::BADF),
        };
        self.users.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// If it has the number `taken`, moves it to another number and leaves `taken` open for the caller.
    ///
    /// # Errors
    /// Those of [`ours::another_number`].
    pub(crate) fn move_from(&self, taken: RawFd) -> Result<bool, Errno> {
        if self.number() != taken {
            return Ok(false);
        }
        let kept = ours::another_number(taken)?;
        self.number.store(kept.into_raw_fd(), Ordering::SeqCst);
        self.settle();
        ours::release(taken);
        Ok(true)
    }

    /// Replaces the descriptor and closes the old one. Only one thread at a time may call this
    /// ([`alone`]).
    pub(crate) fn replace(&self, fd: OwnedFd) {
        let (spent, inode) = (self.number(), self.inode());
        self.hold(fd);
        if spent < 0 || !self.settle() {
            return;
        }
        // SAFETY: OwnedFd requires an open descriptor without another owner. `OURS` keeps the program from
        // closing it; if the program did so with its own system calls, `is_inode` finds something else there.
        // No thread uses the number any more, and no other code closes it.
        let spent = unsafe { OwnedFd::from_raw_fd(spent) };
        if is_inode(spent.as_fd(), inode) {
            ours::release(spent.as_raw_fd());
        } else {
            let _ = spent.into_raw_fd();
        }
    }

    /// Waits until no thread uses the old number. A thread that was interrupted by the signal handler that
    /// runs this can't finish, so the wait is bounded.
    fn settle(&self) -> bool {
        (0..ATTEMPTS).any(|_| {
            let is_unused = self.users.load(Ordering::SeqCst) == 0;
            if !is_unused {
                thread::sleep(INTERVAL);
            }
            is_unused
        })
    }

    /// Call it in a forked child, which has one thread.
    pub(crate) fn on_fork(&self) {
        self.users.store(0, Ordering::SeqCst);
    }
}

/// Whether a descriptor is still the same pipe end or socket.
pub(crate) fn is_inode(fd: BorrowedFd<'_>, inode: u64) -> bool {
    fstat(fd).is_ok_and(|stat| stat.st_ino == inode)
}

/// One thread at a time. A signal handler can't wait for the thread that it has interrupted, so the wait is
/// bounded.
static MOVING: AtomicBool = AtomicBool::new(false);
/// How often to wait for a thread that moves a descriptor.
const TURNS: u32 = 1000;

/// Call this when the library is loaded, and in a forked child: no other thread runs there.
pub(crate) fn nobody_moves() {
    MOVING.store(false, Ordering::Release);
}

/// Runs while no other thread moves or recreates a descriptor.
///
/// # Errors
/// EBUSY if another thread takes too long.
pub(crate) fn alone<T>(work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..TURNS {
        if !MOVING.swap(true, Ordering::Acquire) {
            let done = work();
            MOVING.store(false, Ordering::Release);
            return done;
        }
        thread::sleep(INTERVAL);
    }
    Err(Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn socket() -> OwnedFd {
        let (socket, _) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        socket
    }

    #[test]
    fn a_moved_descriptor_works_and_its_old_number_stays_open() {
        let socket = ours::keep(socket(), false).unwrap();
        let (number, inode) = (socket.as_raw_fd(), fstat(&socket).unwrap().st_ino);
        let movable = Movable::holding(socket);
        assert_eq!(movable.move_from(number + 1), Ok(false));
        assert_eq!(movable.move_from(number), Ok(true));
        assert_ne!(movable.number(), number);
        assert!(ours::OURS.has(movable.number()) && !ours::OURS.has(number));
        assert!(movable.with(|fd| Ok(is_inode(fd.as_fd(), inode))).unwrap());
        // SAFETY: the number was left open for its caller, this test, which is its only owner.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    #[test]
    fn a_lost_descriptor_is_not_used() {
        let movable = Movable::holding(socket());
        let mut other = movable.with(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3)).unwrap();
        // SAFETY: the test owns the number and closes it as a program's own system call would.
        let mut number = unsafe { OwnedFd::from_raw_fd(movable.number()) };
        rustix::io::dup2(socket(), &mut number).unwrap();
        assert_eq!(movable.with(|_| Ok(())), Err(Errno::BADF));
        rustix::io::dup2(&other, &mut number).unwrap();
        assert_eq!(movable.with(|_| Ok(())), Ok(()), "the same descriptor again");
        rustix::io::dup2(&number, &mut other).unwrap();
    }

    /// Calls continue while it moves; each finds the socket.
    #[test]
    fn a_descriptor_moves_while_threads_use_it() {
        let movable = Movable::holding(socket());
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        assert_eq!(movable.with(|_| Ok(())), Ok(()));
                    }
                });
            }
            for _ in 0..200 {
                let number = movable.number();
                assert_eq!(movable.move_from(number), Ok(true));
                // SAFETY: the number was left open for its caller, this test, which is its only owner.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
            end.store(true, Ordering::Relaxed);
        });
    }
}
