//! The side of the process that parses what the network sends.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use truepeer_sys::process::fork_apart;
use truepeer_sys::repair::{Order, Repairer, Stands, repair_by};
use truepeer_sys::{CallError, Named as _};

use super::super::client::{LAST, greeting, reap, wait_readable};
use super::super::wire::Answer;
use super::service::serve;
use super::wire::{self, Outcome, Received};

/// How often, and how long each time, an answer is waited for: a second. A machine that stands still for
/// longer ends one of these waits, not all.
const WAITS: u32 = 4;
const WAIT: Duration = Duration::from_millis(250);

/// This process's repair keeper. Dropped, it ends.
#[derive(Debug)]
pub struct RepairKeeper(Arc<Line>);

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    /// The keeper's end, to take back what it does not receive any more: in its queue, a duplicate of a
    /// session's socket would hold up the close.
    theirs: OwnedFd,
    process: Pid,
    /// Readable once the process has ended (pidfd_open, Linux 5.3).
    end: OwnedFd,
    /// The number of the last order. One order is under way at a time.
    number: Mutex<u32>,
    /// It has ended, or did not answer in time.
    is_gone: AtomicBool,
    /// waitpid(2) was called for it, so it is no zombie.
    is_reaped: AtomicBool,
}

impl RepairKeeper {
    /// Forks it. `confine` makes it give up what it does not need, and returns what it could not give up.
    /// Call it with one thread, before this process gives up its own capabilities.
    ///
    /// # Errors
    /// It could not be forked or confined.
    pub(crate) fn start(
        confine: impl FnOnce() -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<(Self, Vec<String>)> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context("socketpair")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(WAIT)).context("setsockopt(SO_RCVTIMEO)")?;
        let process = fork_apart(theirs.as_fd(), &[], |line| serve(&line, confine))?;
        let end = pidfd_open(process, PidfdFlags::empty()).context("pidfd_open").inspect_err(|_| {
            // It ends behind its greeting, which nobody reads.
            let _ = shutdown(&socket, Shutdown::Both);
            reap(process, LAST);
        })?;
        let line = Line::new([socket, theirs], process, end);
        // Dropped on an error, which ends the process.
        let keeper = Self(Arc::new(line));
        match greeting(keeper.0.socket.as_fd())? {
            Answer::Ready { missing } => Ok((keeper, missing)),
            other => Err(anyhow!("it says {other:?}")),
        }
    }

    /// Makes it carry out the orders of [`truepeer_sys::repair`].
    pub(crate) fn repair(&self) {
        repair_by(Box::new(Orders(Arc::clone(&self.0))));
    }

    /// Readable once the keeper has ended, until [`Self::notice`] was called.
    pub fn watched(&self) -> Option<BorrowedFd<'_>> {
        let is_reaped = self.0.is_reaped.load(Ordering::Relaxed);
        (!is_reaped).then(|| self.0.end.as_fd())
    }

    /// Reaps the keeper if it has ended. Logs that, unless it was lost before.
    pub fn notice(&self) {
        if self.watched().is_some_and(|end| wait_readable(end, Duration::ZERO)) {
            self.0.lose("has ended by itself");
            self.0.reap();
        }
    }
}

impl Drop for RepairKeeper {
    fn drop(&mut self) {
        self.0.is_gone.store(true, Ordering::Relaxed);
        // Can't fail: the socket is connected.
        let _ = shutdown(&self.0.socket, Shutdown::Both);
        self.0.reap();
    }
}

/// What workers and the sweeper have of it.
struct Orders(Arc<Line>);

impl Repairer for Orders {
    fn carry_out(&self, order: &Order, sockets: &[BorrowedFd<'_>]) -> Result<Stands, CallError> {
        self.0.give(order, sockets).named("repair by the keeper")
    }

    fn is_there(&self) -> bool {
        !self.0.is_gone.load(Ordering::Relaxed)
    }
}

impl Line {
    fn new([socket, theirs]: [OwnedFd; 2], process: Pid, end: OwnedFd) -> Self {
        let (is_gone, is_reaped) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { socket, theirs, process, end, number: Mutex::new(0), is_gone, is_reaped }
    }

    fn give(&self, order: &Order, sockets: &[BorrowedFd<'_>]) -> Outcome {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(Errno::NOTCONN);
        }
        *number = number.wrapping_add(1).max(1);
        match wire::send(self.socket.as_fd(), *number, order, sockets) {
            Ok(()) => self.answer(*number),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.lose("has ended by itself");
                Err(Errno::NOTCONN)
            }
            // ETOOMANYREFS, ENOBUFS, ENOMEM and EAGAIN pass. Nothing was sent.
            Err(errno) => Err(errno),
        }
    }

    fn answer(&self, number: u32) -> Outcome {
        for _ in 0..WAITS {
            match wire::receive::<Outcome>(self.socket.as_fd()) {
                Ok(Received::Message(of, outcome, _)) if of == number => return outcome,
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
                    if wait_readable(self.end.as_fd(), Duration::ZERO) {
                        break;
                    }
                }
                Ok(Received::End) => {
                    self.lose("has ended by itself");
                    return Err(Errno::NOTCONN);
                }
                Ok(Received::Message(..) | Received::Bad) | Err(_) => {
                    self.lose("gave an answer that truepeer does not understand");
                    return Err(Errno::PROTO);
                }
            }
        }
        let has_ended = wait_readable(self.end.as_fd(), Duration::ZERO);
        self.lose(if has_ended { "has ended by itself" } else { "does not answer" });
        Err(Errno::TIMEDOUT)
    }

    /// Waits for the end of the process, once.
    fn reap(&self) {
        if !self.is_reaped.swap(true, Ordering::Relaxed) {
            reap(self.process, LAST);
        }
    }

    /// Nobody waits for it any more. It carries out nothing any more, either: what it has not received is
    /// taken back, and it sees that the line is closed.
    fn lose(&self, why: &str) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        // Can't fail: the socket is connected.
        let _ = shutdown(&self.socket, Shutdown::Both);
        // Behind the last message is the end.
        while let Ok(Received::Message(..) | Received::Bad) = wire::receive::<Order>(self.theirs.as_fd()) {}
        tracing::error!(
            "the repair keeper (process {}) {why}: connections are served on, but sessions stay in user space, and truepeer no longer resets or asks \
             the peers of those that have left it; restart truepeer",
            self.process
        );
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    /// This process in the keeper's place.
    fn line() -> Line {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let end = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        Line::new(pair.unwrap().into(), getpid(), end)
    }

    #[test]
    fn an_order_that_can_not_be_sent_loses_no_keeper() {
        let line = line();
        let mut waiting = 0;
        while wire::send(line.socket.as_fd(), 7, &Order::Stand, &[]).is_ok() {
            waiting += 1;
        }
        assert_eq!(line.give(&Order::Stand, &[]), Err(Errno::AGAIN));
        for _ in 0..waiting {
            assert!(matches!(wire::receive(line.theirs.as_fd()), Ok(Received::Message(7, Order::Stand, _))));
        }
        wire::send::<Outcome>(line.theirs.as_fd(), 2, &Ok([None; 2]), &[]).unwrap();
        assert_eq!(line.give(&Order::Stand, &[]), Ok([None; 2]));
        assert!(!line.is_gone.load(Ordering::Relaxed));
    }

    #[test]
    fn an_order_to_a_keeper_that_has_ended_loses_it() {
        let line = line();
        shutdown(&line.theirs, Shutdown::Both).unwrap();
        assert_eq!(line.give(&Order::Stand, &[]), Err(Errno::NOTCONN));
        assert!(line.is_gone.load(Ordering::Relaxed));
    }
}
