//! The listening sockets from which a worker accepts, and pauses during which connections stay in their
//! queues.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use truepeer_session::listening::concerns_one_connection;
use truepeer_session::{Journal, ListenerId};
use truepeer_sys::{CallError, Named};

use super::event::EventSource;
use crate::listener::Listener;

/// How long no connection is accepted when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// A listening socket, and the listener for new sessions from it.
#[derive(Debug, Clone)]
pub(super) struct ListeningSocket {
    /// Shared with other workers: the last one to drop it closes it.
    pub(super) socket: Arc<OwnedFd>,
    pub(super) listener: Rc<Listener>,
}

/// A worker's listening sockets, each at its own index.
#[derive(Debug, Default)]
pub(super) struct ListeningSockets {
    places: Vec<Option<ListeningSocket>>,
    /// Set while no listening socket is watched because descriptors or memory ran out.
    paused_until: Option<Instant>,
}

impl ListeningSockets {
    /// Adds a listening socket. Of the workers that share a socket, the kernel wakes one for each connection.
    pub(super) fn open(&mut self, epoll: &OwnedFd, listening: ListeningSocket) -> Result<(), CallError> {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        if self.paused_until.is_none() {
            watch(epoll, place, &listening)?;
        }
        self.places[place] = Some(listening);
        Ok(())
    }

    /// Removes the listening sockets of `id` and stops watching them.
    pub(super) fn close(&mut self, epoll: &OwnedFd, id: ListenerId) -> Vec<ListeningSocket> {
        let gone =
            self.places.iter_mut().filter_map(|place| place.take_if(|listening| listening.listener.id == id));
        let gone: Vec<_> = gone.collect();
        for listening in &gone {
            // Fails during a pause, when no listening socket is watched.
            let _ = epoll::delete(epoll, &*listening.socket);
        }
        gone
    }

    /// Applies the listener's new rules to new sessions from its listening sockets.
    pub(super) fn set_listener(&mut self, listener: &Rc<Listener>) {
        for listening in
            self.places.iter_mut().flatten().filter(|listening| listening.listener.id == listener.id)
        {
            listening.listener = Rc::clone(listener);
        }
    }

    /// The listening socket at an index; `None` if it was closed after the event.
    pub(super) fn at(&self, place: usize) -> Option<ListeningSocket> {
        self.places.get(place)?.clone()
    }

    /// Leaves new connections in the kernel's queues for a moment.
    pub(super) fn pause(&mut self, epoll: &OwnedFd, journal: &Journal, lacking: Option<Errno>, now: Instant) {
        for listening in self.places.iter().flatten() {
            // Fails if the listening socket isn't watched (a pause within a pause).
            let _ = epoll::delete(epoll, &*listening.socket);
        }
        self.paused_until = Some(now + PAUSE);
        if let Some(listening) = self.places.iter().flatten().next() {
            let address = listening.listener.rules.settings.address.ip();
            let lacking = lacking.as_ref().map(|errno| errno as &dyn std::fmt::Display);
            journal.on_accept_pause(&listening.listener.shard, address, lacking, now);
        }
    }

    /// When accepting resumes.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Watches the listening sockets again if the pause is over.
    pub(super) fn resume(&mut self, epoll: &OwnedFd, journal: &Journal, now: Instant) {
        if self.paused_until.is_none_or(|until| until > now) {
            return;
        }
        self.paused_until = None;
        let mut all = self.places.iter().enumerate().filter_map(|(place, one)| Some((place, one.as_ref()?)));
        if all.any(|(place, listening)| watch(epoll, place, listening).is_err()) {
            self.pause(epoll, journal, None, now);
        }
    }
}

fn watch(epoll: &OwnedFd, place: usize, listening: &ListeningSocket) -> Result<(), CallError> {
    let token = EventData::new_u64(EventSource::Listening(place).to_bits());
    epoll::add(epoll, listening.socket.as_fd(), token, EventFlags::IN | EventFlags::EXCLUSIVE)
        .named("epoll_ctl")
}

/// The result of accepting.
pub(super) enum Accepted {
    Connection(OwnedFd, SocketAddr),
    /// None is waiting.
    Nobody,
    /// This connection was lost or refused by the system; the next one may succeed.
    Lost,
    /// The system has run out of a resource: an immediate retry would spin.
    OutOf(Errno),
}

/// Accepts one connection.
pub(super) fn accept(listener: &OwnedFd) -> Accepted {
    match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((socket, address)) => match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => Accepted::Connection(socket, address),
            _ => Accepted::Lost,
        },
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(errno) if concerns_one_connection(errno) => Accepted::Lost,
        Err(errno) => Accepted::OutOf(errno),
    }
}
