//! A process that removes what truepeer has pinned in the kernel, once that has ended: only the user that has
//! pinned it may do so, and truepeer has become another one (`truepeer-pins` in `ps`). Meanwhile it pins the
//! programs on devices that come later.
//!
//! It reads nothing but the word that truepeer is about to end, and what the kernel says of devices. So it
//! keeps its user, and no other power.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, getpid};
use truepeer_sys::process::fork_apart;

use super::client::{greeting, reap};
use super::owner::Owner;
use super::service::is_ready;
use super::wire::Answer;

/// How long the removal may take: detaching from a device waits for a grace period.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process. Dropped, it removes what nobody uses, and ends.
#[derive(Debug)]
pub struct PinsKeeper {
    line: OwnedFd,
    process: Pid,
}

impl PinsKeeper {
    /// Forks it. `confine` makes it give up what it does not need, and returns what it could not give up.
    /// `follow` returns as soon as the line is readable; it may use the descriptors `kept`. Call it with one
    /// thread, before this process gives up its own user.
    ///
    /// # Errors
    /// It could not be forked or confined.
    pub(crate) fn start(
        kept: &[RawFd],
        confine: impl FnOnce() -> anyhow::Result<Vec<String>>,
        follow: impl FnOnce(BorrowedFd<'_>),
        remove: impl FnOnce(),
    ) -> anyhow::Result<(Self, Vec<String>)> {
        let (line, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context("socketpair")?;
        let owner = getpid();
        let process = fork_apart(theirs.as_fd(), kept, |line| serve(&line, owner, confine, follow, remove))?;
        drop(theirs);
        let keeper = Self { line, process };
        match greeting(keeper.line.as_fd())? {
            Answer::Ready { missing } => Ok((keeper, missing)),
            other => Err(anyhow!("it says {other:?}")),
        }
    }
}

impl Drop for PinsKeeper {
    fn drop(&mut self) {
        // If it has ended, what is pinned stays for the next start.
        let _ = send(&self.line, &[0], SendFlags::NOSIGNAL);
        reap(self.process, PATIENCE);
    }
}

fn serve(
    line: &OwnedFd,
    owner: Pid,
    confine: impl FnOnce() -> anyhow::Result<Vec<String>>,
    follow: impl FnOnce(BorrowedFd<'_>),
    remove: impl FnOnce(),
) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-pins");
    let owner = Owner::new(owner);
    if !is_ready(line.as_fd(), confine) {
        return 1;
    }
    follow(line.as_fd());
    wait_for_the_end(line.as_fd(), &owner);
    remove();
    0
}

fn wait_for_the_end(line: BorrowedFd<'_>, owner: &Owner) {
    let mut word = [0];
    let is_said = matches!(retry_on_intr(|| recv(line, &mut word[..], RecvFlags::empty())), Ok((1, _)));
    if !is_said {
        owner.wait_closed();
    }
}
