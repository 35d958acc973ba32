//! Checks before the start whether a program can be supervised, and names the alternatives if not.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, waitpid};
use truepeer_sys::process::{Forked, Reach, descriptor_of, end_now, fork, read_memory, write_memory};
use truepeer_sys::seccomp;

use crate::run::program::{Kind, Program};

/// Why a program can't be supervised.
#[derive(Debug, thiserror::Error)]
pub(super) enum Infeasible {
    #[error(
        "this kernel ({0}) is too old: a supervisor needs Linux 5.19; for a dynamically linked program use --via preload, otherwise truepeer attach or truepeer proxy"
    )]
    OldKernel(String),
    #[error(
        "seccomp(2) is forbidden here ({0}), perhaps by a container's profile: allow it, in a systemd unit SystemCallFilter=seccomp pidfd_getfd process_vm_readv process_vm_writev; or use --via preload for a dynamically linked program, truepeer attach or truepeer proxy"
    )]
    Forbidden(io::Error),
    #[error(
        "a seccomp filter ends whoever calls seccomp(2), pidfd_getfd(2), process_vm_readv(2) or process_vm_writev(2) here, and a supervisor needs them: add this line to the unit: SystemCallFilter=seccomp pidfd_getfd process_vm_readv process_vm_writev; or use --via preload for a dynamically linked program, truepeer attach or truepeer proxy"
    )]
    /// A probe was killed by a signal.
    Deadly,
    #[error("{} is {}, and its system calls have other numbers: use truepeer attach or truepeer proxy", file.display(), Kind::OtherMachine)]
    OtherMachine {
        /// The program.
        file: PathBuf,
    },
    #[error(
        "this process can't read the memory of the program that it starts ({0}): it needs the same user or CAP_SYS_PTRACE, a kernel.yama.ptrace_scope below 2, and in a container pidfd_getfd(2) and process_vm_writev(2) (docker run --cap-add SYS_PTRACE); or use --via preload, truepeer attach or truepeer proxy"
    )]
    NoReach(Errno),
}

/// Whether the kernel permits a supervisor.
pub(in crate::run) fn is_possible() -> bool {
    permitted().is_ok()
}

/// Whether the kernel permits a supervisor. A child asks, because an inherited filter may kill whoever asks
/// (systemd's SystemCallFilter=).
pub(super) fn permitted() -> Result<(), Infeasible> {
    let child = match fork().map_err(|error| Infeasible::Forbidden(io::Error::other(error)))? {
        Forked::Child => end_now(probe()),
        Forked::Parent(child) => child,
    };
    let status = loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Infeasible::Forbidden(errno.into())),
        }
    };
    match status.exit_status() {
        Some(0) => Ok(()),
        Some(errno) if errno == Errno::INVAL.raw_os_error() => Err(Infeasible::OldKernel(release())),
        Some(errno) => Err(Infeasible::Forbidden(io::Error::from_raw_os_error(errno))),
        None => Err(Infeasible::Deadly),
    }
}

/// 0, or the error number of seccomp(2). Whether the other calls fail is checked with the program.
fn probe() -> i32 {
    let answer = seccomp::is_supported();
    let this = getpid().as_raw_nonzero().get();
    let _ = descriptor_of(this, 0);
    // Address 0 is never mapped: both fail without an effect.
    let _ = (read_memory(this, 0, &mut [0]), write_memory(this, 0, &[0]));
    answer.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EPERM))
}

/// Checks the kernel and the file.
pub(super) fn check(program: &Program) -> Result<(), Infeasible> {
    permitted()?;
    match program.kind {
        Kind::OtherMachine => Err(Infeasible::OtherMachine { file: program.file.clone() }),
        _ => Ok(()),
    }
}

/// Checks that the descriptors of the started program can be duplicated. Later the failure could be reported only
/// to the program.
pub(super) fn check_reach(pid: i32) -> Result<(), Infeasible> {
    match descriptor_of(pid, 0) {
        Err(Reach::Forbidden(errno)) => Err(Infeasible::NoReach(errno)),
        _ => Ok(()),
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
