//! Answers accept() and accept4() with the next connection whose client is known.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_cookie, socket_timeout};
use rustix::net::{SocketFlags, acceptfrom_with};
use truepeer_handover::{Decided, Look, is_exposed, look, take};
use truepeer_policy::SenderAddr;
use truepeer_sys::seccomp::{Answer, Notification, calls};

use super::listener::SupervisedListener;
use super::parked::Waiting;
use super::ready::Connection;
use super::supervisor::Supervisor;

/// At most this many queued connections are searched for wake-ups that are no longer needed.
const MOST_LOOKED_THROUGH: usize = 64;

/// The flags of accept4(). They equal those of open().
pub(super) const SOCK_NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();
pub(super) const SOCK_CLOEXEC: i32 = OFlags::CLOEXEC.bits().cast_signed();

/// The flags that a call wants on the new descriptor.
pub(super) fn flags_of(call: &Notification) -> i32 {
    if call.call == calls::ACCEPT4 { call.int(3) } else { 0 }
}

/// The outcome of looking for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Answered,
    /// A connection was there, but none that the program may have.
    InVain,
    /// No connection was there.
    NotYet,
}

/// The next entry of the kernel's queue.
enum Next {
    Connection(Connection),
    /// A connection that the program must not have, or not yet.
    Other,
    /// A connection from truepeer itself.
    WakeUp,
    Nothing,
    Fail(Errno),
}

impl Supervisor {
    /// A call of accept() or accept4().
    pub(super) fn on_accept(&mut self, call: Notification) {
        if flags_of(&call) & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return self.answer(&call, Answer::GoOn); // the kernel reports the error
        }
        self.note_without_library(&call);
        let Some(socket) = self.descriptor(&call) else { return };
        let listener = self.listeners.look(socket.as_fd());
        let cookie = listener.as_ref().map_or_else(|| socket_cookie(&socket), |listener| Ok(listener.cookie));
        if let Ok(cookie) = cookie {
            self.siblings.on_accept(cookie, call.int(0), call.thread, Instant::now());
        }
        let Some(listener) = listener else { return self.answer(&call, Answer::GoOn) };
        self.callers.note(&listener, call.thread, call.int(0));
        let served = self.serve(&call, socket.as_fd(), &listener);
        if served == Served::Answered {
            return;
        }
        if is_non_blocking(socket.as_fd()) {
            return self.answer(&call, Answer::Fail(Errno::AGAIN));
        }
        self.park(call, socket, listener, served == Served::InVain);
    }

    fn park(
        &mut self,
        call: Notification,
        socket: OwnedFd,
        listener: Arc<SupervisedListener>,
        came_in_vain: bool,
    ) {
        let limit = socket_timeout(&socket, Timeout::Recv).ok().flatten();
        let deadline = limit.map(|limit| Instant::now() + limit);
        let waiting = Waiting::new(call, deadline, came_in_vain);
        if let Err(errno) = self.parked.park(&self.watch, socket, listener, waiting) {
            self.answer(&call, Answer::Fail(errno));
        }
    }

    /// A listener with waiting calls has become readable, or a connection to its address has become ready.
    pub(super) fn serve_parked(&mut self, cookie: u64) {
        let Some(mut group) = self.parked.take(cookie) else { return };
        while let Some(waiting) = group.waiting.pop_front() {
            if self.notifier.is_waiting(waiting.call.id)
                && self.serve(&waiting.call, group.socket.as_fd(), &group.listener) != Served::Answered
            {
                group.waiting.push_front(waiting);
                break;
            }
        }
        self.parked.put_back(&self.watch, group);
    }

    /// Answers the call if there is anything to answer. Never waits.
    fn serve(
        &mut self,
        call: &Notification,
        socket: BorrowedFd<'_>,
        listener: &Arc<SupervisedListener>,
    ) -> Served {
        if let Some(connection) = self.ready.take(listener.address) {
            self.hand_over(call, listener, connection);
            self.clear_wake_ups(socket, listener);
            // A program may accept one connection each time that it is woken.
            if self.ready.has(listener.address) && self.parked.at(listener.address).is_none() {
                self.wake(listener.address);
            }
            return Served::Answered;
        }
        let mut served = Served::NotYet;
        loop {
            match self.next(socket, listener) {
                Next::Connection(connection) => {
                    self.hand_over(call, listener, connection);
                    return Served::Answered;
                }
                Next::Other | Next::WakeUp => served = Served::InVain,
                Next::Nothing => return served,
                Next::Fail(errno) => {
                    self.answer(call, Answer::Fail(errno));
                    return Served::Answered;
                }
            }
        }
    }

    /// A program that polls a blocking listener would call accept() for a wake-up that is still in its queue,
    /// and be kept there although it had something else to do.
    fn clear_wake_ups(&mut self, socket: BorrowedFd<'_>, listener: &Arc<SupervisedListener>) {
        if is_non_blocking(socket) {
            return;
        }
        for _ in 0..MOST_LOOKED_THROUGH {
            match self.next(socket, listener) {
                Next::Connection(connection) => self.offer(listener, connection),
                Next::Other => {}
                Next::WakeUp | Next::Nothing | Next::Fail(_) => return,
            }
        }
    }

    fn next(&mut self, socket: BorrowedFd<'_>, listener: &Arc<SupervisedListener>) -> Next {
        let (connection, sender) = match accept(socket) {
            Ok(accepted) => accepted,
            Err(Errno::AGAIN) => return Next::Nothing,
            Err(Errno::INTR | Errno::CONNABORTED) => return Next::Other,
            // Out of descriptors in the supervisor: give up the connection that has waited longest for its
            // header.
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                self.journal.on_trouble("out of descriptors", &errno);
                return if self.evict() { Next::Other } else { Next::Fail(errno) };
            }
            Err(errno) => return Next::Fail(errno),
        };
        if !listener.is_whole && !self.listeners.have(connection.as_fd()) {
            return Next::Connection(Connection { socket: connection, sender, client: None, shown: None });
        }
        match look(connection.as_fd(), sender, &self.rules, &self.wake) {
            Look::NeedMore => {
                self.wait_for_header(connection, sender, listener);
                Next::Other
            }
            Look::WakeUp => Next::WakeUp,
            decided => self.judged(connection, sender, &decided).map_or(Next::Other, Next::Connection),
        }
    }

    fn wait_for_header(
        &mut self,
        connection: OwnedFd,
        sender: SenderAddr,
        listener: &Arc<SupervisedListener>,
    ) {
        self.journal.on_late();
        while self.late.len() + self.ready.len() >= self.most_held && self.evict() {}
        let added = self.late.add(connection, sender, Arc::clone(listener), &self.rules, Instant::now());
        if let Err(errno) = added {
            self.journal.on_trouble("can't watch a connection", &errno);
        }
    }

    /// Gives up the connection that has waited longest for its header. Returns `false` if none waits.
    fn evict(&mut self) -> bool {
        let evicted = self.late.evict(&self.rules, &self.wake);
        evicted.map(|decided| self.on_decided(decided)).is_some()
    }

    /// A header came late, or too late.
    pub(super) fn on_decided(&mut self, decided: Decided<Arc<SupervisedListener>>) {
        let Decided { socket, sender, listener, look } = decided;
        if is_exposed(socket.as_fd(), sender, &look, &self.rules) {
            self.journal.on_exposed(sender);
        }
        if let Some(connection) = self.judged(socket, sender, &look) {
            self.offer(&listener, connection);
        }
    }

    /// Returns the connection, with the header removed, if the policy lets the program have it.
    fn judged(&mut self, socket: OwnedFd, sender: SenderAddr, look: &Look) -> Option<Connection> {
        let (client, consumed) = match *look {
            Look::Named { client, destination, consumed } => (Some((client, destination)), consumed),
            Look::Plain { consumed } => (None, consumed),
            Look::Refused(refused) => {
                self.journal.on_refused(&refused);
                return None;
            }
            Look::NeedMore | Look::WakeUp => return None,
        };
        take(socket.as_fd(), consumed).ok()?;
        Some(Connection { socket, sender, client, shown: None })
    }

    /// Gives a connection to a call that waits for one, or wakes the program for it.
    pub(super) fn offer(&mut self, listener: &Arc<SupervisedListener>, connection: Connection) {
        self.ready.push(listener.address, connection);
        match self.parked.at(listener.address) {
            Some(cookie) => self.serve_parked(cookie),
            None => self.wake(listener.address),
        }
    }
}

/// Returns the next connection of the kernel's queue, if there is one.
///
/// A blocking listener gets O_NONBLOCK for this call. To poll before would not suffice: others may take from
/// this queue, processes with the library or outside the family. The library tries again if it meets the
/// flag.
fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, SenderAddr), Errno> {
    let flags = fcntl_getfl(listener)?;
    let blocks = !flags.contains(OFlags::NONBLOCK);
    if blocks {
        fcntl_setfl(listener, flags | OFlags::NONBLOCK)?;
    }
    let accepted = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
    if blocks {
        fcntl_setfl(listener, flags)?;
    }
    let (socket, sender) = accepted?;
    let sender = sender.ok_or(Errno::CONNABORTED)?.try_into().map_err(|_| Errno::CONNABORTED)?;
    Ok((socket, SenderAddr::new(sender)))
}

fn is_non_blocking(socket: BorrowedFd<'_>) -> bool {
    fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
    fn an_empty_queue_never_blocks_and_the_listener_stays_as_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        for non_blocking in [false, true] {
            listener.set_nonblocking(non_blocking).expect("O_NONBLOCK");
            assert_eq!(accept(listener.as_fd()).map(drop), Err(Errno::AGAIN));
            assert_eq!(is_non_blocking(listener.as_fd()), non_blocking);
            let client =
                TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
            truepeer_testbed::wait_for("the connection", || accept(listener.as_fd()).is_ok()).expect("it");
            assert_eq!(is_non_blocking(listener.as_fd()), non_blocking);
            drop(client);
        }
    }
}
