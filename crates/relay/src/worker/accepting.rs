//! Accepting: in batches, evenly among workers, and never ending for want of anything.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use truepeer_session::counters::Counter;
use truepeer_sys::{CallError, Named};

use super::{FIRST_DOOR, Order, Worker};

/// Connections taken before sessions get a turn.
const BATCH: usize = 256;
/// How long the doors stay closed when the system is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// A worker hands connections over when it has this many sessions more than the idlest one, and an eighth more.
const UNEVEN: usize = 4;

impl Worker {
    /// Accepts at all doors: of the workers that share one, the kernel wakes one per connection.
    pub(super) fn open_doors(&mut self) -> Result<(), CallError> {
        for (number, door) in (FIRST_DOOR..).zip(&self.doors) {
            let interest = EventFlags::IN | EventFlags::EXCLUSIVE;
            match epoll::add(self.kernel.epoll(), &*door.socket, EventData::new_u64(number), interest) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).named("epoll_ctl"),
            }
        }
        Ok(())
    }

    /// Leaves new connections in the kernel's queue for a moment.
    pub(super) fn pause(&mut self, errno: Option<Errno>, now: Instant) {
        for door in &self.doors {
            // Not watched (a pause within a pause): then nothing is to be done.
            let _ = epoll::delete(self.kernel.epoll(), &*door.socket);
        }
        self.paused_until = Some(now + PAUSE);
        if let Some(door) = self.doors.first() {
            let listener = self.listeners[usize::from(door.listener)].settings.address.ip();
            let lacking = errno.as_ref().map(|errno| errno as &dyn std::fmt::Display);
            self.journal.on_accept_pause(&self.shard, listener, lacking, now);
        }
    }

    /// A door has connections waiting.
    pub(super) fn accept_at(&mut self, door: u64, now: Instant) {
        let Some(door) = usize::try_from(door).ok().and_then(|door| self.doors.get(door)) else { return };
        let (listener, socket): (u16, Arc<OwnedFd>) = (door.listener, Arc::clone(&door.socket));
        for _ in 0..BATCH {
            let Some(permit) = self.budgets.sessions.take(1) else { return self.pause(None, now) };
            match accept(&socket) {
                Accepted::Connection(socket, sender) => {
                    self.shard.count(Counter::Accepted);
                    let order = Order::Adopt { listener, socket, sender, permit };
                    self.place(order, now);
                }
                Accepted::Lost => {}
                Accepted::Nobody => return,
                Accepted::OutOf(errno) => return self.pause(Some(errno), now),
            }
        }
    }

    /// Begins a session here, or with the worker that has least to do.
    fn place(&mut self, order: Order, now: Instant) {
        let kept = match self.idler_worker() {
            Some(worker) => self.team.postboxes[worker].post(order),
            None => Err(order),
        };
        if let Err(Order::Adopt { listener, socket, sender, permit }) = kept {
            self.begin(listener, socket, sender, permit, now);
        }
    }

    fn idler_worker(&self) -> Option<usize> {
        let load = |worker: &usize| self.team.loads[*worker].load(Ordering::Relaxed);
        let idlest = (0..self.team.loads.len()).min_by_key(load)?;
        let others = load(&idlest);
        (self.sessions.len() > others + others / 8 + UNEVEN).then_some(idlest)
    }
}

/// What accepting gave.
enum Accepted {
    Connection(OwnedFd, SocketAddr),
    /// None is waiting.
    Nobody,
    /// This one was gone before we came, or is refused by the system; the next one may be well.
    Lost,
    /// The system is out of something: trying at once again would spin.
    OutOf(Errno),
}

/// Takes one connection.
fn accept(listener: &OwnedFd) -> Accepted {
    match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((socket, address)) => match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => Accepted::Connection(socket, address),
            _ => Accepted::Lost,
        },
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Accepted::OutOf(errno),
        Err(_) => Accepted::Lost,
    }
}
