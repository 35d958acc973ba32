//! How the supervisor's process stands to the program: its parent, or a process beside it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::stdio::{dup2_stderr, stderr};

use super::guard::Ending;
use super::life::Life;

/// The supervisor's relation to the program.
#[derive(Debug)]
pub(super) enum Relation {
    /// It has started the program, passes signals on, and ends as the program ends.
    Parent(Life),
    /// The process that the user started has become the program. The supervisor ends when no process of the
    /// family is left.
    Beside(Program),
}

/// The process that has become the program.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Relation {
    /// # Errors
    /// Those of pidfd_open(2).
    pub(super) fn beside(program: Pid) -> Result<Self, Errno> {
        pidfd_open(program, PidfdFlags::empty()).map(|program| Self::Beside(Program(program)))
    }

    /// Readable when [`Self::turn`] is to be called.
    pub(super) fn turns(&self) -> BorrowedFd<'_> {
        match self {
            Self::Parent(life) => life.as_fd(),
            Self::Beside(program) => program.0.as_fd(),
        }
    }

    /// Readable when [`Self::on_guard`] is to be called.
    pub(super) fn guard(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Parent(life) => Some(life.guard()),
            Self::Beside(_) => None,
        }
    }

    /// Returns the program's ending once nothing is left to supervise.
    pub(super) fn turn(&mut self) -> Option<Ending> {
        match self {
            Self::Parent(life) => life.turn(),
            Self::Beside(_) => {
                detach_stderr();
                None
            }
        }
    }

    pub(super) fn on_guard(&mut self) -> Option<Ending> {
        match self {
            Self::Parent(life) => life.on_guard(),
            Self::Beside(_) => None,
        }
    }

    /// No process can make calls any more. A parent waits until its children have ended, too.
    pub(super) fn on_nobody_left(&self) -> Option<Ending> {
        match self {
            Self::Parent(_) => None,
            Self::Beside(_) => Some(Ending::Exited(0)),
        }
    }

    /// Whether programs of the family may have the library.
    pub(super) fn is_beside(&self) -> bool {
        matches!(self, Self::Beside(_))
    }
}

/// The program has gone to the background. If standard error is a pipe, its reader waits until everyone has
/// closed it, as daemons do. From now on messages go to the system's log, if there is one.
fn detach_stderr() {
    let is_pipe = fstat(stderr()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    if !is_pipe {
        return;
    }
    let log = UnixDatagram::unbound().and_then(|log| log.connect("/dev/log").map(|()| OwnedFd::from(log)));
    let other = log.or_else(|_| File::options().write(true).open("/dev/null").map(OwnedFd::from));
    // Without either, the pipe stays open.
    let _ = other.map(|other| dup2_stderr(&other));
}

/// Only for descriptors that no one reads or writes: standard input and output of a process beside the
/// program.
pub(super) fn detach_stdio() -> Result<(), Errno> {
    use rustix::stdio::{dup2_stdin, dup2_stdout};
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)
}
