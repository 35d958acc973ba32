//! `accept` on blocking listeners that have nothing to give yet.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use truepeer_sys::seccomp::{Notification, Notifier};

use super::interrupt::still_waits;
use super::listener::Listener;
use super::watch::Watch;

/// A call that waits for a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) call: Notification,
    /// When it fails with EAGAIN (SO_RCVTIMEO).
    pub(super) deadline: Option<Instant>,
}

/// The calls that wait at one listener, longest first. While they do, the supervisor watches it; no longer, or the
/// program could not close it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) socket: OwnedFd,
    pub(super) listener: Arc<Listener>,
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

    /// Lets a call wait.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub(super) fn park(
        &mut self,
        watch: &Watch,
        socket: OwnedFd,
        listener: Arc<Listener>,
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

    /// Takes the calls of one listener out, to serve them; [`Self::put_back`] what is left.
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

    /// A listener on this address at which somebody waits.
    pub(super) fn at(&self, address: std::net::SocketAddr) -> Option<u64> {
        self.groups.values().find(|group| group.listener.local == address).map(|group| group.listener.cookie)
    }

    /// Ends the waiting of those who were killed, whose time is up, or for whom there is a signal.
    pub(super) fn look_after(&mut self, watch: &Watch, notifier: &Notifier, now: Instant) {
        let cookies: Vec<u64> = self.groups.keys().copied().collect();
        for group in cookies.into_iter().filter_map(|cookie| self.groups.remove(&cookie)).collect::<Vec<_>>()
        {
            let mut group = group;
            group
                .waiting
                .retain(|waiting| still_waits(notifier, &waiting.call, waiting.deadline, Errno::AGAIN, now));
            self.put_back(watch, group);
        }
    }
}
