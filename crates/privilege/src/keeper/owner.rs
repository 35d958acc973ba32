//! The process that a helper works for, its parent, and the moment at which that has let go of everything.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

/// The kernel closes the descriptors of a killed process one after another, and its threads end one after
/// another: what it has locked may be so for longer than its end of the line.
const CLOSING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Owner {
    process: Pid,
    /// Readable once all its threads have ended (pidfd_open, Linux 5.3), and the last one closes the
    /// descriptors. The kernel gives this process another parent when the first one ends.
    end: Option<OwnedFd>,
}

impl Owner {
    /// Call it before a filter of system calls.
    pub(super) fn new(process: Pid) -> Self {
        let end = pidfd_open(process, PidfdFlags::empty()).ok();
        // The number may be another process's by now.
        Self { process, end: end.filter(|_| getppid() == Some(process)) }
    }

    pub(super) fn id(&self) -> Pid {
        self.process
    }

    /// Waits until it has closed its descriptors; ten seconds at most.
    pub(super) fn wait_closed(&self) {
        if let Some(end) = &self.end {
            let _ = retry_on_intr(|| poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&CLOSING)));
            return;
        }
        let deadline = Instant::now() + Duration::from_secs(CLOSING.tv_sec.unsigned_abs());
        while getppid() == Some(self.process) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}
