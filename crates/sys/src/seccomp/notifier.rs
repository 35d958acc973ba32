//! The supervisor's end: notifications in, descriptors and answers out.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// By which it is answered; never used again, even if the process is.
    pub id: u64,
    /// The thread that called, as this process numbers it; 0 if it has no number here.
    pub thread: i32,
    /// The number of the call.
    pub call: i64,
    /// Its arguments, as they were in registers: nobody can change them any more.
    pub args: [u64; 6],
}

impl Notification {
    /// An argument that is a C int, such as a descriptor or flags: the kernel looks at its low half only.
    #[must_use]
    pub fn int(&self, index: usize) -> i32 {
        #[allow(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
        let low = self.args[index] as u32;
        low.cast_signed()
    }
}

/// What the caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The call's result.
    Value(i64),
    /// The call fails.
    Fail(Errno),
    /// A signal is there for the thread, which is handled first; the call then begins again or fails with EINTR, by the
    /// handler's SA_RESTART. Only for a thread that has one pending (-ERESTARTSYS must not reach a program).
    Interrupted,
    /// The kernel carries it out, as if nobody had asked.
    GoOn,
}

/// The kernel's own number for "begin again after the signal" (include/linux/errno.h).
const ERESTARTSYS: i32 = 512;

/// Where notifications come from. Readable when there is one, hung up when nobody is left who could send any.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notifier {
    /// Of a descriptor that [`super::Filter::install`] gave.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        let notifier = Self(descriptor);
        // One thread answers another, which waits for it: wake that up here (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux
        // 6.6). On older kernels it is only slower.
        let _ = notifier.ioctl(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, std::ptr::without_provenance_mut(1));
        notifier
    }

    /// The next notification; `None` if its thread was killed meanwhile. Waits if there is none: ask when readable.
    ///
    /// # Errors
    /// As ioctl(SECCOMP_IOCTL_NOTIF_RECV).
    pub fn receive(&self) -> io::Result<Option<Notification>> {
        // SAFETY: the struct is plain numbers, for which zero is a value; the kernel insists on zeros.
        let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, (&raw mut raw).cast()) {
            Ok(_) => Ok(Some(Notification {
                id: raw.id,
                thread: raw.pid.cast_signed(),
                call: raw.data.nr.into(),
                args: raw.data.args,
            })),
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the caller still waits: then its number has not been given to another process since.
    #[must_use]
    pub fn is_waiting(&self, id: u64) -> bool {
        let mut id = id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, (&raw mut id).cast()).is_ok()
    }

    /// Answers. A caller that was killed meanwhile needs no answer: that is no error.
    ///
    /// # Errors
    /// As ioctl(SECCOMP_IOCTL_NOTIF_SEND).
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

    /// Gives the caller a duplicate of `descriptor`, and says by which number. It is not the call's answer yet: close
    /// `descriptor` before that, or the caller may close its own and find the file still open (in epoll, for example).
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

    /// `argument` is one of the structs that `request` names, or the number that it takes instead of a pointer.
    ///
    /// All but RECV fail with EINTR when this thread is stopped, frozen or traced just while it waits for the kernel's lock
    /// (kernel/seccomp.c, mutex_lock_interruptible): nothing has been done then, and a call would stay unanswered for ever.
    fn ioctl(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> Result<i32, Errno> {
        loop {
            match self.ioctl_once(request, argument) {
                Err(Errno::INTR) if request != libc::SECCOMP_IOCTL_NOTIF_RECV => {}
                answer => return answer,
            }
        }
    }

    fn ioctl_once(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> Result<i32, Errno> {
        // SAFETY: this function is private, and each of `ioctl`'s callers passes a pointer to a live local of the very struct
        // (or u64) that the request reads and writes; SET_FLAGS takes its argument as a number.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if answer < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(answer)
    }
}
