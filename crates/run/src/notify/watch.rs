//! The supervisor's event sources: calls, the program's life, the guard, and the program's sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use truepeer_sys::seccomp::Notifier;

use super::relation::Relation;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchedEvent {
    /// A call waits for its answer.
    Call,
    /// A signal arrived, a child ended, or the program beside this process did.
    Life,
    /// The guard has told something, or has ended.
    Guard,
    /// No process can make calls any more.
    NobodyLeft,
    /// An event on the socket with this cookie.
    Socket(u64),
}

/// Keys in the epoll. Socket cookies count up from the smallest number, or down from the largest, so none
/// reaches these in the middle.
const NOTIFIER: u64 = 1 << 63;
const LIFE: u64 = NOTIFIER + 1;
const GUARD: u64 = NOTIFIER + 2;
const EVENTS: usize = 16;

#[derive(Debug)]
pub(super) struct Watch(OwnedFd);

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Watch {
    /// # Errors
    /// Those of epoll_create1(2) and epoll_ctl(2).
    pub(super) fn new(notifier: &Notifier, relation: &Relation) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |descriptor, number, flags| {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(number), flags)
        };
        add(notifier.as_fd(), NOTIFIER, epoll::EventFlags::IN)?;
        // The end of a program beside this process stays readable: report it once.
        let once = if relation.is_beside() { epoll::EventFlags::ONESHOT } else { epoll::EventFlags::empty() };
        add(relation.turns(), LIFE, epoll::EventFlags::IN | once)?;
        if let Some(guard) = relation.guard() {
            add(guard, GUARD, epoll::EventFlags::IN)?;
        }
        Ok(Self(epoll))
    }

    /// # Errors
    /// Those of epoll_ctl(2).
    pub(super) fn add(
        &self,
        socket: BorrowedFd<'_>,
        cookie: u64,
        flags: epoll::EventFlags,
    ) -> Result<(), Errno> {
        epoll::add(&self.0, socket, epoll::EventData::new_u64(cookie), flags)
    }

    /// Closing only the duplicate would not end the watch: the program's descriptor keeps the socket open.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, socket);
    }

    /// Waits for an event; without a limit, forever.
    ///
    /// # Errors
    /// Those of epoll_wait(2) and epoll_ctl(2).
    pub(super) fn wait(
        &self,
        notifier: &Notifier,
        limit: Option<Duration>,
    ) -> Result<Vec<WatchedEvent>, Errno> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let count = match epoll::wait(&self.0, &mut events, limit.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(errno),
        };
        let mut happened = Vec::with_capacity(count);
        for event in &events[..count] {
            let flags = event.flags;
            match event.data.u64() {
                NOTIFIER if flags.contains(epoll::EventFlags::IN) => happened.push(WatchedEvent::Call),
                // Processes still to be waited for report by SIGCHLD.
                NOTIFIER if flags.contains(epoll::EventFlags::HUP) => {
                    epoll::delete(&self.0, notifier)?;
                    happened.push(WatchedEvent::NobodyLeft);
                }
                // An error means that this process was stopped or frozen during the call. Try again.
                NOTIFIER => {}
                LIFE => happened.push(WatchedEvent::Life),
                GUARD => happened.push(WatchedEvent::Guard),
                cookie => happened.push(WatchedEvent::Socket(cookie)),
            }
        }
        Ok(happened)
    }
}
