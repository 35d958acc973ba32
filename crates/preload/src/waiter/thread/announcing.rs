//! Wakes the program for connections whose header came late, again and again until it has accepted them.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::getpid;
use truepeer_handover::{ListenerAddr, Reminded, SocketId, epolls_of, remind, ringing_socket};
use truepeer_sys::marked;
use truepeer_sys::owner::signal_owner;

use super::{AGAIN, Announced, LONGEST_INTERVAL, MOST_UNREACHABLE, Waiter};
use crate::role::Accepting;
use crate::waiter::REMINDS;
use crate::{bell, listeners, ours, say};

impl Waiter {
    pub(super) fn ring(&mut self, listener: ListenerAddr, role: &Accepting) {
        self.announced.retain(|announced| announced.listener != listener);
        self.announce(listener, AGAIN, role);
    }

    /// By a connection, where this host can connect to its own listeners: that reaches every process that has
    /// the listener. Elsewhere, and if nobody has answered, by reminders, signals and the bell in this
    /// process, and then by the supervisor, which reaches the others and calls that bypass this library.
    fn announce(&mut self, listener: ListenerAddr, interval: Duration, role: &Accepting) {
        let is_first = interval == AGAIN;
        let rung = if is_first && self.unreachable.contains(&listener) {
            Err(Errno::HOSTUNREACH)
        } else {
            ring(listener, role)
        };
        if rung.is_ok() {
            self.unreachable.remove(&listener);
        } else if self.unreachable.len() < MOST_UNREACHABLE {
            self.unreachable.insert(listener);
        }
        let asks = rung.is_err() && !is_first;
        if (rung.is_err() || !is_first) && !self.remind(listener, asks, role) {
            match rung {
                Ok(()) => {}
                Err(Errno::CONNREFUSED) => return forget_listener(listener, role),
                Err(error) => say::complaint(
                    "not_woken",
                    None,
                    format_args!(
                        "a connection to {0} is ready, whose header came late, but the program can't be \
                        woken for it: connecting to its listener failed ({error}), and this process has \
                        closed it; permit connections of this host to {0}",
                        listener.local
                    ),
                ),
            }
        }
        if let Err(error) = rung
            && interval >= LONGEST_INTERVAL
        {
            say::complaint(
                "unanswered",
                None,
                format_args!(
                    "a connection to {0} is ready, whose header came late, and nobody has accepted it for \
                    seconds: this process is busy, or waits in a way that truepeer can't end (libaio; \
                    without a supervisor also poll() without the C library), and connecting to its listener \
                    failed ({error}); permit connections of this host to {0}",
                    listener.local
                ),
            );
        }
        self.announced.push(Announced { listener, again_at: Instant::now() + interval, interval });
    }

    /// Wakes the threads of this process that wait for this listener. `false` if the process doesn't have it.
    /// Also `asks` the supervisor to do so in all processes.
    fn remind(&mut self, listener: ListenerAddr, asks: bool, role: &Accepting) -> bool {
        role.family.names.announce();
        let began = Instant::now();
        let listeners: Vec<_> = ours::with_a_passing_descriptor(|| listeners::at(listener).collect());
        // If the program has taken its number, it is opened again by the next start.
        bell::ring(listeners.iter().map(|(number, _)| *number));
        let own = getpid().as_raw_nonzero().get();
        for (number, _) in &listeners {
            let signal = || ours::inspect(*number, |fd| signal_owner(fd, own, *number).ok());
            let _ = ours::with_a_passing_descriptor(signal);
            if asks {
                // If there is no supervisor any more, this process's threads were woken all the same.
                let _ = marked::ask_to_wake(*number, listeners::BACKLOG);
            }
        }
        if began < self.next_search && self.reminders.iter().any(|(known, _)| *known == listener) {
            return true; // announced again soon
        }
        self.retire(|known| known == listener);
        let ids: Vec<SocketId> = listeners.iter().map(|(_, id)| *id).collect();
        let programs = ours::with_a_passing_descriptor(|| epolls_of("self"));
        let reminded: Vec<_> = programs
            .into_iter()
            .filter(|number| !ours::OURS.has(*number))
            .filter_map(|number| {
                ours::with_a_passing_descriptor(|| {
                    ours::inspect(number, |epoll| Some(remind(epoll, &ids, ours::keep_waiting)))
                })
            })
            .collect();
        for Reminded { events, is_stale, .. } in reminded {
            if is_stale {
                events.into_iter().for_each(ours::close);
            } else {
                self.reminders.extend(events.into_iter().map(|event| (listener, event)));
            }
        }
        REMINDS.store(!self.reminders.is_empty(), Ordering::Release);
        self.next_search = Instant::now() + began.elapsed() * 9;
        !listeners.is_empty()
    }

    /// Withdraws reminders.
    pub(super) fn retire(&mut self, whose: impl Fn(ListenerAddr) -> bool) {
        let (retired, rest): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.reminders).into_iter().partition(|(listener, _)| whose(*listener));
        self.reminders = rest;
        REMINDS.store(!self.reminders.is_empty(), Ordering::Release);
        retired.into_iter().for_each(|(_, event)| ours::close(event));
    }

    pub(super) fn announce_again(&mut self, role: &Accepting) {
        if self.announced.is_empty() || role.family.ready.is_empty() {
            return self.announced.clear();
        }
        let now = Instant::now();
        let (due, rest) = core::mem::take(&mut self.announced).into_iter().partition(|a| a.again_at <= now);
        self.announced = rest;
        let due: Vec<Announced> = due;
        for Announced { listener, interval, .. } in due {
            self.announce(listener, (interval * 2).min(LONGEST_INTERVAL), role);
        }
    }
}

/// By a socket with a high number: at a low one the program could put a descriptor of its own meanwhile
/// (dup2).
fn ring(listener: ListenerAddr, role: &Accepting) -> Result<(), Errno> {
    let open =
        |family| ours::with_a_passing_descriptor(|| ringing_socket(family).and_then(ours::keep_waiting));
    role.family.wake.ring_by(listener, open, ours::close)
}

/// Nothing listens on that address any more: its connections are closed.
fn forget_listener(listener: ListenerAddr, role: &Accepting) {
    let entries: Vec<_> = core::iter::from_fn(|| role.family.ready.take()).collect();
    for entry in entries.into_iter().filter(|entry| entry.listener != listener) {
        role.family.ready.put_back(&entry);
        let _ = ring(entry.listener, role);
    }
}
