//! Wakes programs that wait in epoll, poll() or select(). It has a thread of its own because connecting to a
//! full queue blocks, and the supervisor must not.
//!
//! It connects to the listener. If that fails, or nobody accepts, it adds reminders to epolls, and interrupts
//! threads in poll() and select(), and signals owners (SIGIO).

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use truepeer_handover::{ListenerAddr, Names, SocketId, WakeUp};

use super::callers::{Caller, Found, remind_all, signal_owners};
use super::kin::Kin;
use super::pollers::{Obstacle, Pollers};
use super::ready::ReadyCounts;

/// How long a reminder stays that nobody renews.
const REMINDED: Duration = Duration::from_secs(2);

/// When a thread is looked for again that was not in poll() or select(), at first and at last.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(100);
/// How long a thread that was woken has for its accept().
const ACCEPTS: Duration = Duration::from_millis(10);

/// The most unreachable listeners that are remembered.
const MOST: usize = 4096;

/// A listener to be made readable.
#[derive(Debug)]
struct Order {
    callers: Vec<Caller>,
    /// The program did not accept after the last one.
    is_repeated: bool,
}

/// What the supervisor wants of the ringer.
#[derive(Debug)]
enum Wish {
    Ring(ListenerAddr, Order),
    /// The library asks for it.
    WakeKin(SocketId),
}

/// Why nobody was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotWoken {
    /// Nothing listens on that address any more.
    Gone,
    /// The listener can't be connected to, and neither an epoll watches it nor a signal tells of it. With an
    /// obstacle, a thread waits in poll() or select().
    Unreachable(Errno, Option<Obstacle>),
}

#[derive(Debug)]
pub(super) struct Ringer {
    orders: Sender<Wish>,
    failures: Receiver<(ListenerAddr, NotWoken)>,
}

impl Ringer {
    pub(super) fn start(
        wake: WakeUp,
        ready: ReadyCounts,
        names: Arc<Names>,
        pollers: Pollers,
    ) -> std::io::Result<Self> {
        let (orders, incoming) = mpsc::channel();
        let (failing, failures) = mpsc::channel();
        thread::Builder::new()
            .name("ringer".to_owned())
            .spawn(move || Ringing::new(wake, ready, names, pollers, failing).carry_out_all(&incoming))?;
        Ok(Self { orders, failures })
    }

    /// Makes the listener on this address readable soon.
    pub(super) fn wake(&self, listener: ListenerAddr, callers: Vec<Caller>, is_repeated: bool) {
        // The thread ends only with this process.
        let _ = self.orders.send(Wish::Ring(listener, Order { callers, is_repeated }));
    }

    /// Wakes all processes with the library that wait for this listener, soon.
    pub(super) fn wake_kin(&self, listener: SocketId) {
        let _ = self.orders.send(Wish::WakeKin(listener));
    }

    /// The addresses for which nobody was woken.
    pub(super) fn failures(&self) -> impl Iterator<Item = (ListenerAddr, NotWoken)> {
        self.failures.try_iter()
    }
}

/// The ringer's thread.
struct Ringing {
    wake: WakeUp,
    ready: ReadyCounts,
    /// They say whether a connection waits in the library's queue.
    names: Arc<Names>,
    kin: Kin,
    failures: Sender<(ListenerAddr, NotWoken)>,
    reminders: HashMap<ListenerAddr, Reminder>,
    /// The listeners to which the last connection failed.
    unreachable: HashMap<ListenerAddr, Errno>,
    /// Searching /proc for epolls takes a tenth of the time at most.
    next_search: Instant,
    pollers: Pollers,
    polled: HashMap<ListenerAddr, Poll>,
}

/// What was found for an address, and the reminders, which remind while they are open.
struct Reminder {
    found: Found,
    _events: Vec<OwnedFd>,
}

/// A search for threads in poll() and select(), until nothing is ready at an address.
struct Poll {
    callers: Vec<Caller>,
    /// A thread for each connection, at first: others may be busy with what they get.
    is_first: bool,
    /// A thread has been found.
    is_seen: bool,
    /// If none is found, the program can't be woken.
    must_be_seen: bool,
    /// The failure has been reported.
    is_told: bool,
    at: Instant,
    pause: Duration,
    /// Searching in vain takes a tenth of the time at most.
    not_before: Instant,
}

impl Ringing {
    fn new(
        wake: WakeUp,
        ready: ReadyCounts,
        names: Arc<Names>,
        pollers: Pollers,
        failures: Sender<(ListenerAddr, NotWoken)>,
    ) -> Self {
        Self {
            wake,
            ready,
            names,
            kin: Kin::default(),
            failures,
            reminders: HashMap::new(),
            unreachable: HashMap::new(),
            next_search: Instant::now(),
            pollers,
            polled: HashMap::new(),
        }
    }

    fn carry_out_all(mut self, wishes: &Receiver<Wish>) {
        let mut last = Instant::now();
        loop {
            let next = self.polled.values().map(|poll| poll.at).min();
            let limit = next.map_or(REMINDED, |next| next.saturating_duration_since(Instant::now()));
            match wishes.recv_timeout(limit.min(REMINDED)) {
                Ok(first) => {
                    last = Instant::now();
                    // One wake-up is enough for everything that is ready, so duplicate orders are carried out
                    // once.
                    let mut orders = HashMap::new();
                    let mut kin = HashSet::new();
                    for wish in [first].into_iter().chain(wishes.try_iter()) {
                        match wish {
                            Wish::Ring(listener, order) => drop(orders.insert(listener, order)),
                            Wish::WakeKin(listener) => drop(kin.insert(listener)),
                        }
                    }
                    orders.into_iter().for_each(|(listener, order)| self.carry_out(listener, order));
                    kin.into_iter().for_each(|listener| self.wake_kin(listener));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if last.elapsed() >= REMINDED => {
                    self.reminders.clear();
                    self.kin.withdraw();
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let due: Vec<ListenerAddr> = self
                .polled
                .iter()
                .filter(|(_, poll)| poll.at <= now)
                .map(|(listener, _)| *listener)
                .collect();
            due.into_iter().for_each(|listener| self.poll(listener));
        }
    }

    fn wake_kin(&mut self, listener: SocketId) {
        let names = &self.names;
        self.kin.wake(listener, &self.pollers, || names.is_announced());
    }

    fn carry_out(&mut self, listener: ListenerAddr, order: Order) {
        let Order { callers, is_repeated } = order;
        let known = self.unreachable.get(&listener).copied().filter(|_| !is_repeated);
        let rung = known.map_or_else(|| self.wake.ring(listener), Err);
        match rung {
            Ok(()) => drop(self.unreachable.remove(&listener)),
            Err(errno) if self.unreachable.len() < MOST => drop(self.unreachable.insert(listener, errno)),
            Err(_) => {}
        }
        if rung.is_ok() && !is_repeated {
            self.polled.remove(&listener);
            return;
        }
        let mut found = self.remind(listener, &callers);
        found.watches |= signal_owners(&callers);
        if rung == Err(Errno::CONNREFUSED) && known.is_none() && !found.listens {
            self.polled.remove(&listener);
            return self.fail(listener, NotWoken::Gone);
        }
        if found.watches && !is_repeated {
            return;
        }
        let must_poll = rung.is_err() && !found.watches;
        self.poll_from_now_on(listener, Order { callers, is_repeated }, must_poll);
    }

    /// Adds reminders to the epolls that watch the listener.
    fn remind(&mut self, listener: ListenerAddr, callers: &[Caller]) -> Found {
        let began = Instant::now();
        if let Some(reminder) = self.reminders.get(&listener).filter(|_| began < self.next_search) {
            return reminder.found;
        }
        self.reminders.remove(&listener);
        let (found, events) = remind_all(callers);
        self.next_search = Instant::now() + began.elapsed() * 9;
        self.reminders.insert(listener, Reminder { found, _events: events });
        found
    }

    /// Nothing else wakes the program if it `must_poll`.
    fn poll_from_now_on(&mut self, listener: ListenerAddr, order: Order, must_poll: bool) {
        let Order { callers, is_repeated } = order;
        let now = Instant::now();
        let before = self.polled.get(&listener);
        let not_before = before.map_or(now, |poll| poll.not_before);
        let at = now.max(not_before);
        let poll = Poll {
            callers,
            is_first: !is_repeated,
            // A busy program is not to be told of as one that never waits.
            must_be_seen: must_poll && is_repeated && before.is_none_or(|poll| !poll.is_seen),
            is_seen: before.is_some_and(|poll| poll.is_seen),
            is_told: false,
            at,
            pause: SOON,
            not_before,
        };
        self.polled.insert(listener, poll);
        if at == now {
            self.poll(listener);
        }
    }

    /// Wakes threads in poll() and select(). Looks again later, as long as a connection is ready.
    fn poll(&mut self, listener: ListenerAddr) {
        let began = Instant::now();
        let Some(poll) = self.polled.get_mut(&listener) else { return };
        let ready = self.ready.at(listener);
        if ready == 0 {
            self.polled.remove(&listener);
            return;
        }
        let most = if poll.is_first { ready } else { usize::MAX };
        let woken = self.pollers.wake(&poll.callers, most, || self.ready.at(listener) > 0);
        let now = Instant::now();
        if woken.woken > 0 {
            poll.pause = poll.pause.max(ACCEPTS);
            poll.not_before = now;
        } else {
            poll.not_before = now + began.elapsed() * 9;
        }
        poll.is_first = false;
        poll.is_seen |= woken.waiting > 0;
        poll.at = poll.not_before.max(now + poll.pause);
        poll.pause = LATER.min(poll.pause * 2);
        let is_failed = woken.woken == 0
            && !poll.is_told
            && (woken.obstacle.is_some() || poll.must_be_seen && !poll.is_seen);
        if let Some(errno) = self.unreachable.get(&listener).copied().filter(|_| is_failed) {
            poll.is_told = true;
            self.fail(listener, NotWoken::Unreachable(errno, woken.obstacle));
        }
    }

    fn fail(&self, listener: ListenerAddr, why: NotWoken) {
        // The supervisor ends only with this process.
        let _ = self.failures.send((listener, why));
    }
}
