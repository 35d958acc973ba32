//! Wakes programs that wait in epoll, poll() or select(). It has a thread of its own because connecting to a
//! full queue blocks, and the supervisor must not.
//!
//! It connects to the listener. If that fails, or nobody accepts, it adds reminders to epolls. poll() and
//! select() are not reached.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use truepeer_handover::{ListenerAddr, WakeUp};

use super::callers::{Caller, remind_all};

/// How long a reminder stays that nobody renews.
const REMINDED: Duration = Duration::from_secs(2);

/// The most unreachable listeners that are remembered.
const MOST: usize = 4096;

/// A listener to be made readable.
#[derive(Debug)]
struct Order {
    callers: Vec<Caller>,
    /// The program did not accept after the last one.
    is_repeated: bool,
}

/// Why nobody was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotWoken {
    /// Nothing listens on that address any more.
    Gone,
    /// The listener can't be connected to, and no epoll watches it.
    Unreachable(Errno),
}

#[derive(Debug)]
pub(super) struct Ringer {
    orders: Sender<(ListenerAddr, Order)>,
    failures: Receiver<(ListenerAddr, NotWoken)>,
}

impl Ringer {
    pub(super) fn start(wake: WakeUp) -> std::io::Result<Self> {
        let (orders, incoming) = mpsc::channel();
        let (failing, failures) = mpsc::channel();
        thread::Builder::new()
            .name("ringer".to_owned())
            .spawn(move || ring_all(&wake, &incoming, &failing))?;
        Ok(Self { orders, failures })
    }

    /// Makes the listener on this address readable soon.
    pub(super) fn wake(&self, listener: ListenerAddr, callers: Vec<Caller>, is_repeated: bool) {
        // The thread ends only with this process.
        let _ = self.orders.send((listener, Order { callers, is_repeated }));
    }

    /// The addresses for which nobody was woken.
    pub(super) fn failures(&self) -> impl Iterator<Item = (ListenerAddr, NotWoken)> {
        self.failures.try_iter()
    }
}

/// One wake-up is enough for everything that is ready, so duplicate orders are carried out once.
fn ring_all(
    wake: &WakeUp,
    orders: &Receiver<(ListenerAddr, Order)>,
    failures: &Sender<(ListenerAddr, NotWoken)>,
) {
    let mut reminders: HashMap<ListenerAddr, Vec<OwnedFd>> = HashMap::new();
    // The listeners to which the last connection failed.
    let mut unreachable = HashSet::new();
    // Searching /proc takes a tenth of the time at most.
    let mut next_search = Instant::now();
    loop {
        let first = match orders.recv_timeout(REMINDED) {
            Ok(first) => first,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                reminders.clear();
                continue;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        };
        let all: HashMap<ListenerAddr, Order> = [first].into_iter().chain(orders.try_iter()).collect();
        for (listener, order) in all {
            let skips = unreachable.contains(&listener) && !order.is_repeated;
            let rung = if skips { Err(Errno::HOSTUNREACH) } else { wake.ring(listener) };
            if rung.is_ok() {
                unreachable.remove(&listener);
            } else if unreachable.len() < MOST {
                unreachable.insert(listener);
            }
            let began = Instant::now();
            let is_reminded = began < next_search && reminders.contains_key(&listener);
            if rung.is_ok() && !order.is_repeated || is_reminded {
                continue;
            }
            reminders.remove(&listener);
            let found = remind_all(&order.callers);
            next_search = Instant::now() + began.elapsed() * 9;
            reminders.insert(listener, found.reminders);
            let failure = match rung {
                Err(Errno::CONNREFUSED) if !found.listens => NotWoken::Gone,
                Err(errno) if !found.watches && !skips => NotWoken::Unreachable(errno),
                _ => continue,
            };
            if failures.send((listener, failure)).is_err() {
                return;
            }
        }
    }
}
