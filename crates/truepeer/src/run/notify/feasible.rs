//! Saying early and clearly when a program can't be supervised, and what to use instead.

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
        "this kernel ({0}) is too old: a supervisor needs Linux 5.19; use --via preload if the program is dynamically linked, or truepeer attach or truepeer proxy"
    )]
    OldKernel(String),
    #[error(
        "seccomp is forbidden here ({0}), by a container's profile for example: allow seccomp(2), or use --via preload if the program is dynamically linked, or truepeer attach or truepeer proxy"
    )]
    Forbidden(io::Error),
    #[error("{} is {}, so that its calls have other numbers: use truepeer attach or truepeer proxy", file.display(), Kind::OtherMachine)]
    OtherMachine {
        /// The program.
        file: PathBuf,
    },
    #[error(
        "this process may not look into the program that it starts ({0}): it needs the same user or CAP_SYS_PTRACE, a kernel.yama.ptrace_scope below 2, and in a container pidfd_getfd(2) and process_vm_writev(2) (docker run --cap-add SYS_PTRACE); or use --via preload, truepeer attach or truepeer proxy"
    )]
    NoReach(Errno),
}

/// Whether the kernel and the file allow it.
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

/// Whether the started program's descriptors can be had. Said now: later there would be nobody to tell but the program.
pub(super) fn check_reach(pid: i32) -> Result<(), Infeasible> {
    match descriptor_of(pid, 0) {
        Err(Reach::Forbidden(errno)) => Err(Infeasible::NoReach(errno)),
        _ => Ok(()),
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
