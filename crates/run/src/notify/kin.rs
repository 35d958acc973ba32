//! Wakes processes that have the library, for a connection whose header came late, where the library of one
//! process can't: its other processes, and threads that wait without the C library.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Instant;

use truepeer_handover::SocketId;

use super::callers::{Caller, remind_all};
use super::pollers::Pollers;
use crate::NAMES;

#[derive(Debug)]
pub(super) struct Kin {
    /// They remind while they are open.
    reminders: Vec<OwnedFd>,
    /// Searching /proc takes a tenth of the time at most. The library asks again.
    next_search: Instant,
}

impl Default for Kin {
    fn default() -> Self {
        Self { reminders: Vec::new(), next_search: Instant::now() }
    }
}

impl Kin {
    /// Wakes whoever waits for the listener, while `is_ready`.
    pub(super) fn wake(&mut self, listener: SocketId, pollers: &Pollers, is_ready: impl Fn() -> bool + Sync) {
        let began = Instant::now();
        if began < self.next_search || !is_ready() {
            return;
        }
        self.withdraw();
        let holders = holders_of(listener);
        self.reminders = remind_all(&holders).1;
        pollers.wake(&holders, usize::MAX, is_ready);
        self.next_search = Instant::now() + began.elapsed() * 9;
    }

    pub(super) fn withdraw(&mut self) {
        self.reminders.clear();
    }
}

/// The processes with the library that have this listener. A service manager that has it, too, is none.
fn holders_of(listener: SocketId) -> Vec<Caller> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter_map(|process| holder(process, listener)).collect()
}

fn holder(process: i32, listener: SocketId) -> Option<Caller> {
    let socket = listener.link();
    let (mut number, mut is_family) = (None, false);
    for entry in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        is_family |= target.as_os_str() == NAMES;
        if target.as_os_str() == socket.as_str() {
            number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        }
    }
    let number = number.filter(|_| is_family)?;
    Some(Caller { process, number, socket: listener })
}
