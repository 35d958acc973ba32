//! Connections whose header has not come yet: watched until it does, or until it is too late.
//!
//! One thread owns this. It never looks at a connection twice for the same bytes: events are edge-triggered, and what has
//! been looked at stays in the kernel's queue.
//!
//! By preload this lies in a process that is not ours. Numbers of descriptors that the program wants are given up in order
//! ([`Late::relocate`]). What it has closed behind our back is recognised by the connection's cookie, and left alone: the number
//! may be another connection's by now.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use truepeer_policy::SenderAddr;

use crate::look::{on_end, on_timeout};
use crate::{Look, RunRules, WakeUp, look};

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
    /// The kernel's number of the connection.
    cookie: u64,
    sender: SenderAddr,
    listener: L,
    began: Instant,
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
        watch_inbox(&epoll, inbox)?;
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
        rules: &RunRules,
        now: Instant,
    ) -> Result<(), Errno> {
        let number = self.next;
        let cookie = socket_cookie(&socket)?;
        watch(&self.epoll, &socket, number)?;
        let deadline = now + rules.deadline(sender, 0);
        self.next += 1;
        self.deadlines.insert((deadline, number));
        self.waiting.insert(number, Waiting { socket, cookie, sender, listener, began: now, deadline });
        Ok(())
    }

    /// Gives up the one that has waited longest, for want of descriptors.
    pub fn evict(&mut self, rules: &RunRules, wake: &WakeUp) -> Option<Decided<L>> {
        let &(_, number) = self.deadlines.first()?;
        self.on_timeout(number, rules, wake, Duration::MAX)
    }

    /// Waits until something has been decided, the inbox is readable, or `limit` is over, and gives what was decided.
    ///
    /// # Errors
    /// What epoll_wait(2) says.
    pub fn turn(
        &mut self,
        rules: &RunRules,
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

    /// Whether the epoll and the inbox are there, and the one watches the other.
    pub fn is_whole(&self, inbox: BorrowedFd<'_>) -> bool {
        let again = epoll::EventData::new_u64(INBOX);
        epoll::modify(&self.epoll, inbox, again, epoll::EventFlags::IN).is_ok()
    }

    /// Goes on with another epoll, in the place of one that is lost. What else is lost is forgotten; nothing is closed.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn rebuild(&mut self, epoll: OwnedFd, inbox: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        if let Some(inbox) = inbox {
            watch_inbox(&epoll, inbox)?;
        }
        let _ = core::mem::replace(&mut self.epoll, epoll).into_raw_fd();
        let all: Vec<u64> = self.waiting.keys().copied().collect();
        for number in all {
            let watched = |waiting: &Waiting<L>| {
                waiting.is_whole() && watch(&self.epoll, &waiting.socket, number).is_ok()
            };
            if !self.waiting.get(&number).is_some_and(watched) {
                self.forget(number);
            }
        }
        Ok(())
    }

    /// Nothing comes from the inbox any more: its other end is closed.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn without_inbox(&mut self, inbox: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::delete(&self.epoll, inbox)
    }

    /// Ends a [`Self::turn`] when this becomes readable.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn with_inbox(&mut self, inbox: BorrowedFd<'_>) -> Result<(), Errno> {
        watch_inbox(&self.epoll, inbox)
    }

    /// Nobody waits any more.
    pub fn into_epoll(self) -> OwnedFd {
        self.epoll
    }

    /// Uses the descriptor that `another` gives in the place of the one with the number `taken`, if there is one here. The old one
    /// stays open, for the caller to replace.
    ///
    /// # Errors
    /// What `another` and epoll_ctl(2) say.
    pub fn relocate(
        &mut self,
        taken: RawFd,
        another: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<bool, Errno> {
        if self.epoll.as_raw_fd() == taken {
            let _ = core::mem::replace(&mut self.epoll, another()?).into_raw_fd();
            return Ok(true);
        }
        let found = self.waiting.iter_mut().find(|(_, waiting)| waiting.socket.as_raw_fd() == taken);
        let Some((number, waiting)) = found else { return Ok(false) };
        let socket = another()?;
        // The kernel watches a connection under a number. What came in between is seen at once.
        watch(&self.epoll, &socket, *number)?;
        let old = core::mem::replace(&mut waiting.socket, socket);
        epoll::delete(&self.epoll, &old)?;
        let _ = old.into_raw_fd();
        Ok(true)
    }

    /// Without closing its descriptor, which is another's.
    fn forget(&mut self, number: u64) {
        if let Some(Waiting { socket, deadline, .. }) = self.waiting.remove(&number) {
            self.deadlines.remove(&(deadline, number));
            let _ = socket.into_raw_fd();
        }
    }

    fn on_event(&mut self, number: u64, gone: bool, rules: &RunRules, wake: &WakeUp) -> Option<Decided<L>> {
        let waiting = self.waiting.get(&number)?;
        if !waiting.is_whole() {
            self.forget(number);
            return None;
        }
        match look(waiting.socket.as_fd(), waiting.sender, rules, wake) {
            Look::NeedMore if gone => {
                let look = on_end(waiting.socket.as_fd(), waiting.sender, rules, wake);
                self.decide(number, look)
            }
            Look::NeedMore => None,
            look => self.decide(number, look),
        }
    }

    fn expire(&mut self, now: Instant, rules: &RunRules, wake: &WakeUp) -> Vec<Decided<L>> {
        let mut decided = Vec::new();
        while let Some(&(deadline, number)) = self.deadlines.first()
            && deadline <= now
        {
            let waited = self.waiting.get(&number).map_or(Duration::MAX, |waiting| now - waiting.began);
            decided.extend(self.on_timeout(number, rules, wake, waited));
        }
        decided
    }

    fn on_timeout(
        &mut self,
        number: u64,
        rules: &RunRules,
        wake: &WakeUp,
        waited: Duration,
    ) -> Option<Decided<L>> {
        let waiting = self.waiting.get_mut(&number)?;
        if !waiting.is_whole() {
            self.forget(number);
            return None;
        }
        let (look, until) = on_timeout(waiting.socket.as_fd(), waiting.sender, rules, wake, waited);
        if look == Look::NeedMore && waited < until {
            // It has begun with a header since, and has as long as any other.
            self.deadlines.remove(&(waiting.deadline, number));
            waiting.deadline = waiting.began + until;
            self.deadlines.insert((waiting.deadline, number));
            return None;
        }
        self.decide(number, look)
    }

    fn decide(&mut self, number: u64, look: Look) -> Option<Decided<L>> {
        let Waiting { socket, sender, listener, deadline, .. } = self.waiting.remove(&number)?;
        self.deadlines.remove(&(deadline, number));
        // The watch would outlive our descriptor in the application's copy of it.
        let _ = epoll::delete(&self.epoll, &socket);
        Some(Decided { socket, sender, listener, look })
    }
}

impl<L> Waiting<L> {
    /// Whether its descriptor still is what it was.
    fn is_whole(&self) -> bool {
        socket_cookie(&self.socket) == Ok(self.cookie)
    }
}

fn watch(epoll: &OwnedFd, socket: &OwnedFd, number: u64) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(epoll, socket, epoll::EventData::new_u64(number), flags)
}

fn watch_inbox(epoll: &OwnedFd, inbox: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(epoll, inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
}
