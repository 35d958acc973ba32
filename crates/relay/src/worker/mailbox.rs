//! Orders from other threads: a queue, and an event descriptor that wakes the worker up.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use truepeer_sys::{CallError, Named};

use crate::budget::Permit;

/// What a worker can be told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Serve a connection that a busier worker has accepted.
    Adopt { listener: u16, socket: OwnedFd, sender: SocketAddr, permit: Permit },
    /// End.
    Stop,
}

/// Where orders are put in.
#[derive(Debug, Clone)]
pub(crate) struct Postbox {
    orders: Sender<Order>,
    bell: Arc<Bell>,
}

/// Where orders are taken out.
#[derive(Debug)]
pub(crate) struct Mailbox {
    orders: Receiver<Order>,
    bell: Arc<Bell>,
}

/// Wakes the worker up.
#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// Rung and not answered yet: ringing again would be a system call for nothing.
    rings: AtomicBool,
}

/// A pair of them.
pub(crate) fn mailbox() -> Result<(Postbox, Mailbox), CallError> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).named("eventfd")?;
    let bell = Arc::new(Bell { event: bell, rings: AtomicBool::new(false) });
    let (sender, receiver) = channel();
    Ok((Postbox { orders: sender, bell: Arc::clone(&bell) }, Mailbox { orders: receiver, bell }))
}

impl Postbox {
    /// Puts an order in; returns it if the worker has ended.
    pub(crate) fn post(&self, order: Order) -> Result<(), Order> {
        self.orders.send(order).map_err(|refused| refused.0)?;
        if !self.bell.rings.swap(true, Ordering::AcqRel) {
            // Never full: it counts to one.
            let _ = rustix::io::write(&self.bell.event, &1_u64.to_ne_bytes());
        }
        Ok(())
    }
}

impl Mailbox {
    /// The descriptor that becomes readable when there is an order.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell.event
    }

    /// Takes all orders out.
    pub(crate) fn empty(&self) -> Vec<Order> {
        // The bell is silenced first: an order put in after this rings it again.
        let _ = rustix::io::read(&self.bell.event, &mut [0_u8; 8]);
        self.bell.rings.store(false, Ordering::Release);
        self.orders.try_iter().collect()
    }
}
