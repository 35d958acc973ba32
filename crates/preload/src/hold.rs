//! A blocking `accept()` without a connection for the program, although select() or poll() reported the
//! listener.
//!
//! The kernel made the listener readable for a connection that the program must not see: silent, refused, or
//! a wake-up that another thread has answered. Blocking in `accept()` would keep the thread from everything
//! else in its select(): other listeners, open connections, a signal that it unblocks only there, its
//! time-out. So the thread's last query is remembered if it reported a supervised listener, and `accept()`
//! waits for all of it. An event elsewhere ends the call with ECONNABORTED: a connection was there and is
//! gone (accept(2): to be treated "like EAGAIN by retrying"; POSIX has it, too). Queries by epoll_wait() are
//! not remembered: if an epoll of the process watches the listener, that epoll is the other event. A thread
//! that has not asked blocks in the kernel as usual.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use truepeer_handover::{SocketId, epolls_of, is_watched};

use crate::{bell, listeners};

/// At most this many descriptors of a query are remembered, because thread-local memory may be small.
const MOST: usize = 64;
/// How often pending signals are checked. Also the longest wait of `accept()` if the query was too large to
/// remember.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long `accept()` keeps a thread from its epoll, whose time-out is not known. And how long it is
/// believed that no epoll watches a listener.
const KEPT: Duration = Duration::from_secs(1);

/// What a thread asked about one descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) fd: RawFd,
    /// The events as in poll(2).
    pub(crate) events: i16,
    /// The answer was yes, and no accept() has followed.
    pub(crate) answered: bool,
}

const NOTHING: Asked = Asked { fd: -1, events: 0, answered: false };

/// A thread's last query, if a supervised listener was among the answers. A signal handler may interrupt this
/// code anywhere and make its own query. That can mix up descriptor numbers, each of which is checked again
/// before use.
struct Last {
    asked: [Cell<Asked>; MOST],
    count: Cell<usize>,
    /// The query's time-out; `None`: none.
    limit: Cell<Option<Duration>>,
    /// The signals blocked during the query.
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

/// Whether an answer about this descriptor must be remembered.
pub(crate) fn is_listener(fd: RawFd) -> bool {
    listeners::is_seen(fd)
}

/// Remembers a query of this thread and its answer. `blocked` is a set of signals; signal 1 is the lowest
/// bit.
pub(crate) fn remember(asked: impl Iterator<Item = Asked>, limit: Option<Duration>, blocked: u64) {
    // A thread that is ending has no thread-local memory.
    let _ = LAST.try_with(|last| {
        let mut count = 0;
        for one in asked {
            // Descriptors beyond the limit are only counted.
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

/// The other events that `accept()` on a listener must wait for.
#[derive(Debug)]
pub(crate) struct Hold {
    others: [Asked; MOST],
    count: usize,
    until: Option<Instant>,
    blocked: u64,
}

impl Hold {
    /// Returns a value if select() or poll() has just reported this listener to this thread, and the listener
    /// blocks. Each report counts once.
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
            let unknown = (last.count.get() > MOST).then_some(INTERVAL);
            let listeners = socket_timeout(listener, Timeout::Recv).ok().flatten();
            let limit = [last.limit.get(), unknown, listeners].into_iter().flatten().min();
            hold.until = limit.and_then(|limit| Instant::now().checked_add(limit));
            Some(hold)
        });
        hold.ok().flatten()
    }

    /// Returns a value if an epoll of this process watches this listener, and the listener blocks. Call it
    /// after a connection that is not for the program.
    pub(crate) fn in_vain(listener: BorrowedFd<'_>) -> Option<Self> {
        static NONE_AT: Mutex<Option<Instant>> = Mutex::new(None);
        if fcntl_getfl(listener).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
            return None;
        }
        let now = Instant::now();
        // A signal handler may have interrupted the owner of the lock.
        let none_at = *NONE_AT.try_lock().ok()?;
        if none_at.is_some_and(|at| now.duration_since(at) < KEPT) {
            return None;
        }
        let id = SocketId::of(listener).ok()?;
        let watches = |epoll: &RawFd| {
            // SAFETY: BorrowedFd requires an open descriptor other than -1. If the program closes it
            // meanwhile, the look into /proc finds nothing, or another file that watches nothing.
            is_watched(unsafe { BorrowedFd::borrow_raw(*epoll) }, id)
        };
        let mut hold =
            Self { others: [NOTHING; MOST], count: 0, until: now.checked_add(KEPT), blocked: u64::MAX };
        for epoll in epolls_of("self").iter().filter(|epoll| watches(epoll)).take(MOST) {
            hold.others[hold.count] = Asked { fd: *epoll, events: libc::POLLIN, answered: false };
            hold.count += 1;
        }
        if hold.count == 0 {
            *NONE_AT.try_lock().ok()? = Some(now);
            return None;
        }
        Some(hold)
    }

    /// Waits until the listener is readable, or the bell rings for it. Returns whether it was the bell.
    ///
    /// # Errors
    /// ECONNABORTED as soon as another event of the query occurs, or the query's time-out or the listener's
    /// own (SO_RCVTIMEO) is over.
    pub(crate) fn until_readable(&self, listener: BorrowedFd<'_>) -> Result<bool, Errno> {
        let mut asked: [PollFd<'_>; MOST + 2] =
            core::array::from_fn(|_| PollFd::from_borrowed_fd(listener, PollFlags::IN));
        for (place, other) in asked[1..].iter_mut().zip(&self.others[..self.count]) {
            // SAFETY: poll(2) requires an array of `len` structs, which the slice is. A descriptor that was
            // closed since yields POLLNVAL.
            let other_fd = unsafe { BorrowedFd::borrow_raw(other.fd) };
            let events = PollFlags::from_bits_truncate(other.events.cast_unsigned());
            *place = PollFd::from_borrowed_fd(other_fd, events);
        }
        loop {
            // SAFETY: BorrowedFd requires an open descriptor other than -1. The bell stays open while this
            // process lives; if the program has just taken its number, the answer is about
            // another file and not used.
            let bell = bell::number().map(|number| unsafe { BorrowedFd::borrow_raw(number) });
            let place = &mut asked[self.count + 1];
            *place = PollFd::from_borrowed_fd(bell.unwrap_or(listener), PollFlags::IN);
            let asked = &mut asked[..self.count + 1 + usize::from(bell.is_some())];
            let left = self.until.map_or(INTERVAL, |until| until.saturating_duration_since(Instant::now()));
            let interval = Timespec::try_from(left.min(INTERVAL)).unwrap_or_default();
            // A signal handler may have set a flag that the thread checks around its select().
            poll(asked, Some(&interval)).map_err(|_| Errno::CONNABORTED)?;
            if !asked[0].revents().is_empty() {
                return Ok(false);
            }
            let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
            if asked.get(self.count + 1).is_some_and(happened) && bell::take(listener.as_raw_fd()) {
                return Ok(true);
            }
            if asked[..=self.count].iter().any(happened) || left.is_zero() || pending() & !self.blocked != 0 {
                return Err(Errno::CONNABORTED);
            }
        }
    }
}

/// The signals that are pending for this thread but blocked.
fn pending() -> u64 {
    // SAFETY: sigpending writes a sigset_t, and `set` is one; it is a local, and all zeros is a valid value
    // of it.
    let set = unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigpending(&raw mut set);
        set
    };
    as_bits(&set)
}

/// The signals that this thread blocks.
pub(crate) fn blocked_now() -> u64 {
    // SAFETY: pthread_sigmask writes a sigset_t, and `set` is one; it is a local, and all zeros is a valid
    // value of it. Without a new set nothing is changed.
    let set = unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut set);
        set
    };
    as_bits(&set)
}

/// The kernel's 64 signals, as a part of the C library's larger set.
pub(crate) fn as_bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: sigset_t consists of integers and is larger than eight bytes; its first eight bytes are the
    // kernel's set (glibc's __sigset_t), and every bit pattern is a valid u64.
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
    fn accept_ends_when_another_descriptor_of_the_query_is_ready() {
        let (listener, other) = pair();
        assert!(Hold::on(listener.as_fd()).is_none());
        told(&listener, &[other.as_raw_fd()], None);
        assert!(Hold::on(other.as_fd()).is_none(), "no query reported that listener");
        let hold = Hold::on(listener.as_fd()).unwrap();
        assert!(Hold::on(listener.as_fd()).is_none(), "once");
        let _client = connection_to(&other);
        assert_eq!(hold.until_readable(listener.as_fd()), Err(Errno::CONNABORTED));
        let _client = connection_to(&listener);
        assert_eq!(hold.until_readable(listener.as_fd()), Ok(false), "its own connections take precedence");
    }

    #[test]
    fn accept_ends_with_the_time_out_of_the_query() {
        let (listener, other) = pair();
        told(&listener, &[other.as_raw_fd()], Some(Duration::from_millis(5)));
        let hold = Hold::on(listener.as_fd()).unwrap();
        assert_eq!(hold.until_readable(listener.as_fd()), Err(Errno::CONNABORTED));
    }

    #[test]
    fn accept_ends_soon_if_the_query_was_too_large() {
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
