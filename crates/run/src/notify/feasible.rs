//! Checks before the start whether a program can be supervised, and names the alternatives if not.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use anyhow::anyhow;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, WaitOptions, getpid, set_dumpable_behavior, waitpid};
use truepeer_sys::process::{Forked, Reach, descriptor_of, end_now, fork, read_memory, write_memory};
use truepeer_sys::seccomp;

use crate::program::{Kind, Program};

/// The line of a systemd unit that permits a supervisor. It names each of [`CALLS`], and
/// ptrace(2), by which threads in poll() and select() are woken where nothing else does (`pollers`).
const LINE: &str = "SystemCallFilter=seccomp pidfd_getfd process_vm_readv process_vm_writev ptrace";

/// Why a program can't be supervised.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Infeasible {
    #[error("this kernel ({}) is too old: a supervisor needs Linux 5.19", release())]
    OldKernel,
    #[error("this process is supervised already, and the kernel permits one supervisor")]
    Supervised,
    #[error(
        "a supervisor needs {0}(2), which is forbidden here ({1}): in a systemd unit add the line {LINE}, in \
        a container allow it (docker run --cap-add SYS_PTRACE)"
    )]
    Forbidden(&'static str, Errno),
    #[error(
        "a supervisor needs {0}(2), and a seccomp filter kills whoever calls it here: in the systemd unit \
        add the line {LINE}"
    )]
    KilledBySeccomp(&'static str),
    #[error("can't check which calls are permitted: {0}")]
    Unknown(#[from] io::Error),
    #[error("{} is {}, and its system calls have other numbers", file.display(), Kind::OtherMachine)]
    OtherMachine {
        /// The program.
        file: PathBuf,
    },
    #[error(
        "this process can't read the memory of the program that it starts ({0}): it needs the same user or \
        CAP_SYS_PTRACE (in a systemd unit CapabilityBoundingSet= and, with User=, AmbientCapabilities=; \
        docker run --cap-add SYS_PTRACE), and a kernel.yama.ptrace_scope below 2"
    )]
    NoReach(Errno),
}

impl Infeasible {
    /// The reason of a failed installation of a filter.
    pub(super) fn of_install(error: &io::Error) -> Self {
        match Errno::from_io_error(error).unwrap_or(Errno::IO) {
            Errno::INVAL => Self::OldKernel,
            Errno::BUSY => Self::Supervised,
            errno => Self::Forbidden("seccomp", errno),
        }
    }

    /// With the alternatives for this program.
    pub(super) fn instead(self, program: &Program) -> anyhow::Error {
        let preload = if program.kind == Kind::Dynamic { "--via preload, " } else { "" };
        anyhow!("{self}; or use {preload}truepeer attach or truepeer proxy")
    }
}

/// The calls of a supervisor that filters of units and containers forbid. Each probe has no effect, and fails
/// only if the call is forbidden.
const CALLS: [(&str, Probe); 4] = [
    ("seccomp", || {
        seccomp::is_supported().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }),
    ("pidfd_getfd", || match descriptor_of(own_number(), 0) {
        Err(Reach::Forbidden(errno)) => Err(errno),
        _ => Ok(()),
    }),
    // Address 0 is never mapped.
    ("process_vm_readv", || fails_with_fault(read_memory(own_number(), 0, &mut [0]))),
    ("process_vm_writev", || fails_with_fault(write_memory(own_number(), 0, &[0]))),
];

type Probe = fn() -> Result<(), Errno>;

fn own_number() -> i32 {
    getpid().as_raw_nonzero().get()
}

fn fails_with_fault(answer: Result<(), Errno>) -> Result<(), Errno> {
    answer.or_else(|errno| if errno == Errno::FAULT { Ok(()) } else { Err(errno) })
}

/// Whether the kernel permits a supervisor. A child asks, because an inherited filter may kill whoever asks
/// (systemd's SystemCallFilter=).
pub(super) fn permitted() -> Result<(), Infeasible> {
    let (answers, to_parent) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let child = match fork().map_err(io::Error::other)? {
        Forked::Child => {
            // A core dump and a report of a crash would be misleading.
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
            for (_, call) in CALLS {
                let errno = call().err().map_or(0, Errno::raw_os_error);
                let _ = rustix::io::write(&to_parent, &errno.to_ne_bytes());
            }
            end_now(0)
        }
        Forked::Parent(child) => child,
    };
    drop(to_parent);
    let mut bytes = Vec::new();
    let read = File::from(answers).read_to_end(&mut bytes);
    let unexpected = unexpected_end(child);
    read?;
    let mut answers = bytes.chunks_exact(4).map(|errno| errno.try_into().map_or(0, i32::from_ne_bytes));
    for (name, _) in CALLS {
        match answers.next() {
            Some(0) => {}
            Some(libc::EINVAL) if name == "seccomp" => return Err(Infeasible::OldKernel),
            Some(errno) => return Err(Infeasible::Forbidden(name, Errno::from_raw_os_error(errno))),
            None => return Err(unexpected.map_or(Infeasible::KilledBySeccomp(name), Infeasible::Unknown)),
        }
    }
    Ok(())
}

/// `None` for SIGSYS. Where SIGCHLD is ignored the kernel tells nothing: then SIGSYS is the only likely one.
fn unexpected_end(child: Pid) -> Option<io::Error> {
    let status = loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            waited => break waited.ok().flatten()?.1,
        }
    };
    let signal = status.terminating_signal().filter(|signal| *signal != libc::SIGSYS)?;
    Some(io::Error::other(format!("signal {signal} killed the child that checks")))
}

/// Checks the kernel and the file.
pub(super) fn check(program: &Program) -> anyhow::Result<()> {
    let checked = permitted().and_then(|()| match program.kind {
        Kind::OtherMachine => Err(Infeasible::OtherMachine { file: program.file.clone() }),
        _ => Ok(()),
    });
    checked.map_err(|why| why.instead(program))
}

/// Checks that the descriptors of the started program can be duplicated. Later the failure could be reported
/// only to the program.
pub(super) fn check_reach(pid: i32, program: &Program) -> anyhow::Result<()> {
    match descriptor_of(pid, 0) {
        Err(Reach::Forbidden(errno)) => Err(Infeasible::NoReach(errno).instead(program)),
        _ => Ok(()),
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
