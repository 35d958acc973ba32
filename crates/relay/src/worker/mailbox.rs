//! Orders from other threads: a queue, and an event descriptor that wakes the worker up.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
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
    bell: Arc<OwnedFd>,
}

/// Where orders are taken out.
#[derive(Debug)]
pub(crate) struct Mailbox {
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
}

/// A pair of them.
pub(crate) fn mailbox() -> Result<(Postbox, Mailbox), CallError> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).named("eventfd")?;
    let (bell, (sender, receiver)) = (Arc::new(bell), channel());
    Ok((Postbox { orders: sender, bell: Arc::clone(&bell) }, Mailbox { orders: receiver, bell }))
}

impl Postbox {
    /// Puts an order in; returns it if the worker has ended.
    pub(crate) fn post(&self, order: Order) -> Result<(), Order> {
        self.orders.send(order).map_err(|refused| refused.0)?;
        // Full only if it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }
}

impl Mailbox {
    /// The descriptor that becomes readable when there is an order.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Takes all orders out.
    pub(crate) fn empty(&self) -> Vec<Order> {
        // The bell is silenced first: an order put in after this rings it again.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        self.orders.try_iter().collect()
    }
}
