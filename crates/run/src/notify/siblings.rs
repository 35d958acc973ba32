//! Finds other work that a blocking `accept` keeps its thread from: connections at other listeners.
//!
//! A program with several blocking listeners waits in select() and calls accept() on the one reported. If
//! that connection is not for the program (silent, refused, a wake-up), accept() blocks and the other
//! listeners are not served. The kernel doesn't tell why a thread called accept(). The supervisor assumes
//! this case if the queue was not empty when the call came, another listener of the process has a connection,
//! and no other thread of the process accepts on that one. The call then fails with ECONNABORTED: a
//! connection was there and is gone (accept(2): to be treated "like EAGAIN by retrying"; POSIX has it, too).

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{socket_acceptconn, socket_cookie};
use truepeer_sys::process::descriptor_of;

/// Above this many listeners the table is cleared. The next accept() adds each again.
const MOST: usize = 256;
/// A thread with its own listener calls accept() this soon after listen().
const BEGINNING: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Sibling {
    /// The descriptor's number in the process, and in its children.
    number: i32,
    since: Instant,
    /// The thread that last called accept() on it.
    thread: Option<i32>,
}

/// The listeners of the program and its children, by SO_COOKIE, whatever their protocol.
#[derive(Debug, Default)]
pub(super) struct Siblings(HashMap<u64, Sibling>);

impl Siblings {
    pub(super) fn on_listen(&mut self, cookie: u64, number: i32, now: Instant) {
        self.note(cookie, Sibling { number, since: now, thread: None });
    }

    pub(super) fn on_accept(&mut self, cookie: u64, number: i32, thread: i32, now: Instant) {
        match self.0.get_mut(&cookie) {
            Some(known) => (known.number, known.thread) = (number, Some(thread)),
            None => self.note(cookie, Sibling { number, since: now, thread: Some(thread) }),
        }
    }

    fn note(&mut self, cookie: u64, sibling: Sibling) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(cookie, sibling);
    }

    /// Whether a connection waits at another listener that only this thread serves.
    pub(super) fn want(&self, thread: i32, own: u64, now: Instant) -> bool {
        let mut others = self.0.iter().filter(|(cookie, _)| **cookie != own);
        others.any(|(cookie, sibling)| {
            sibling.is_left_to(thread, now) && sibling.has_a_connection(thread, *cookie)
        })
    }
}

impl Sibling {
    fn is_left_to(&self, thread: i32, now: Instant) -> bool {
        match self.thread {
            None => now.duration_since(self.since) >= BEGINNING,
            // It may belong to another process, whose thread may be blocked in the same way.
            Some(last) => last == thread || !Path::new(&format!("/proc/{thread}/task/{last}")).exists(),
        }
    }

    fn has_a_connection(&self, thread: i32, cookie: u64) -> bool {
        // Look among the process's own descriptors: it may have closed the listener and reused the number.
        descriptor_of(thread, self.number).is_ok_and(|socket| {
            socket_cookie(&socket) == Ok(cookie)
                && socket_acceptconn(&socket) == Ok(true)
                && is_readable(socket.as_fd())
        })
    }
}

pub(super) fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&at_once)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use truepeer_testbed::wait_for;

    use super::*;

    fn own_thread() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    fn cookie_of(listener: &TcpListener) -> u64 {
        socket_cookie(listener).expect("a cookie")
    }

    #[test]
    fn a_listener_that_another_thread_accepts_on_is_left_to_it() {
        let long_ago = Instant::now();
        let now = long_ago + BEGINNING;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let (cookie, number, me) = (cookie_of(&listener), listener.as_raw_fd(), own_thread());
        let mut siblings = Siblings::default();
        siblings.on_listen(cookie, number, long_ago);
        assert!(!siblings.want(me, 1, now), "nobody has connected");
        let client =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
                .expect("a socket");
        rustix::net::connect(&client, &listener.local_addr().expect("an address")).expect("a connection");
        // On a busy machine connect() returns before the listener has the client's last ACK.
        wait_for("a connection at the listener", || is_readable(listener.as_fd())).expect("it comes");
        assert!(siblings.want(me, 1, now), "no other thread serves it");
        assert!(!siblings.want(me, cookie, now), "it is the listener of the call itself");
        assert!(!siblings.want(me, 1, long_ago), "its thread may still call accept()");
        siblings.on_accept(cookie, number, me, now);
        assert!(siblings.want(me, 1, now), "this thread served it last");
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(own_thread()).expect("the test");
            asked.recv().expect_err("nothing is sent");
        });
        let its = told.recv().expect("its number");
        siblings.on_accept(cookie, number, its, now);
        assert!(!siblings.want(me, 1, now), "another thread does");
        drop(ask);
        other.join().expect("the other thread");
        // The kernel wakes join() (CLONE_CHILD_CLEARTID) before it takes the thread out of /proc.
        let task = format!("/proc/{me}/task/{its}");
        wait_for("the thread to be gone", || !Path::new(&task).exists()).expect("it goes");
        assert!(siblings.want(me, 1, now), "it has ended");
    }
}
