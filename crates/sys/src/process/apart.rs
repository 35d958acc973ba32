//! A part of this program in a process of its own.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use rustix::process::Pid;

use super::fork::{Forked, fork};
use super::signals::{block_all_signals, end_now};
use crate::error::CallError;

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;
/// The status after a panic, as Rust's own.
const PANICKED: i32 = 101;

/// Forks a process that does `work` and ends with the status that it returns. It has the standard streams,
/// `kept` and `others`, and no other descriptor of this process; it blocks all signals that can be blocked,
/// because those of a terminal or of a service manager are for this process. `work` must not use values of
/// this process that own descriptors, but those of `others`, which it must not drop.
///
/// # Errors
/// EINVAL if this process has several threads, otherwise those of fork(2).
pub fn fork_apart(
    kept: BorrowedFd<'_>,
    others: &[RawFd],
    work: impl FnOnce(OwnedFd) -> i32,
) -> Result<Pid, CallError> {
    match fork()? {
        Forked::Parent(child) => Ok(child),
        Forked::Child => {
            block_all_signals();
            let status = keep_only(kept.as_raw_fd(), others.to_vec())
                .map_or(PANICKED, |kept| catch_unwind(AssertUnwindSafe(|| work(kept))).unwrap_or(PANICKED));
            // Values of the parent are not dropped: their descriptors are closed, or have a new owner.
            end_now(status)
        }
    }
}

/// Closes all descriptors but the standard streams, `kept` and `others`.
fn keep_only(kept: RawFd, mut others: Vec<RawFd>) -> io::Result<OwnedFd> {
    if kept < FIRST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    others.push(kept);
    others.sort_unstable();
    let mut first = FIRST;
    for open in others {
        if open > first {
            close_range(first, open - 1)?;
        }
        first = first.max(open + 1);
    }
    close_range(first, RawFd::MAX)?;
    // SAFETY: OwnedFd requires an open descriptor without another owner. Its owner is a value of the parent's
    // part of the program, which the child neither uses nor drops: `fork_apart` ends the process instead
    // of returning.
    Ok(unsafe { OwnedFd::from_raw_fd(kept) })
}

/// Both ends included.
fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: the call takes numbers only. The owners of these descriptors are values of the parent's part of
    // the program, which the child neither uses nor drops: `fork_apart` ends the process instead of
    // returning.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if answer == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        // Before Linux 5.9.
        Some(Errno::NOSYS) => close_each(first, last),
        error => Err(error.unwrap_or(Errno::IO).into()),
    }
}

fn close_each(first: RawFd, last: RawFd) -> io::Result<()> {
    let names: Vec<_> = std::fs::read_dir("/proc/self/fd")?.map_while(Result::ok).collect();
    let numbers = names.iter().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| (first..=last).contains(number)) {
        // SAFETY: as in `close_range`. The directory's own descriptor is closed already: then this fails with
        // EBADF.
        unsafe { libc::close(number) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_forked() {
        // The test harness runs this on a thread of its own.
        let file = File::open("/dev/null").unwrap();
        let error = fork_apart(std::os::fd::AsFd::as_fd(&file), &[], |_| 0).unwrap_err();
        assert_eq!((error.call, error.errno), ("fork", Errno::INVAL));
    }
}
