//! Checks before the start whether a program can be supervised, and names the alternatives if not.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use truepeer_sys::process::{Reach, descriptor_of};
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
        "seccomp(2) is forbidden here ({0}), perhaps by a container's profile: allow it, or use --via preload for a dynamically linked program, truepeer attach or truepeer proxy"
    )]
    Forbidden(io::Error),
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
    seccomp::is_supported().is_ok()
}

/// Checks the kernel and the file.
pub(super) fn check(program: &Program) -> Result<(), Infeasible> {
    seccomp::is_supported().map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::INVAL) => Infeasible::OldKernel(release()),
        _ => Infeasible::Forbidden(error),
    })?;
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
