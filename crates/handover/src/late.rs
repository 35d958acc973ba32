//! Connections whose header has not come yet. They are watched until it comes or their time is over.
//!
//! One thread owns this. It never examines the same bytes twice: events are edge-triggered, and examined
//! bytes stay in the kernel's queue.
//!
//! With preload this runs inside the application. If the application wants a descriptor's number, the
//! descriptor is moved ([`Late::relocate`]). A descriptor that the application has closed without our notice
//! is recognised by the connection's cookie and left alone: the number may already belong to another
//! connection.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use truepeer_policy::SenderAddr;
use truepeer_sys::segments::detach_filter;

use crate::after_wait::guard;
use crate::look::{Look, is_silent, look, on_end, on_timeout};
use crate::rules::RunRules;
use crate::wake::WakeUp;

/// The key of the inbox, the only descriptor that is not a connection.
const INBOX: u64 = u64::MAX;
const EVENTS: usize = 64;

/// Waiting connections, each with its owner's data about the listener.
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
    /// The kernel's identifier of the connection (SO_COOKIE).
    cookie: u64,
    sender: SenderAddr,
    listener: L,
    began: Instant,
    deadline: Instant,
}

/// A connection that no longer waits.
#[derive(Debug)]
pub struct Decided<L> {
    /// The connection.
    pub socket: OwnedFd,
    /// Its sender.
    pub sender: SenderAddr,
    /// The owner's data, as passed in.
    pub listener: L,
    /// The decision; never [`Look::NeedMore`].
    pub look: Look,
}

impl<L> Late<L> {
    /// Creates it empty. A readable `inbox` ends a [`Self::turn`].
    ///
    /// # Errors
    /// Those of epoll_create1(2) and epoll_ctl(2).
    pub fn new(inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        Self::on(epoll::create(epoll::CreateFlags::CLOEXEC)?, inbox)
    }

    /// Uses an epoll that the caller created.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn on(epoll: OwnedFd, inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        watch_inbox(&epoll, inbox)?;
        Ok(Self { epoll, waiting: BTreeMap::new(), deadlines: BTreeSet::new(), next: 0 })
    }

    /// The number of waiting connections.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a connection on which [`look`] could not decide. Bytes that arrived in between are noticed at
    /// once.
    ///
    /// # Errors
    /// Those of epoll_ctl(2); the connection is then closed.
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

    /// Waits until a connection is decided, the inbox is readable, or `limit` has passed. Returns the decided
    /// ones.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
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

    /// Whether the epoll and the inbox are open, and the epoll watches the inbox.
    pub fn is_whole(&self, inbox: BorrowedFd<'_>) -> bool {
        let again = epoll::EventData::new_u64(INBOX);
        epoll::modify(&self.epoll, inbox, again, epoll::EventFlags::IN).is_ok()
    }

    /// Replaces a lost epoll with another. Connections that are lost as well are forgotten; nothing is
    /// closed.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
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

    /// The other end of the inbox is closed: nothing will come from it.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn without_inbox(&mut self, inbox: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::delete(&self.epoll, inbox)
    }

    /// Makes this descriptor the inbox, which ends a [`Self::turn`] when it becomes readable.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn with_inbox(&mut self, inbox: BorrowedFd<'_>) -> Result<(), Errno> {
        watch_inbox(&self.epoll, inbox)
    }

    /// Forgets all waiting connections.
    pub fn into_epoll(self) -> OwnedFd {
        self.epoll
    }

    /// If a descriptor here has the number `taken`, uses the one that `another` returns instead. The old one
    /// stays open, for the caller to replace.
    ///
    /// # Errors
    /// Those of `another` and epoll_ctl(2).
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
        // The kernel watches a connection by descriptor, so it must be added anew. Bytes that arrived in
        // between are noticed at once.
        watch(&self.epoll, &socket, *number)?;
        let old = core::mem::replace(&mut waiting.socket, socket);
        epoll::delete(&self.epoll, &old)?;
        let _ = old.into_raw_fd();
        Ok(true)
    }

    /// Forgets a connection without closing its descriptor, which belongs to another by now.
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
        let (socket, sender) = (waiting.socket.as_fd(), waiting.sender);
        let (mut look, mut until) = on_timeout(socket, sender, rules, wake, waited);
        if is_silent(socket, sender, &look, rules) && guard(socket, rules.limits.versions) {
            // Bytes that came before the filter was there have not been examined.
            (look, until) = on_timeout(socket, sender, rules, wake, waited);
            if !is_silent(socket, sender, &look, rules) {
                detach_filter(socket);
            }
        }
        if look == Look::NeedMore && waited < until {
            // A header has started to arrive, so this connection gets the full time for it.
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
        // Remove it explicitly: the application's copy of the descriptor would keep the watch alive.
        let _ = epoll::delete(&self.epoll, &socket);
        Some(Decided { socket, sender, listener, look })
    }
}

impl<L> Waiting<L> {
    /// Whether the descriptor still refers to this connection.
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
