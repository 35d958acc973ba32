//! Two processes that watch each other, so that no call of the program stays unanswered.
//!
//! ```text
//! guard: the process that was started; passes on signals and messages; ends as its child ends
//!  └─ supervisor: answers calls
//!      └─ the program, and whatever it starts
//! ```
//! Without a supervisor every accept() fails with ENOSYS, and many servers log that in a tight loop. When its
//! parent ends, the kernel kills the program itself, but not the program's children. So whichever of the two
//! survives kills all of them: orphans become its children (PR_SET_CHILD_SUBREAPER).

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::process::{Forked, SignalFd, die_by, fork};

use super::service_manager::NotifyRelay;

pub(super) const SIGCHLD: i32 = 17;

/// The supervisor's view of its guard.
#[derive(Debug)]
pub(super) struct Guard {
    /// On which it tells the signals that it got.
    line: OwnedFd,
}

impl Guard {
    /// The next signal that it got; an error once it has ended.
    ///
    /// # Errors
    /// EAGAIN if it has told nothing, EPIPE if it has ended.
    pub(super) fn told(&self) -> Result<i32, Errno> {
        let mut signal = [0];
        match recv(&self.line, &mut signal, RecvFlags::DONTWAIT)? {
            (0, _) => Err(Errno::PIPE),
            _ => Ok(signal[0].into()),
        }
    }
}

/// Readable when the guard has told something, or has ended.
impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// The process in which [`stand`] returns.
#[derive(Debug)]
pub(super) enum Side {
    /// The supervisor, which continues.
    Supervisor(Guard),
    /// The guard, after everything has ended.
    Guard(ExitCode),
}

/// Forks into guard and supervisor. Call it before the process has a second thread. The supervisor keeps the
/// sockets that a service manager `passed`, the guard the `relay`.
pub(super) fn stand(
    signals: &SignalFd,
    passed: &mut PassedSockets,
    relay: Option<NotifyRelay>,
) -> Result<Side> {
    set_child_subreaper(Some(getpid())).context("can't adopt the program's orphans")?;
    let (supervisors, guards) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .context("socketpair")?;
    match fork()? {
        Forked::Child => {
            drop((guards, relay));
            set_child_subreaper(Some(getpid())).context("can't adopt the program's orphans")?;
            Ok(Side::Supervisor(Guard { line: supervisors }))
        }
        Forked::Parent(supervisor) => {
            drop(supervisors);
            drop(core::mem::take(passed));
            let mut relay = relay;
            let ending = watch(supervisor, signals, guards.as_fd(), relay.as_mut());
            end_family();
            if let Some(relay) = relay {
                relay.remove();
            }
            drop(guards);
            Ok(Side::Guard(ending.follow()))
        }
    }
}

/// How long the guard keeps a signal. If it was for all processes, the supervisor has it by then, and so has
/// the program.
const FOR_ALL: Duration = Duration::from_millis(100);

/// Waits until the supervisor ends, with the program's ending.
fn watch(
    supervisor: Pid,
    signals: &SignalFd,
    line: BorrowedFd<'_>,
    mut relay: Option<&mut NotifyRelay>,
) -> Ending {
    let mut kept = VecDeque::new();
    loop {
        let mut sources = vec![PollFd::new(signals, PollFlags::IN)];
        sources.extend(relay.as_ref().map(|relay| PollFd::new(relay, PollFlags::IN)));
        // Read the signals whether or not the wait was interrupted.
        let next = kept.front().map(|(due, _): &(Instant, u8)| due.saturating_duration_since(Instant::now()));
        let limit = next.and_then(|next| Timespec::try_from(next).ok());
        let _ = poll(&mut sources, limit.as_ref());
        // One message, so that a flood of them holds no signal back.
        if let Some(relay) = &mut relay {
            relay.pass_on();
        }
        while let Some(caught) = signals.next() {
            if caught.signal == SIGCHLD {
                if let Some(ending) = ending_of(supervisor) {
                    return ending;
                }
            } else if !caught.from_kernel
                && let Ok(signal) = u8::try_from(caught.signal)
            {
                kept.push_back((Instant::now() + FOR_ALL, signal));
            }
        }
        while let Some((_, signal)) = kept.pop_front_if(|(due, _)| *due <= Instant::now()) {
            // The supervisor may have ended.
            let _ = send(line, &[signal], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

fn ending_of(supervisor: Pid) -> Option<Ending> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == supervisor => return Some(Ending::of(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Kills this process's children. Their children then become its own. Repeats until none is left.
pub(super) fn end_family() {
    loop {
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

pub(super) fn children() -> Vec<Pid> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
}

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
