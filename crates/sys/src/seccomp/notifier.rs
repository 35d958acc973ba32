//! The supervisor's end: receives notifications, installs descriptors, sends answers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::filter::ARCHITECTURE;

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// The id for the answer; it is never reused, even if the process id is.
    pub id: u64,
    /// The id of the calling thread in this process's namespace; 0 if it has none.
    pub thread: i32,
    /// The number of the call.
    pub call: i64,
    /// It is a number of another architecture.
    pub is_foreign: bool,
    /// Its arguments as they were in registers: they can't be changed any more.
    pub args: [u64; 6],
}

impl Notification {
    /// An argument that is a C int, such as a descriptor or flags: the kernel uses only its low half.
    #[must_use]
    pub fn int(&self, index: usize) -> i32 {
        #[allow(clippy::cast_possible_truncation, reason = "only the low half is wanted")]
        let low = self.args[index] as u32;
        low.cast_signed()
    }
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The call's result.
    Value(i64),
    /// The call fails.
    Fail(Errno),
    /// A signal is pending for the thread and is handled first. The call then restarts or fails with EINTR,
    /// depending on the handler's SA_RESTART. Only for a thread with a pending signal (-ERESTARTSYS must not
    /// reach a program).
    Interrupted,
    /// The kernel carries it out, as without a supervisor.
    GoOn,
}

/// The kernel's number for "restart after the signal" (include/linux/errno.h).
const ERESTARTSYS: i32 = 512;

/// The source of notifications. Readable if there is one, hung up if no process is left that could send any.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notifier {
    /// Takes the descriptor from [`super::Filter::install`].
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        let notifier = Self(descriptor);
        // One thread answers another, which waits for it: wake that up here
        // (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6). On older kernels it is only slower.
        let _ = notifier.ioctl(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, std::ptr::without_provenance_mut(1));
        notifier
    }

    /// The next notification; `None` if its thread was killed meanwhile. Blocks if there is none, so call it
    /// when readable.
    ///
    /// # Errors
    /// Those of ioctl(SECCOMP_IOCTL_NOTIF_RECV).
    pub fn receive(&self) -> io::Result<Option<Notification>> {
        // SAFETY: the struct consists of integers, for which zero is valid; the kernel requires zeros.
        let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, (&raw mut raw).cast()) {
            Ok(_) => Ok(Some(Notification {
                id: raw.id,
                thread: raw.pid.cast_signed(),
                call: raw.data.nr.into(),
                is_foreign: raw.data.arch != ARCHITECTURE,
                args: raw.data.args,
            })),
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the caller still waits. If so, its thread id has not been reused.
    #[must_use]
    pub fn is_waiting(&self, id: u64) -> bool {
        let mut id = id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, (&raw mut id).cast()).is_ok()
    }

    /// Answers. A caller that was killed meanwhile needs no answer, which is not an error.
    ///
    /// # Errors
    /// Those of ioctl(SECCOMP_IOCTL_NOTIF_SEND).
    pub fn send(&self, id: u64, answer: Answer) -> io::Result<()> {
        let (val, error, flags) = match answer {
            Answer::Value(value) => (value, 0, 0),
            Answer::Fail(errno) => (0, -errno.raw_os_error(), 0),
            Answer::Interrupted => (0, -ERESTARTSYS, 0),
            Answer::GoOn => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE),
        };
        let flags = u32::try_from(flags).unwrap_or_default();
        let mut raw = libc::seccomp_notif_resp { id, val, error, flags };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, (&raw mut raw).cast()) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the caller a duplicate of `descriptor`, and returns its number there. This does not answer the
    /// call yet: close `descriptor` before that, or the caller may close its own and find the file still
    /// open (in epoll, for example).
    ///
    /// # Errors
    /// EMFILE if the caller may open no more, ENOENT if it was killed meanwhile.
    pub fn add_descriptor(
        &self,
        id: u64,
        descriptor: BorrowedFd<'_>,
        close_on_exec: bool,
    ) -> Result<i32, Errno> {
        let mut raw = libc::seccomp_notif_addfd {
            id,
            flags: 0,
            srcfd: descriptor.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 },
        };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, (&raw mut raw).cast())
    }

    /// `argument` is one of the structs that `request` names, or the number that it takes instead of a
    /// pointer.
    ///
    /// All requests but RECV fail with EINTR if this thread is stopped, frozen or traced while it waits for
    /// the kernel's lock (kernel/seccomp.c, mutex_lock_interruptible). Nothing has been done then, and
    /// without a retry a call would stay unanswered forever.
    fn ioctl(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> Result<i32, Errno> {
        loop {
            match self.ioctl_once(request, argument) {
                Err(Errno::INTR) if request != libc::SECCOMP_IOCTL_NOTIF_RECV => {}
                answer => return answer,
            }
        }
    }

    fn ioctl_once(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> Result<i32, Errno> {
        // SAFETY: this function is private, and each caller passes a pointer to a live local of the struct
        // (or u64) that the request reads and writes. SET_FLAGS takes its argument as a number.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if answer < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(answer)
    }
}
