//! How a program ended, and how to end this process the same way.

use std::process::ExitCode;

use rustix::process::WaitStatus;
use truepeer_sys::process::die_by;

pub(super) const SIGCHLD: i32 = 17;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a status.
    Exited(u8),
    /// By a signal.
    Killed(i32),
}

impl Ending {
    /// Converts the status of wait().
    pub(super) fn of(status: WaitStatus) -> Self {
        let code = u8::try_from(status.exit_status().unwrap_or_default()).unwrap_or(u8::MAX);
        status.terminating_signal().map_or(Self::Exited(code), Self::Killed)
    }

    /// Ends this process in the same way. Returns only if the process must end with a status.
    pub(crate) fn follow(self) -> ExitCode {
        match self {
            Self::Exited(status) => ExitCode::from(status),
            Self::Killed(signal) => {
                die_by(signal);
                ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
        }
    }
}
