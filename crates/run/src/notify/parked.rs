//! `accept` calls on blocking listeners with an empty queue.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use truepeer_handover::ListenerAddr;
use truepeer_sys::seccomp::{Answer, Notification, Notifier};

use super::callers::epolls_with;
use super::interrupt::{has_a_signal, holds_a_signal_back, still_waits};
use super::listener::SupervisedListener;
use super::siblings::{Siblings, is_readable};
use super::watch::Watch;

/// How long a call that came in vain keeps a thread from its epoll, which may have a time-out.
const KEPT: Duration = Duration::from_secs(1);

/// A call that waits for a connection.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Notification,
    /// When the call fails with EAGAIN (SO_RCVTIMEO).
    pub(super) deadline: Option<Instant>,
    /// The queue was not empty when the call came, but held nothing for it. Perhaps select() had reported
    /// the listener.
    pub(super) came_in_vain: bool,
    since: Instant,
    /// At the last check, a signal was pending that the thread blocks.
    signal_held_back: bool,
    /// The epolls of its process that watch the listener, once they have been looked for.
    epolls: Option<Vec<OwnedFd>>,
}

impl Waiting {
    pub(super) fn new(call: Notification, deadline: Option<Instant>, came_in_vain: bool) -> Self {
        let since = Instant::now();
        Self { call, deadline, came_in_vain, since, signal_held_back: false, epolls: None }
    }

    /// Whether waiting here keeps the thread from other work: another listener, a signal that it unblocks
    /// only within select(), or what its epoll tells. Another thread may take the signal, so it must be
    /// pending in two checks in a row.
    fn is_kept(&mut self, siblings: &Siblings, listener: &SupervisedListener, now: Instant) -> bool {
        if !self.came_in_vain {
            return false;
        }
        let thread = self.call.thread;
        let before = core::mem::replace(&mut self.signal_held_back, holds_a_signal_back(thread));
        (before && self.signal_held_back)
            || siblings.want(thread, listener.cookie, now)
            || self.is_kept_from_epoll(listener, now)
    }

    /// A program that has the listener in an epoll expects accept() to return at once, and may look at
    /// nothing else before: a handler may only set a flag, which nobody sees from outside.
    fn is_kept_from_epoll(&mut self, listener: &SupervisedListener, now: Instant) -> bool {
        let thread = self.call.thread;
        let epolls = self.epolls.get_or_insert_with(|| epolls_with(thread, listener.id));
        !epolls.is_empty()
            && (now.saturating_duration_since(self.since) >= KEPT
                || has_a_signal(thread)
                || epolls.iter().any(|epoll| is_readable(epoll.as_fd())))
    }
}

/// The calls that wait at one listener, longest first. The supervisor watches the listener only while calls
/// wait: its duplicate keeps the socket open after the program has closed it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) socket: OwnedFd,
    pub(super) listener: Arc<SupervisedListener>,
    pub(super) waiting: VecDeque<Waiting>,
}

#[derive(Debug, Default)]
pub(super) struct Parked {
    groups: HashMap<u64, Group>,
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Parks a call.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(super) fn park(
        &mut self,
        watch: &Watch,
        socket: OwnedFd,
        listener: Arc<SupervisedListener>,
        waiting: Waiting,
    ) -> Result<(), Errno> {
        if let Some(group) = self.groups.get_mut(&listener.cookie) {
            group.waiting.push_back(waiting);
            return Ok(());
        }
        watch.add(socket.as_fd(), listener.cookie, epoll::EventFlags::IN)?;
        self.groups.insert(listener.cookie, Group { socket, listener, waiting: VecDeque::from([waiting]) });
        Ok(())
    }

    /// Takes out the calls of one listener to serve them. [`Self::put_back`] returns the rest.
    pub(super) fn take(&mut self, cookie: u64) -> Option<Group> {
        self.groups.remove(&cookie)
    }

    pub(super) fn put_back(&mut self, watch: &Watch, group: Group) {
        if group.waiting.is_empty() {
            watch.remove(group.socket.as_fd());
        } else {
            self.groups.insert(group.listener.cookie, group);
        }
    }

    /// Finds a listener on this address with a waiting call.
    pub(super) fn at(&self, address: ListenerAddr) -> Option<u64> {
        self.groups
            .values()
            .find(|group| group.listener.address == address)
            .map(|group| group.listener.cookie)
    }

    /// Ends the waiting of calls that were killed, timed out, have a signal pending, or keep their thread
    /// from other work.
    pub(super) fn look_after(
        &mut self,
        watch: &Watch,
        notifier: &Notifier,
        siblings: &Siblings,
        now: Instant,
    ) {
        let cookies: Vec<u64> = self.groups.keys().copied().collect();
        for group in cookies.into_iter().filter_map(|cookie| self.groups.remove(&cookie)).collect::<Vec<_>>()
        {
            let mut group = group;
            group.waiting.retain_mut(|waiting| {
                let is_kept = waiting.is_kept(siblings, &group.listener, now);
                let aborted = Answer::Fail(Errno::CONNABORTED);
                !(is_kept && notifier.send(waiting.call.id, aborted).is_ok())
                    && still_waits(notifier, &waiting.call, waiting.deadline, Errno::AGAIN, now)
            });
            self.put_back(watch, group);
        }
    }
}
