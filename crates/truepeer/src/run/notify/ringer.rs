//! Wakes programs that wait in epoll, from a thread of its own: a full queue may keep a connection waiting, and the
//! supervisor waits for nobody.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::io::Errno;
use truepeer_handover::WakeUp;

#[derive(Debug)]
pub(super) struct Ringer {
    orders: Sender<SocketAddr>,
    refused: Receiver<SocketAddr>,
}

impl Ringer {
    pub(super) fn start(wake: WakeUp) -> std::io::Result<Self> {
        let (orders, incoming) = mpsc::channel();
        let (refusing, refused) = mpsc::channel();
        thread::Builder::new().name("ringer".to_owned()).spawn(move || ring(&wake, &incoming, &refusing))?;
        Ok(Self { orders, refused })
    }

    /// Makes the listener on this address readable, soon.
    pub(super) fn wake(&self, listener: SocketAddr) {
        // It ends only with us.
        let _ = self.orders.send(listener);
    }

    /// Addresses on which nobody listened any more.
    pub(super) fn gone(&self) -> impl Iterator<Item = SocketAddr> {
        self.refused.try_iter()
    }
}

/// One connection wakes a program for all that is ready, so orders that came meanwhile are carried out once.
fn ring(wake: &WakeUp, orders: &Receiver<SocketAddr>, refused: &Sender<SocketAddr>) {
    while let Ok(first) = orders.recv() {
        let listeners: BTreeSet<SocketAddr> = [first].into_iter().chain(orders.try_iter()).collect();
        for listener in listeners {
            // Other failures: the supervisor orders again, as long as somebody waits.
            if wake.ring(listener) == Err(Errno::CONNREFUSED) && refused.send(listener).is_err() {
                return;
            }
        }
    }
}
