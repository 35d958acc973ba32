//! The VPP that truepeer started. A file identifies its process, so that another process is never mistaken
//! for it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// The state that `down`, `status` and `run` need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) pid: i32,
    /// The kernel's start time of the process. Together with the process id it identifies one process until
    /// the next boot.
    pub(super) started: u64,
    /// The boot in which it started.
    pub(super) boot: String,
    pub(super) vpp: PathBuf,
    pub(super) vppctl: PathBuf,
    /// The name of its shared memory.
    pub(super) prefix: String,
    /// The version, for people.
    pub(super) layout: String,
    pub(super) namespaces: Vec<String>,
    /// The namespace of the proxy itself.
    pub(super) proxy: String,
    /// Whether `up` finished.
    pub(super) complete: bool,
}

impl State {
    /// Reads the file; `None` if it doesn't exist.
    pub(super) fn read(file: &Path) -> Result<Option<Self>> {
        let text = match fs::read(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| file.display().to_string())?,
        };
        serde_json::from_slice(&text).map(Some).with_context(|| file.display().to_string())
    }

    /// Replaces the file atomically: a reader sees the old or the new state.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let unfinished = file.with_extension("new");
        fs::write(&unfinished, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&unfinished, file))
            .with_context(|| file.display().to_string())
    }

    /// Returns the process, if it is still running.
    pub(super) fn process(&self) -> Result<Option<Process>> {
        if self.boot != boot()? {
            return Ok(None);
        }
        let Some(number) = Pid::from_raw(self.pid) else { return Ok(None) };
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            // EINVAL, ENOENT: the id now belongs to a thread.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
            handle => handle.context("pidfd_open")?,
        };
        // Check the start time after opening the pidfd. If it matches, the pidfd refers to the same process:
        // the id can't have been reused in between.
        match started(self.pid) {
            Some((start, alive)) if start == self.started && alive => Ok(Some(Process { handle })),
            _ => Ok(None),
        }
    }
}

/// A running process, identified by its pidfd.
#[derive(Debug)]
pub(super) struct Process {
    handle: OwnedFd,
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            // ESRCH: it has already ended, which is the signal's purpose.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("pidfd_send_signal"),
        }
    }

    /// Whether it ended within that time.
    pub(super) fn ends_within(&self, timeout: Duration) -> Result<bool> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        self.ends(Some(&timeout))
    }

    pub(super) fn wait_for_end(&self) -> Result<()> {
        self.ends(None).map(drop)
    }

    /// rustix makes its system calls directly, so that VPP's library doesn't intercept them.
    fn ends(&self, timeout: Option<&Timespec>) -> Result<bool> {
        loop {
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], timeout) {
                Err(Errno::INTR) => {}
                ended => return Ok(ended.context("poll")? > 0),
            }
        }
    }
}

/// The identifier of the current boot.
pub(super) fn boot() -> Result<String> {
    let file = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(file).context(file)?.trim().to_owned())
}

/// The start time of a process in clock ticks since boot, and whether it is not a zombie.
pub(super) fn started(pid: i32) -> Option<(u64, bool)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 22 and 3 of proc_pid_stat(5). Field 2, the name, may contain anything, even parentheses.
fn parse_stat(stat: &str) -> Option<(u64, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((start, !matches!(state, "Z" | "X" | "x")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(pid: i32, started: u64) -> State {
        State {
            pid,
            started,
            boot: boot().unwrap(),
            vpp: "/usr/bin/vpp".into(),
            vppctl: "/usr/bin/vppctl".into(),
            prefix: "truepeer-vpp-7".into(),
            layout: "loopback".into(),
            namespaces: vec!["proxy".into()],
            proxy: "proxy".into(),
            complete: true,
        }
    }

    fn sleeper() -> std::process::Child {
        std::process::Command::new("sleep").arg("1000").spawn().unwrap()
    }

    fn number(child: &std::process::Child) -> i32 {
        i32::try_from(child.id()).unwrap()
    }

    #[test]
    fn a_name_with_parentheses_hides_nothing() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(&format!("7 (vpp_main) {fields}")), Some((4711, true)));
        assert_eq!(parse_stat(&format!("7 (a) Z 1 (b) {}", fields.replace('S', "Z"))), Some((4711, false)));
        assert_eq!(parse_stat("7 (x) S 1"), None);
    }

    #[test]
    fn a_started_process_is_found_and_ended() {
        let mut child = sleeper();
        let (start, alive) = started(number(&child)).unwrap();
        assert!(alive);
        let process = state(number(&child), start).process().unwrap().unwrap();
        assert!(!process.ends_within(Duration::ZERO).unwrap());
        process.signal(Signal::TERM).unwrap();
        assert!(process.ends_within(Duration::from_secs(60)).unwrap());
        // It is a zombie until it is waited for.
        assert!(state(number(&child), start).process().unwrap().is_none());
        child.wait().unwrap();
        assert!(state(number(&child), start).process().unwrap().is_none());
        process.signal(Signal::TERM).unwrap();
    }

    #[test]
    fn another_process_of_that_number_is_not_taken_for_it() {
        let mut child = sleeper();
        let (start, _) = started(number(&child)).unwrap();
        assert!(state(number(&child), start - 1).process().unwrap().is_none());
        let another_boot = State { boot: "another".into(), ..state(number(&child), start) };
        assert!(another_boot.process().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let file = std::env::temp_dir().join(format!("truepeer-vpp-state-{}.json", std::process::id()));
        assert_eq!(State::read(&file).unwrap(), None);
        state(7, 8).write(&file).unwrap();
        assert_eq!(State::read(&file).unwrap(), Some(state(7, 8)));
        fs::write(&file, "{}").unwrap();
        let error = format!("{:#}", State::read(&file).unwrap_err());
        fs::remove_file(&file).unwrap();
        assert!(error.contains("truepeer-vpp-state"), "{error}");
    }
}
