//! Reads signals, and ends this process by one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{CallError, Named};

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// Its number.
    pub signal: i32,
    /// Sent by the kernel (a terminal's Ctrl-C, which its whole foreground group gets), not by another
    /// process.
    pub from_kernel: bool,
    /// The process that sent it; 0 if it has no id here.
    pub sender: u32,
}

/// Signals that no longer interrupt this process: they are read here (signalfd(2)).
pub struct SignalFd {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl std::fmt::Debug for SignalFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SignalFd").field(&self.descriptor).finish()
    }
}

impl SignalFd {
    /// Blocks `signals` in the calling thread, and so in the threads that it starts: call it before there are
    /// others.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM; EINVAL for an invalid number.
    pub fn open(signals: &[i32]) -> Result<Self, CallError> {
        let set = set_of(signals).named("sigaddset")?;
        let mut before = no_signals();
        // SAFETY: the call reads `set` and writes `before`; both are locals that outlive it.
        let answer = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        if answer != 0 {
            return Err(io::Error::from_raw_os_error(answer)).named("pthread_sigmask");
        }
        // SAFETY: `set` is initialised and only read; -1 requests a new descriptor.
        let raw = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error()).named("signalfd");
        }
        // SAFETY: the kernel has just created this descriptor for this process, and it has no other owner.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) }, before })
    }

    /// The previous mask, for a program that is started.
    pub(super) fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// The next signal, if there is one.
    #[must_use]
    pub fn next(&self) -> Option<Caught> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let length = size_of::<libc::signalfd_siginfo>();
        // SAFETY: pointer and length describe exactly `info`.
        let done = unsafe { libc::read(self.descriptor.as_raw_fd(), info.as_mut_ptr().cast(), length) };
        if usize::try_from(done) != Ok(length) {
            return None;
        }
        // SAFETY: the kernel has written all of it, and it consists of integers.
        let info = unsafe { info.assume_init() };
        let signal = i32::try_from(info.ssi_signo).ok()?;
        Some(Caught { signal, from_kernel: info.ssi_code > 0, sender: info.ssi_pid })
    }
}

fn set_of(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = no_signals();
    for &signal in signals {
        // SAFETY: sigaddset changes `set`, a local.
        if unsafe { libc::sigaddset(&raw mut set, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(set)
}

/// Sets the calling thread's mask without allocating.
pub(super) fn set_mask(set: &libc::sigset_t) {
    // SAFETY: `set` is initialised, and the old mask is not requested. The call can't fail with SIG_SETMASK.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}

/// Blocks every signal that can be blocked, in the calling thread.
pub(super) fn block_all_signals() {
    let mut all = no_signals();
    // SAFETY: sigfillset changes `all`, a local.
    unsafe { libc::sigfillset(&raw mut all) };
    set_mask(&all);
}

/// Blocks SIGCHLD in the calling thread, and so in the threads that it starts: call it before there are
/// others.
///
/// Where its action is the default one, the kernel discards the signal, but not while the thread that started
/// the program blocks it, as posix_spawn(3) does until it returns. Then a thread that doesn't block it is
/// woken, and its read(2) on a socket with a time limit fails with EINTR (signal(7)).
pub fn block_child_signal() {
    change_child_signal(libc::SIG_BLOCK);
}

/// Starts a program with SIGCHLD unblocked, because a program inherits the mask (execve(2)). Afterwards it is
/// as before.
pub fn with_child_signal<T>(start: impl FnOnce() -> T) -> T {
    let before = change_child_signal(libc::SIG_UNBLOCK);
    let started = start();
    set_mask(&before);
    started
}

/// Makes a program start without blocked signals, which it would inherit from this thread (execve(2)).
pub fn unblock_signals_in(command: &mut Command) -> &mut Command {
    let none = no_signals();
    // SAFETY: after the fork the child only makes the call of `set_mask`, which neither allocates nor takes a
    // lock.
    unsafe {
        command.pre_exec(move || {
            set_mask(&none);
            Ok(())
        })
    }
}

/// Whether SIGPIPE was ignored when this program was started, as systemd does (IgnoreSIGPIPE=). Rust ignores
/// it before main().
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// The dynamic linker, or the C library, runs this before main().
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = note_ignored_pipe;

extern "C" fn note_ignored_pipe() {
    // SAFETY: sigaction writes the present action to `action`, a local, for which all zeros is a valid value.
    // Without a new action nothing changes.
    let is_ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    IGNORED_PIPE.store(is_ignored, Ordering::Relaxed);
}

/// Ignores SIGPIPE if this program was started so. Call it before another program is executed, which
/// inherits that: [`Command`] sets the default action.
pub(super) fn ignore_pipe_as_before() {
    if IGNORED_PIPE.load(Ordering::Relaxed) {
        // SAFETY: an ignored signal runs no code of this process.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
}

/// Makes a program start with SIGPIPE ignored if this one was started so.
pub fn keep_ignored_pipe_in(command: &mut Command) -> &mut Command {
    // SAFETY: the closure only makes a system call, which neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(|| {
            ignore_pipe_as_before();
            Ok(())
        })
    }
}

/// The empty set. sigemptyset(3) may leave the part uninitialised that the kernel doesn't use.
fn no_signals() -> libc::sigset_t {
    // SAFETY: sigset_t consists of integers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Returns the previous mask.
fn change_child_signal(how: libc::c_int) -> libc::sigset_t {
    let (mut child, mut before) = (no_signals(), no_signals());
    // SAFETY: sigaddset changes `child`, and pthread_sigmask reads it and writes `before`; both are locals.
    // Neither can fail: the signal is a valid one, and so is each `how` above.
    unsafe {
        libc::sigaddset(&raw mut child, libc::SIGCHLD);
        libc::pthread_sigmask(how, &raw const child, &raw mut before);
    }
    before
}

/// Restores the default action of signals that shells and nohup(1) make background jobs ignore (HUP, INT,
/// QUIT): an ignored signal stays ignored in every program that this process starts (execve(2)).
pub fn hear_ignored_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the default action runs no code of this process. It can't fail: these signals may be
        // changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Ends this process by the signal that has ended another one, so that its parent sees the same status.
/// Leaves no core dump, because the other has left one. Returns if the signal doesn't end processes.
pub fn die_by(signal: i32) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: None };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let Ok(set) = set_of(&[signal]) else { return };
    // SAFETY: the signal gets its default action and is unblocked; no handler of this process runs.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Ends this process at once with a status: exit handlers (atexit(3)) are skipped.
pub fn end_now(status: i32) -> ! {
    // SAFETY: _exit takes a number, touches no memory of this process and does not return.
    unsafe { libc::_exit(status) }
}
