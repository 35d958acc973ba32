//! Connections whose client is known and that wait for the program's next `accept`.
//!
//! By the listener's address, not by the listener: in a group of SO_REUSEPORT listeners the kernel wakes whichever it
//! likes, and the wake-up may come to another worker than the connection did.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use truepeer_policy::{ClientAddr, SenderAddr};

/// An accepted connection, its header taken off.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) sender: SenderAddr,
    /// The client, and what it connected to; `None` if the sender is the client.
    pub(super) client: Option<(ClientAddr, SocketAddr)>,
}

#[derive(Debug, Default)]
pub(super) struct Ready {
    by_address: HashMap<SocketAddr, VecDeque<Connection>>,
    count: usize,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, listener: SocketAddr, connection: Connection) {
        self.by_address.entry(listener).or_default().push_back(connection);
        self.count += 1;
    }

    /// Puts one back that could not be handed over.
    pub(super) fn put_back(&mut self, listener: SocketAddr, connection: Connection) {
        self.by_address.entry(listener).or_default().push_front(connection);
        self.count += 1;
    }

    pub(super) fn take(&mut self, listener: SocketAddr) -> Option<Connection> {
        let queue = self.by_address.get_mut(&listener)?;
        let connection = queue.pop_front()?;
        if queue.is_empty() {
            self.by_address.remove(&listener);
        }
        self.count -= 1;
        Some(connection)
    }

    /// Where somebody waits.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.by_address.keys().copied().collect()
    }

    /// Gives up those of a listener that is gone, as the kernel does with its queue; says how many.
    pub(super) fn abandon(&mut self, listener: SocketAddr) -> usize {
        let abandoned = self.by_address.remove(&listener).map_or(0, |queue| queue.len());
        self.count -= abandoned;
        abandoned
    }
}
