//! A blocking `accept()` that has nothing for the program, after select() or poll() said that there was something.
//!
//! The kernel made the listener readable for a connection that isn't for the program: silent, refused, or a wake-up that another
//! thread has answered. To wait on in `accept()` would keep the thread from whatever else it had asked select() for: another
//! listener, its open connections, a signal that it lets in there only, the end of its time. So what a thread last asked for is
//! remembered if a listener of ours was among the answers, and `accept()` waits for all of that. What is not for this
//! listener ends the call with ECONNABORTED: a connection was there and is gone (accept(2): to be treated "like EAGAIN by
//! retrying"; POSIX has it, too). A thread that hasn't asked waits in the kernel, as ever.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};

use crate::listeners;

/// So many descriptors of one call are remembered: they lie in memory of each thread, which may have little.
const MOST: usize = 64;
/// How often pending signals are looked for; and how long `accept()` waits at most, where more was asked than is remembered.
const GLANCE: Duration = Duration::from_millis(100);

/// What a thread asked for, of one descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) fd: RawFd,
    /// As poll(2) has them.
    pub(crate) events: i16,
    /// The answer was yes, and no accept() has come for it yet.
    pub(crate) answered: bool,
}

const NOTHING: Asked = Asked { fd: -1, events: 0, answered: false };

/// What a thread last asked for, if a listener of ours was among the answers. A signal handler may interrupt anything here, and
/// ask itself: what is mixed up then is numbers, each of which is asked about again.
struct Last {
    asked: [Cell<Asked>; MOST],
    count: Cell<usize>,
    /// How long it would have waited; `None`: for ever.
    limit: Cell<Option<Duration>>,
    /// The signals that were blocked meanwhile.
    blocked: Cell<u64>,
}

thread_local! {
    static LAST: Last = const {
        Last {
            asked: [const { Cell::new(NOTHING) }; MOST],
            count: Cell::new(0),
            limit: Cell::new(None),
            blocked: Cell::new(0),
        }
    };
}

/// Whether an answer about this descriptor is to be remembered.
pub(crate) fn is_listener(fd: RawFd) -> bool {
    listeners::is_seen(fd)
}

/// Remembers what this thread has asked for, and what the answer was. `blocked` is a set of signals, signal 1 in the lowest bit.
pub(crate) fn remember(asked: impl Iterator<Item = Asked>, limit: Option<Duration>, blocked: u64) {
    // A thread that is ending has none any more.
    let _ = LAST.try_with(|last| {
        let mut count = 0;
        for one in asked {
            // What there is no room for is counted.
            if let Some(place) = last.asked.get(count) {
                place.set(one);
            }
            count += 1;
        }
        last.count.set(count);
        last.limit.set(limit);
        last.blocked.set(blocked);
    });
}

/// What `accept()` on a listener has to wait for besides a connection.
#[derive(Debug)]
pub(crate) struct Hold {
    others: [Asked; MOST],
    count: usize,
    until: Option<Instant>,
    blocked: u64,
}

impl Hold {
    /// If this thread has just been told of this listener by select() or poll(), and the listener blocks: once for each time that
    /// it was told.
    pub(crate) fn on(listener: BorrowedFd<'_>) -> Option<Self> {
        let fd = listener.as_raw_fd();
        let hold = LAST.try_with(|last| {
            let places = || last.asked.iter().take(last.count.get());
            let told = places().find(|place| place.get().fd == fd && place.get().answered)?;
            told.set(Asked { answered: false, ..told.get() });
            let blocks = fcntl_getfl(listener).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
            if !blocks {
                return None;
            }
            let mut hold =
                Self { others: [NOTHING; MOST], count: 0, until: None, blocked: last.blocked.get() };
            for other in places().map(Cell::get).filter(|other| other.fd != fd) {
                hold.others[hold.count] = other;
                hold.count += 1;
            }
            let unknown = (last.count.get() > MOST).then_some(GLANCE);
            let listeners = socket_timeout(listener, Timeout::Recv).ok().flatten();
            let limit = [last.limit.get(), unknown, listeners].into_iter().flatten().min();
            hold.until = limit.and_then(|limit| Instant::now().checked_add(limit));
            Some(hold)
        });
        hold.ok().flatten()
    }

    /// Waits until the listener is readable.
    ///
    /// # Errors
    /// ECONNABORTED as soon as anything else happened that the thread had asked for, or its time is over: what it had for that, or
    /// the listener's own (SO_RCVTIMEO).
    pub(crate) fn until_readable(&self, listener: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut asked: [PollFd<'_>; MOST + 1] =
            core::array::from_fn(|_| PollFd::from_borrowed_fd(listener, PollFlags::IN));
        for (place, other) in asked[1..].iter_mut().zip(&self.others[..self.count]) {
            // SAFETY: only descriptors that poll() would take are kept; one that was closed since is answered with POLLNVAL.
            let other_fd = unsafe { BorrowedFd::borrow_raw(other.fd) };
            let events = PollFlags::from_bits_truncate(other.events.cast_unsigned());
            *place = PollFd::from_borrowed_fd(other_fd, events);
        }
        let asked = &mut asked[..=self.count];
        loop {
            let left = self.until.map_or(GLANCE, |until| until.saturating_duration_since(Instant::now()));
            let glance = Timespec::try_from(left.min(GLANCE)).unwrap_or_default();
            // A signal that was handled may have set a flag, which the thread looks at beside its select().
            let happened = poll(asked, Some(&glance)).map_err(|_| Errno::CONNABORTED)?;
            if !asked[0].revents().is_empty() {
                return Ok(());
            }
            if happened > 0 || left.is_zero() || pending() & !self.blocked != 0 {
                return Err(Errno::CONNABORTED);
            }
        }
    }
}

/// Signals that wait for this thread because it blocks them now.
fn pending() -> u64 {
    // SAFETY: the set is a local that the call fills; it may be all zeros before.
    let set = unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigpending(&raw mut set);
        set
    };
    as_bits(&set)
}

/// The signals that this thread blocks now.
pub(crate) fn blocked_now() -> u64 {
    // SAFETY: the set is a local that the call fills; without a new set nothing is changed.
    let set = unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut set);
        set
    };
    as_bits(&set)
}

/// The kernel's 64 signals of the C library's larger set.
pub(crate) fn as_bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set consists of integers, of which the first eight bytes are the kernel's set (glibc's __sigset_t).
    unsafe { (&raw const *set).cast::<u64>().read() }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::net::{AddressFamily, SocketType, connect, socket};

    use super::*;

    const IN: i16 = libc::POLLIN;

    fn told(listener: &TcpListener, others: &[RawFd], limit: Option<Duration>) {
        let first = Asked { fd: listener.as_raw_fd(), events: IN, answered: true };
        let others = others.iter().map(|fd| Asked { fd: *fd, events: IN, answered: false });
        remember([first].into_iter().chain(others), limit, 0);
    }

    fn pair() -> (TcpListener, TcpListener) {
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn connection_to(listener: &TcpListener) -> OwnedFd {
        let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        connect(&client, &listener.local_addr().unwrap()).unwrap();
        client
    }

    #[test]
    fn a_thread_that_was_told_of_a_listener_is_told_of_the_others() {
        let (listener, other) = pair();
        assert!(Hold::on(listener.as_fd()).is_none());
        told(&listener, &[other.as_raw_fd()], None);
        assert!(Hold::on(other.as_fd()).is_none(), "nothing was said about that one");
        let hold = Hold::on(listener.as_fd()).unwrap();
        assert!(Hold::on(listener.as_fd()).is_none(), "once");
        let _client = connection_to(&other);
        assert_eq!(hold.until_readable(listener.as_fd()), Err(Errno::CONNABORTED));
        let _client = connection_to(&listener);
        assert_eq!(hold.until_readable(listener.as_fd()), Ok(()), "its own connections come first");
    }

    #[test]
    fn its_time_is_over_as_in_its_own_wait() {
        let (listener, other) = pair();
        told(&listener, &[other.as_raw_fd()], Some(Duration::from_millis(5)));
        let hold = Hold::on(listener.as_fd()).unwrap();
        assert_eq!(hold.until_readable(listener.as_fd()), Err(Errno::CONNABORTED));
    }

    #[test]
    fn more_than_is_remembered_is_asked_for_soon() {
        let (listener, other) = pair();
        told(&listener, &[other.as_raw_fd(); MOST], None);
        let hold = Hold::on(listener.as_fd()).unwrap();
        assert_eq!(hold.until_readable(listener.as_fd()), Err(Errno::CONNABORTED));
    }

    #[test]
    fn listeners_that_do_not_block_are_left_alone() {
        let (listener, other) = pair();
        listener.set_nonblocking(true).unwrap();
        told(&listener, &[other.as_raw_fd()], None);
        assert!(Hold::on(listener.as_fd()).is_none());
    }
}
