//! Wakes programs that wait in epoll. It has a thread of its own because connecting to a full queue blocks, and
//! the supervisor must not.

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

    /// Makes the listener on this address readable soon.
    pub(super) fn wake(&self, listener: SocketAddr) {
        // The thread ends only with this process.
        let _ = self.orders.send(listener);
    }

    /// The addresses on which nothing listens any more.
    pub(super) fn gone(&self) -> impl Iterator<Item = SocketAddr> {
        self.refused.try_iter()
    }
}

/// One connection wakes a program for everything that is ready, so duplicate orders are carried out once.
fn ring(wake: &WakeUp, orders: &Receiver<SocketAddr>, refused: &Sender<SocketAddr>) {
    while let Ok(first) = orders.recv() {
        let listeners: BTreeSet<SocketAddr> = [first].into_iter().chain(orders.try_iter()).collect();
        for listener in listeners {
            // After other errors the supervisor orders again while connections wait.
            if wake.ring(listener) == Err(Errno::CONNREFUSED) && refused.send(listener).is_err() {
                return;
            }
        }
    }
}
