//! Orders from other threads: a queue, and an eventfd that wakes the worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use truepeer_sys::{CallError, Named};

/// The sending end.
#[derive(Debug)]
pub struct Postbox<T> {
    orders: Sender<T>,
    bell: Arc<Bell>,
}

/// The receiving end.
#[derive(Debug)]
pub struct Mailbox<T> {
    orders: Receiver<T>,
    bell: Arc<Bell>,
}

/// Wakes the worker up.
#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// Set while the event is pending: a second write would waste a system call.
    rings: AtomicBool,
}

/// Creates both ends.
///
/// # Errors
/// The process or the system has run out of descriptors.
pub fn mailbox<T>() -> Result<(Postbox<T>, Mailbox<T>), CallError> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).named("eventfd")?;
    let bell = Arc::new(Bell { event: bell, rings: AtomicBool::new(false) });
    let (sender, receiver) = channel();
    Ok((Postbox { orders: sender, bell: Arc::clone(&bell) }, Mailbox { orders: receiver, bell }))
}

impl<T> Clone for Postbox<T> {
    fn clone(&self) -> Self {
        Self { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Postbox<T> {
    /// Adds an order.
    ///
    /// # Errors
    /// The order itself, if the worker has ended.
    pub fn post(&self, order: T) -> Result<(), T> {
        self.orders.send(order).map_err(|refused| refused.0)?;
        if !self.bell.rings.swap(true, Ordering::AcqRel) {
            // This can't block: the counter is 0 or 1.
            let _ = rustix::io::write(&self.bell.event, &1_u64.to_ne_bytes());
        }
        Ok(())
    }
}

impl<T> Mailbox<T> {
    /// The descriptor that becomes readable when there is an order.
    #[must_use]
    pub fn bell(&self) -> &OwnedFd {
        &self.bell.event
    }

    /// Takes all orders.
    #[must_use]
    pub fn empty(&self) -> Vec<T> {
        // Clear the event before taking the orders. Otherwise an order posted in between would stay
        // unnoticed.
        let _ = rustix::io::read(&self.bell.event, &mut [0_u8; 8]);
        self.bell.rings.store(false, Ordering::Release);
        self.orders.try_iter().collect()
    }
}
