//! The owner of a socket: whom the kernel tells by a signal that it is readable (O_ASYNC, F_SETOWN, F_SETSIG;
//! fcntl(2)).

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Owner {
    kind: i32,
    number: i32,
}

const F_GETSIG: i32 = 11;
const F_GETOWN_EX: i32 = 16;
/// The owner is a thread, or a process. It may also be a group of processes.
const F_OWNER_TID: i32 = 0;
const F_OWNER_PID: i32 = 1;

/// `siginfo_t` of a signal about a descriptor.
#[repr(C)]
struct About {
    signal: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    band: i64,
    fd: i32,
    _rest: [u8; 100],
}

/// The kernel takes its own code, POLL_IN, from nobody else.
const SI_SIGIO: i32 = -5;

/// Sends the signal that the kernel sends when the socket becomes readable; `number` is its descriptor in
/// `process`. `false` if none is wanted, or if the owner is not this process or a thread of it: the caller
/// may have more rights than a program, which could have any signal sent to anybody else.
///
/// # Errors
/// Those of fcntl(2); ESRCH if the owner has ended, EAGAIN if it has too many signals.
pub fn signal_owner(socket: BorrowedFd<'_>, process: i32, number: RawFd) -> Result<bool, Errno> {
    if !fcntl_getfl(socket)?.contains(OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned())) {
        return Ok(false);
    }
    let mut owner = Owner::default();
    // SAFETY: F_GETOWN_EX writes one `struct f_owner_ex`, whose layout `Owner` has.
    if unsafe { libc::fcntl(socket.as_raw_fd(), F_GETOWN_EX, &raw mut owner) } < 0 {
        return Err(last_error());
    }
    // SAFETY: F_GETSIG takes no argument.
    let signal = unsafe { libc::fcntl(socket.as_raw_fd(), F_GETSIG) };
    let is_its = match owner.kind {
        F_OWNER_TID => process_of(owner.number) == Some(process),
        F_OWNER_PID => owner.number == process,
        _ => false,
    };
    if !is_its || signal < 0 {
        return Ok(false);
    }
    // As the kernel does without F_SETSIG, but with the descriptor.
    let signal = if signal == 0 { libc::SIGIO } else { signal };
    let band = i64::from(libc::POLLIN | libc::POLLRDNORM);
    let about = About { signal, errno: 0, code: SI_SIGIO, _pad: 0, band, fd: number, _rest: [0; 100] };
    let about = &raw const about;
    // SAFETY: both calls read a siginfo_t of 128 bytes, which `About` is, and keep nothing.
    let sent = unsafe {
        match owner.kind {
            F_OWNER_TID => libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, owner.number, signal, about),
            _ => libc::syscall(libc::SYS_rt_sigqueueinfo, process, signal, about),
        }
    };
    if sent < 0 { Err(last_error()) } else { Ok(true) }
}

/// A thread's process.
fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

const _: () = assert!(size_of::<About>() == 128);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_owner_is_told_once_it_wants_signals() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(signal_owner(listener.as_fd(), process, fd), Ok(false));
        let signal = libc::SIGRTMIN() + 3;
        // SAFETY: both sets are locals, which sigemptyset initialises. The other calls read or write a local
        // each, or take numbers.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            let own = Owner { kind: F_OWNER_TID, number: libc::gettid() };
            assert_eq!(libc::fcntl(fd, 15, &raw const own), 0, "F_SETOWN_EX");
            assert_eq!(libc::fcntl(fd, 10, signal), 0, "F_SETSIG");
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC), 0);
            assert_eq!(signal_owner(listener.as_fd(), process + 1, fd), Ok(false), "another's thread");
            assert_eq!(signal_owner(listener.as_fd(), process, fd), Ok(true));
            let mut about: About = core::mem::zeroed();
            let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let got = libc::sigtimedwait(&raw const set, (&raw mut about).cast(), &raw const none);
            assert_eq!((got, about.fd, about.code), (signal, fd, SI_SIGIO));
            assert_eq!(about.band & i64::from(libc::POLLIN), i64::from(libc::POLLIN));
            let group = Owner { kind: 2, number: libc::getpgrp() };
            assert_eq!(libc::fcntl(fd, 15, &raw const group), 0, "F_SETOWN_EX");
            assert_eq!(signal_owner(listener.as_fd(), process, fd), Ok(false), "a group");
            let another = Owner { kind: F_OWNER_PID, number: libc::getppid() };
            assert_eq!(libc::fcntl(fd, 15, &raw const another), 0, "F_SETOWN_EX");
            assert_eq!(signal_owner(listener.as_fd(), process, fd), Ok(false), "another process");
        }
    }
}
