//! The processes that call `accept()` on each address, to wake them without the network.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use truepeer_handover::{ListenerAddr, SocketId, epolls_of, is_watched, remind};
use truepeer_sys::owner::signal_owner;
use truepeer_sys::process::descriptor_of;

use super::listener::SupervisedListener;

/// Above this many the table is cleared. The next accept() adds each again.
const MOST: usize = 4096;

/// A process with a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    pub(super) process: i32,
    /// The listener's descriptor there.
    pub(super) number: i32,
    pub(super) socket: SocketId,
}

#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Listeners and threads that were seen.
    seen: HashSet<(u64, i32)>,
    by_address: HashMap<ListenerAddr, HashSet<Caller>>,
}

impl Callers {
    pub(super) fn note(&mut self, listener: &SupervisedListener, thread: i32, number: i32) {
        if !self.seen.insert((listener.cookie, thread)) {
            return;
        }
        if self.seen.len() > MOST {
            self.seen.clear();
            self.by_address.clear();
        }
        let Some(process) = process_of(thread) else { return };
        let caller = Caller { process, number, socket: listener.id };
        self.by_address.entry(listener.address).or_default().insert(caller);
    }

    pub(super) fn at(&self, address: ListenerAddr) -> Vec<Caller> {
        self.by_address.get(&address).into_iter().flatten().copied().collect()
    }
}

fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// What a search for processes that wait for an address has found.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Found {
    /// A process has the listener.
    pub(super) listens: bool,
    /// An epoll watches it.
    pub(super) watches: bool,
}

/// Makes the epolls of these processes report the listeners that they watch, until the reminders are closed.
pub(super) fn remind_all(callers: &[Caller]) -> (Found, Vec<OwnedFd>) {
    let mut found = Found::default();
    let mut reminders = Vec::new();
    let processes: HashSet<i32> = callers.iter().map(|caller| caller.process).collect();
    let listeners: Vec<SocketId> = callers.iter().map(|caller| caller.socket).collect();
    found.listens = callers.iter().any(Caller::has_it);
    for process in processes {
        for number in epolls_of(&process.to_string()) {
            let Ok(epoll) = descriptor_of(process, number) else { continue };
            let reminded = remind(epoll.as_fd(), &listeners, Ok);
            found.watches |= reminded.watches;
            if !reminded.is_stale {
                reminders.extend(reminded.events);
            }
        }
    }
    (found, reminders)
}

/// The epolls of this thread's process that watch the listener.
pub(super) fn epolls_with(thread: i32, listener: SocketId) -> Vec<OwnedFd> {
    let numbers = epolls_of(&thread.to_string()).into_iter();
    let epolls = numbers.filter_map(|number| descriptor_of(thread, number).ok());
    epolls.filter(|epoll| is_watched(epoll.as_fd(), listener)).collect()
}

/// Sends the signals by which programs are told of connections (SIGIO). Returns whether there were any.
pub(super) fn signal_owners(callers: &[Caller]) -> bool {
    let mut told = HashSet::new();
    for caller in callers {
        if told.contains(&caller.socket) {
            continue;
        }
        let socket = descriptor_of(caller.process, caller.number);
        if socket.is_ok_and(|socket| signal_owner(socket.as_fd(), caller.process, caller.number) == Ok(true))
        {
            told.insert(caller.socket);
        }
    }
    !told.is_empty()
}

impl Caller {
    fn has_it(&self) -> bool {
        descriptor_of(self.process, self.number)
            .is_ok_and(|socket| SocketId::of(socket.as_fd()) == Ok(self.socket))
    }
}
