//! Connections whose client is known, waiting for the program's next `accept`.
//!
//! They are kept by the listener's address, device and namespace, not by the listener: in a SO_REUSEPORT
//! group the kernel chooses which listener it wakes, so the wake-up may reach another worker than the
//! connection did.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use truepeer_handover::ListenerAddr;
use truepeer_policy::{ClientAddr, SenderAddr};

/// An accepted connection, with its header removed.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) sender: SenderAddr,
    /// The client and the destination; `None` if the sender is the client.
    pub(super) client: Option<(ClientAddr, SocketAddr)>,
    /// What the program is to see, once its name is stored. A second name would take another slot of the
    /// table each time that the program has no free descriptor for the connection.
    pub(super) shown: Option<SocketAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Ready {
    by_address: HashMap<ListenerAddr, VecDeque<Connection>>,
    count: usize,
    counts: ReadyCounts,
}

/// How many connections wait at each address, for another thread.
#[derive(Debug, Default, Clone)]
pub(super) struct ReadyCounts(Arc<Mutex<HashMap<ListenerAddr, usize>>>);

impl ReadyCounts {
    pub(super) fn at(&self, listener: ListenerAddr) -> usize {
        self.table().get(&listener).copied().unwrap_or_default()
    }

    fn set(&self, listener: ListenerAddr, count: usize) {
        match count {
            0 => self.table().remove(&listener),
            _ => self.table().insert(listener, count),
        };
    }

    /// Each change is one call, so a table that a panic has left is whole.
    fn table(&self) -> MutexGuard<'_, HashMap<ListenerAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, listener: ListenerAddr, connection: Connection) {
        self.by_address.entry(listener).or_default().push_back(connection);
        self.count += 1;
        self.tell(listener);
    }

    /// Puts back a connection that could not be handed over.
    pub(super) fn put_back(&mut self, listener: ListenerAddr, connection: Connection) {
        self.by_address.entry(listener).or_default().push_front(connection);
        self.count += 1;
        self.tell(listener);
    }

    pub(super) fn take(&mut self, listener: ListenerAddr) -> Option<Connection> {
        let queue = self.by_address.get_mut(&listener)?;
        let connection = queue.pop_front()?;
        if queue.is_empty() {
            self.by_address.remove(&listener);
        }
        self.count -= 1;
        self.tell(listener);
        Some(connection)
    }

    /// What [`Self::push`] and [`Self::take`] keep up to date.
    pub(super) fn counts(&self) -> ReadyCounts {
        self.counts.clone()
    }

    fn tell(&self, listener: ListenerAddr) {
        self.counts.set(listener, self.by_address.get(&listener).map_or(0, VecDeque::len));
    }

    /// Whether connections wait for this address.
    pub(super) fn has(&self, listener: ListenerAddr) -> bool {
        self.by_address.contains_key(&listener)
    }

    /// The addresses with waiting connections.
    pub(super) fn addresses(&self) -> Vec<ListenerAddr> {
        self.by_address.keys().copied().collect()
    }

    /// Drops the connections of a listener that was closed, as the kernel drops its queue. Returns how many.
    pub(super) fn abandon(&mut self, listener: ListenerAddr) -> usize {
        let abandoned = self.by_address.remove(&listener).map_or(0, |queue| queue.len());
        self.count -= abandoned;
        self.tell(listener);
        abandoned
    }
}
