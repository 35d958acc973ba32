//! What the waiter does: it holds connections until their headers have come, and announces them.

mod announcing;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use truepeer_handover::{AfterWait, Decided, EXPOSED, Late, ListenerAddr, Look, is_exposed, is_guarded};
use truepeer_policy::SenderAddr;
use truepeer_sys::marked;

use super::{DONE, MESSAGE_BYTES, UNKNOWN, WANTED, WITHDRAW};
use crate::movable::is_inode;
use crate::role::{Accepting, role};
use crate::settling::settle;
use crate::{bell, ours, say};

/// How soon to try again when a queue was full.
const AGAIN: Duration = Duration::from_millis(20);
/// How often a busy program is woken at most.
const LONGEST_INTERVAL: Duration = Duration::from_secs(2);

/// The most unreachable listeners that are remembered.
const MOST_UNREACHABLE: usize = 1024;

/// The data of a waiting connection.
pub(super) struct WatchedListener {
    address: ListenerAddr,
    /// The address as accept() returned it: its family is the socket's.
    sender: SocketAddr,
}

pub(super) struct Waiter {
    late: Late<WatchedListener>,
    /// The program's connections that have been silent, by their descriptors.
    after_wait: AfterWait<RawFd>,
    /// The reading end of the pipe; `None` when nothing comes from there any more.
    reader: Option<OwnedFd>,
    /// The pipe's inode.
    inode: u64,
    /// At most this many connections may wait: half of the program's descriptors.
    most: usize,
    /// How many connections came through the pipe since the bell was told.
    received: usize,
    /// Entries for the shared queue, which was full: connection, listener, and the address that the program
    /// sees.
    again: Vec<(OwnedFd, ListenerAddr, SocketAddr)>,
    /// Ready connections that the program has not accepted yet. They are announced again, less and less
    /// often.
    announced: Vec<Announced>,
    /// The listeners to which the last connection failed.
    unreachable: HashSet<ListenerAddr>,
    /// By which the program's epolls report a listener (`remind`).
    reminders: Vec<(ListenerAddr, OwnedFd)>,
    /// Searching `/proc` takes a tenth of the time at most.
    next_search: Instant,
}

/// A message in the pipe.
enum WaiterMessage {
    /// A connection, its listener, and who has opened it.
    Wait(OwnedFd, ListenerAddr, SocketAddr),
    /// The program wants this number.
    Move(RawFd),
    /// More connections of this listener are ready.
    Again(ListenerAddr),
    /// The program has a connection that has been silent.
    Watch(RawFd),
}

struct Announced {
    listener: ListenerAddr,
    again_at: Instant,
    interval: Duration,
}

impl Waiter {
    /// `inode`: the pipe's, whose reading end is `reader`.
    pub(super) fn new(late: Late<WatchedListener>, reader: OwnedFd, inode: u64, most: usize) -> Self {
        Self {
            late,
            after_wait: AfterWait::default(),
            reader: Some(reader),
            inode,
            most,
            received: 0,
            again: Vec::new(),
            announced: Vec::new(),
            unreachable: HashSet::new(),
            reminders: Vec::new(),
            next_search: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        let Some(role) = role().and_then(|role| role.accepting.as_ref()) else { return };
        let mut pause = AGAIN;
        while self.reader.is_some() || !self.has_nothing_to_do() {
            match self.turn(role) {
                Ok(()) => pause = AGAIN,
                Err(error) => {
                    let text = format_args!(
                        "the program has closed descriptors of truepeer: {error}; opening them again"
                    );
                    say::complaint("waiter", None, text);
                    if self.rebuild().is_err() {
                        thread::sleep(pause);
                        pause = (pause * 2).min(LONGEST_INTERVAL);
                    }
                }
            }
        }
        ours::close(self.late.into_epoll());
    }

    fn has_nothing_to_do(&self) -> bool {
        self.late.is_empty() && self.again.is_empty() && self.announced.is_empty()
    }

    fn turn(&mut self, role: &Accepting) -> Result<(), Errno> {
        if let Some(reader) = &self.reader
            && !(is_inode(reader.as_fd(), self.inode) && self.late.is_whole(reader.as_fd()))
        {
            return Err(Errno::BADF);
        }
        let limit = self.next_attempt();
        let decided = self.late.turn(&role.rules, &role.family.wake, limit)?;
        decided.into_iter().for_each(|decided| self.hand_over(decided, role));
        while let Some(message) = self.receive() {
            match message {
                WaiterMessage::Wait(socket, listener, sender) => self.add(socket, listener, sender, role),
                WaiterMessage::Again(listener) => self.ring(listener, role),
                WaiterMessage::Watch(number) => self.watch(number, role),
                WaiterMessage::Move(taken) => {
                    if taken == WITHDRAW {
                        self.retire(|_| true);
                    }
                    let moved = self.relocate(taken).unwrap_or(false);
                    WANTED.store(if moved { DONE } else { UNKNOWN }, Ordering::SeqCst);
                }
            }
        }
        for (socket, listener, peer) in core::mem::take(&mut self.again) {
            self.put(socket, listener, peer, role);
        }
        self.announce_again(role);
        self.refuse_late_headers(role);
        if self.has_nothing_to_do() {
            self.retire(|_| true);
            bell::on_done(core::mem::take(&mut self.received));
        }
        Ok(())
    }

    /// The program has closed the epoll, the pipe or both with its own system calls. The next late connection
    /// creates a new pipe.
    fn rebuild(&mut self) -> Result<(), Errno> {
        if let Some(reader) = self.reader.take_if(|reader| !is_inode(reader.as_fd(), self.inode)) {
            // The number belongs to the program now.
            ours::release(reader.into_raw_fd());
        }
        let epoll = ours::keep(epoll::create(epoll::CreateFlags::CLOEXEC)?, false)?;
        self.late.rebuild(epoll, self.reader.as_ref().map(AsFd::as_fd))
    }

    fn receive(&mut self) -> Option<WaiterMessage> {
        let mut message = [0; MESSAGE_BYTES];
        let count = rustix::io::read(self.reader.as_ref()?, &mut message).ok()?;
        if count == 0 {
            // The writing end is closed, so the reading end would stay readable forever.
            let reader = self.reader.take()?;
            let _ = self.late.without_inbox(reader.as_fd());
            ours::close(reader);
            return None;
        }
        let text = core::str::from_utf8(message.get(..count)?).ok()?;
        let mut words = text.split(' ');
        let first = words.next()?;
        match first {
            "move" => return Some(WaiterMessage::Move(words.next()?.parse().ok()?)),
            "watch" => return Some(WaiterMessage::Watch(words.next()?.parse().ok()?)),
            "again" => return Some(WaiterMessage::Again(words.next()?.parse().ok()?)),
            _ => self.received += 1,
        }
        let fd: RawFd = first.parse().ok()?;
        // SAFETY: OwnedFd requires an open descriptor without another owner. `try_wait` gave up this
        // descriptor when it wrote the message, and the program can't close it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(WaiterMessage::Wait(socket, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    }

    /// If it has this number, moves it to another.
    fn relocate(&mut self, taken: RawFd) -> Result<bool, Errno> {
        let another = || ours::another_number(taken);
        let is_taken = |fd: &OwnedFd| fd.as_raw_fd() == taken;
        if let Some(reader) = self.reader.as_mut().filter(|reader| is_taken(reader)) {
            let moved = another()?;
            self.late.without_inbox(reader.as_fd())?;
            self.late.with_inbox(moved.as_fd())?;
            let _ = core::mem::replace(reader, moved).into_raw_fd();
        } else if let Some((waiting, ..)) = self.again.iter_mut().find(|(socket, ..)| is_taken(socket)) {
            let _ = core::mem::replace(waiting, another()?).into_raw_fd();
        } else if let Some(at) = self.reminders.iter().position(|(_, event)| is_taken(event)) {
            // The program replaces it, which withdraws the reminder. The next announcement makes another.
            let _ = self.reminders.swap_remove(at).1.into_raw_fd();
        } else if !self.late.relocate(taken, another)? {
            return Ok(false);
        }
        ours::release(taken);
        Ok(true)
    }

    fn add(&mut self, socket: OwnedFd, listener: ListenerAddr, sender: SocketAddr, role: &Accepting) {
        while self.late.len() >= self.most
            && let Some(oldest) = self.late.evict(&role.rules, &role.family.wake)
        {
            say::complaint(
                "too_many_late",
                None,
                format_args!("{} connections are waiting for their header: closing the oldest", self.most),
            );
            self.hand_over(oldest, role);
        }
        let fd = socket.as_raw_fd();
        let now = Instant::now();
        // The address to show depends on the family that accept() returned, so the listener carries it.
        let listener = WatchedListener { address: listener, sender };
        if self.late.add(socket, SenderAddr::new(sender), listener, &role.rules, now).is_err() {
            ours::release(fd);
        }
    }
}

impl Waiter {
    fn hand_over(&mut self, decided: Decided<WatchedListener>, role: &Accepting) {
        let Decided { socket, listener, look, .. } = decided;
        if look == Look::WakeUp {
            ours::close(socket);
            // Its wake-up word was slow, so repeat the announcement.
            return self.ring(listener.address, role);
        }
        let sender = SenderAddr::new(listener.sender);
        if is_exposed(socket.as_fd(), sender, &look, &role.rules) {
            say::complaint("silent", Some(sender.ip()), format_args!("{sender} {EXPOSED}"));
        } else if role.rules.has_optional && is_guarded(socket.as_fd(), &role.rules) {
            ours::with_a_passing_descriptor(|| {
                self.after_wait.watch(socket.as_fd(), listener.sender, None);
            });
        }
        match settle(socket.as_fd(), listener.sender, &look, role) {
            Ok(peer) => self.put(socket, listener.address, peer, role),
            Err(refused) => {
                ours::close(socket);
                say::refusal(&refused);
            }
        }
    }

    fn put(&mut self, socket: OwnedFd, listener: ListenerAddr, peer: SocketAddr, role: &Accepting) {
        match role.family.ready.put(socket.as_fd(), listener, peer) {
            Ok(()) => {
                // Before the program gets it, and may fork.
                ours::close(socket);
                self.ring(listener, role);
            }
            Err(_) => self.again.push((socket, listener, peer)),
        }
    }

    fn next_attempt(&self) -> Option<Duration> {
        let now = Instant::now();
        let again = self.announced.iter().map(|announced| announced.again_at.saturating_duration_since(now));
        let full = (!self.again.is_empty()).then_some(AGAIN);
        again.chain(full).chain(self.after_wait.limit()).min()
    }

    fn watch(&mut self, number: RawFd, role: &Accepting) {
        let watch = |connection: BorrowedFd<'_>| {
            let sender = marked::getpeername(connection).ok()??.try_into().ok()?;
            is_guarded(connection, &role.rules)
                .then(|| self.after_wait.watch(connection, sender, Some(number)))
        };
        ours::with_a_passing_descriptor(|| ours::inspect(number, watch));
    }

    fn refuse_late_headers(&mut self, role: &Accepting) {
        for decided in ours::with_a_passing_descriptor(|| self.after_wait.turn()) {
            let end = |connection: Option<BorrowedFd<'_>>| Some(decided.end(connection, &role.rules));
            let refused = ours::with_a_passing_descriptor(|| {
                let found = decided.place.map(|number| ours::inspect(number, |found| end(Some(found))));
                found.flatten().or_else(|| end(None)).flatten()
            });
            if let Some(refused) = refused {
                say::refusal(&refused);
            }
        }
    }
}
