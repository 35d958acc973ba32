//! Connections whose header has not come yet: watched until it does, or until it is too late.
//!
//! One thread owns this. It never looks at a connection twice for the same bytes: events are edge-triggered, and what has
//! been looked at stays in the kernel's queue.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use truepeer_policy::SenderAddr;

use crate::look::give_up;
use crate::{Look, Rules, WakeUp, look};

/// The number of the one descriptor that is not a connection.
const INBOX: u64 = u64::MAX;
const EVENTS: usize = 64;

/// Connections that wait, each with what its owner wants to know of its listener.
#[derive(Debug)]
pub struct Late<L> {
    epoll: OwnedFd,
    waiting: BTreeMap<u64, Waiting<L>>,
    deadlines: BTreeSet<(Instant, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Waiting<L> {
    socket: OwnedFd,
    sender: SenderAddr,
    listener: L,
    deadline: Instant,
}

/// A connection that waits no longer.
#[derive(Debug)]
pub struct Decided<L> {
    /// The connection.
    pub socket: OwnedFd,
    /// Who opened it.
    pub sender: SenderAddr,
    /// As it was given.
    pub listener: L,
    /// What has become of it; never [`Look::NeedMore`].
    pub look: Look,
}

impl<L> Late<L> {
    /// Nobody waits. `inbox` ends a [`Self::turn`] when it becomes readable.
    ///
    /// # Errors
    /// What epoll_create1(2) and epoll_ctl(2) say.
    pub fn new(inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        Self::on(epoll::create(epoll::CreateFlags::CLOEXEC)?, inbox)
    }

    /// Likewise, with an epoll of the caller's making.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn on(epoll: OwnedFd, inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        epoll::add(&epoll, inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        Ok(Self { epoll, waiting: BTreeMap::new(), deadlines: BTreeSet::new(), next: 0 })
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets a connection wait that [`look`] could not decide on. What came in between is seen at once.
    ///
    /// # Errors
    /// What epoll_ctl(2) says; the connection is closed then.
    pub fn add(
        &mut self,
        socket: OwnedFd,
        sender: SenderAddr,
        listener: L,
        rules: &Rules,
        now: Instant,
    ) -> Result<(), Errno> {
        let number = self.next;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), flags)?;
        let deadline = now + rules.patience(sender);
        self.next += 1;
        self.deadlines.insert((deadline, number));
        self.waiting.insert(number, Waiting { socket, sender, listener, deadline });
        Ok(())
    }

    /// Gives up the one that has waited longest, for want of descriptors.
    pub fn evict(&mut self, rules: &Rules, wake: &WakeUp) -> Option<Decided<L>> {
        let &(_, number) = self.deadlines.first()?;
        self.give_up(number, rules, wake, false)
    }

    /// Waits until something has been decided, the inbox is readable, or `limit` is over, and gives what was decided.
    ///
    /// # Errors
    /// What epoll_wait(2) says.
    pub fn turn(
        &mut self,
        rules: &Rules,
        wake: &WakeUp,
        limit: Option<Duration>,
    ) -> Result<Vec<Decided<L>>, Errno> {
        let now = Instant::now();
        let until_next = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(now));
        let timeout = [until_next, limit].into_iter().flatten().min();
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS];
        let count = match epoll::wait(&self.epoll, &mut events, timeout.map(timespec).as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        let mut decided = Vec::new();
        for event in &events[..count] {
            let number = event.data.u64();
            let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let flags = event.flags;
            decided.extend(self.on_event(number, flags.intersects(gone), rules, wake));
        }
        decided.extend(self.expire(Instant::now(), rules, wake));
        Ok(decided)
    }

    fn on_event(&mut self, number: u64, gone: bool, rules: &Rules, wake: &WakeUp) -> Option<Decided<L>> {
        let waiting = self.waiting.get(&number)?;
        match look(waiting.socket.as_fd(), waiting.sender, rules, wake) {
            Look::NeedMore if gone => self.give_up(number, rules, wake, true),
            Look::NeedMore => None,
            look => self.decide(number, look),
        }
    }

    fn expire(&mut self, now: Instant, rules: &Rules, wake: &WakeUp) -> Vec<Decided<L>> {
        let mut decided = Vec::new();
        while let Some(&(deadline, number)) = self.deadlines.first()
            && deadline <= now
        {
            decided.extend(self.give_up(number, rules, wake, false));
        }
        decided
    }

    fn give_up(&mut self, number: u64, rules: &Rules, wake: &WakeUp, left: bool) -> Option<Decided<L>> {
        let waiting = self.waiting.get(&number)?;
        let look = give_up(waiting.socket.as_fd(), waiting.sender, rules, wake, left);
        self.decide(number, look)
    }

    fn decide(&mut self, number: u64, look: Look) -> Option<Decided<L>> {
        let Waiting { socket, sender, listener, deadline } = self.waiting.remove(&number)?;
        self.deadlines.remove(&(deadline, number));
        // The watch would outlive our descriptor in the application's copy of it.
        let _ = epoll::delete(&self.epoll, &socket);
        Some(Decided { socket, sender, listener, look })
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
}
