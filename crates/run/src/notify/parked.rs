//! `accept` calls on blocking listeners with an empty queue.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use truepeer_handover::ListenerAddr;
use truepeer_sys::seccomp::{Answer, Notification, Notifier};

use super::interrupt::{holds_a_signal_back, still_waits};
use super::listener::SupervisedListener;
use super::siblings::Siblings;
use super::watch::Watch;

/// A call that waits for a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) call: Notification,
    /// When the call fails with EAGAIN (SO_RCVTIMEO).
    pub(super) deadline: Option<Instant>,
    /// The queue was not empty when the call came, but held nothing for it. Perhaps select() had reported
    /// the listener.
    pub(super) came_in_vain: bool,
    /// At the last check, a signal was pending that the thread blocks.
    pub(super) signal_held_back: bool,
}

impl Waiting {
    /// Whether waiting here keeps the thread from other work: another listener, or a signal that it unblocks
    /// only within select(). Another thread may take the signal, so it must be pending in two checks in a
    /// row.
    fn is_kept(&mut self, siblings: &Siblings, own: u64, now: Instant) -> bool {
        if !self.came_in_vain {
            return false;
        }
        let before = core::mem::replace(&mut self.signal_held_back, holds_a_signal_back(self.call.thread));
        (before && self.signal_held_back) || siblings.want(self.call.thread, own, now)
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
            let own = group.listener.cookie;
            group.waiting.retain_mut(|waiting| {
                still_waits(notifier, &waiting.call, waiting.deadline, Errno::AGAIN, now)
                    && !(waiting.is_kept(siblings, own, now)
                        && notifier.send(waiting.call.id, Answer::Fail(Errno::CONNABORTED)).is_ok())
            });
            self.put_back(watch, group);
        }
    }
}
