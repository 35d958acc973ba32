//! Wakes the program's threads that wait in poll(), select() or a blocking `accept()`, without the network: a
//! pipe of this process, which they watch beside the listener; poll() and select() while connections wait for
//! their header.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_acceptconn, socket_timeout};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::movable::{Movable, NOBODY, alone};
use crate::ours::{self, FdSet};

static INTO: Movable = Movable::nobody();
static OUT: Movable = Movable::nobody();
/// The listeners that the bell rings for.
static RUNG: FdSet = FdSet::new();
/// How many connections the waiter was given, and with how many of them it has done, if with all.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);
/// How long a thread leaves a bell alone that rings for another thread's listener.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// Opens it again if the program has closed it with its own system calls.
///
/// # Errors
/// Those of pipe2(2).
pub(crate) fn open() -> Result<(), Errno> {
    alone(|| {
        if INTO.with(|_| OUT.with(|_| Ok(()))).is_ok() {
            return Ok(());
        }
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        OUT.hold(ours::keep(out, false)?);
        INTO.hold(ours::keep(into, false)?);
        Ok(())
    })
}

/// A connection goes to the waiter.
pub(crate) fn on_given() {
    GIVEN.fetch_add(1, Ordering::SeqCst);
}

/// It could not be given.
pub(crate) fn on_not_given() {
    GIVEN.fetch_sub(1, Ordering::SeqCst);
}

/// The waiter has received `received` more connections, and none waits for its header any more.
pub(crate) fn on_done(received: usize) {
    DONE.fetch_add(received, Ordering::SeqCst);
    if !RUNG.is_empty() {
        RUNG.drain(drop);
        empty();
    }
}

/// The descriptor that is readable when the bell rings; none while no connection waits.
pub(crate) fn number() -> Option<RawFd> {
    let waits = GIVEN.load(Ordering::SeqCst) != DONE.load(Ordering::SeqCst);
    if waits { out() } else { None }
}

fn out() -> Option<RawFd> {
    OUT.with(|out| Ok(out.as_raw_fd())).ok()
}

/// Rings for these listeners.
pub(crate) fn ring(listeners: impl Iterator<Item = RawFd>) {
    let mut rings = false;
    for listener in listeners {
        RUNG.insert(listener);
        rings = true;
    }
    if !rings {
        return;
    }
    // A full pipe rings already. Both ends are this library's, so the write can't raise SIGPIPE.
    let _ = INTO.with(|into| OUT.with(|_| rustix::io::write(into, b"!")));
}

/// Whether it rings for this listener: once.
pub(crate) fn take(listener: RawFd) -> bool {
    let rung = RUNG.has(listener);
    if rung {
        RUNG.remove(listener);
        if RUNG.is_empty() {
            empty();
        }
    }
    rung
}

fn empty() {
    let mut scrap = [0; 64];
    while OUT.with(|out| rustix::io::read(out, &mut scrap)).is_ok_and(|count| count == scrap.len()) {}
}

/// Whether `accept()` on this socket waits for a connection.
pub(crate) fn blocks(listener: BorrowedFd<'_>) -> bool {
    fcntl_getfl(listener).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
        && socket_acceptconn(listener) == Ok(true)
}

/// One thread at a time takes from the queues of listeners that block.
static TAKING: AtomicBool = AtomicBool::new(false);
/// How often to yield to the thread that takes: a signal handler can't wait for the one that it has
/// interrupted.
const ATTEMPTS: u32 = 1000;

/// Runs `accept` if the listener is still readable: another thread may have taken the connection that poll()
/// has reported to both. In the kernel's accept() a thread would not hear the bell.
pub(crate) fn take_one<T>(
    listener: BorrowedFd<'_>,
    accept: impl FnOnce() -> Result<T, Errno>,
) -> Result<Option<T>, Errno> {
    let mut attempts = 0..ATTEMPTS;
    while TAKING.swap(true, Ordering::Acquire) && attempts.next().is_some() {
        std::thread::yield_now();
    }
    let mut asked = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    let taken = match poll(&mut asked, Some(&Timespec::default())) {
        Ok(0) | Err(Errno::INTR) => Ok(None),
        Ok(_) => accept().map(Some),
        Err(error) => Err(error),
    };
    TAKING.store(false, Ordering::Release);
    taken
}

/// What a blocking `accept()` waits for, outside of this library's own work: there the thread may be
/// cancelled (pthreads(7)), which unwinds its stack.
pub(crate) struct Pause {
    /// The listener, and the bell.
    fds: [libc::pollfd; 2],
    hears: bool,
    /// The listener's own time (SO_RCVTIMEO).
    until: Option<Instant>,
}

/// ERESTARTSYS, which no program sees: wait as [`Pause`] says, and begin again.
pub(crate) const WAIT: Errno = Errno::from_raw_os_error(512);

impl Pause {
    pub(crate) fn of(listener: BorrowedFd<'_>) -> Self {
        let fds = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }; 2];
        let limit = socket_timeout(listener, Timeout::Recv).ok().flatten();
        Self { fds, hears: false, until: limit.and_then(|limit| Instant::now().checked_add(limit)) }
    }

    /// The arguments of poll(2).
    pub(crate) fn asks(&mut self) -> (&mut [libc::pollfd], libc::c_int) {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let interval = (!self.hears).then_some(INTERVAL);
        let limit = [left, interval].into_iter().flatten().min();
        // Rounded up: a time that is not over yet must not end at once.
        let limit = limit
            .map_or(-1, |limit| i32::try_from(limit.as_millis()).map_or(i32::MAX, |ms| ms.saturating_add(1)));
        (&mut self.fds[..1 + usize::from(self.hears)], limit)
    }

    /// Whether accept() goes on after a signal; with a time-out it never does (signal(7)).
    pub(crate) fn goes_on(&self) -> bool {
        self.until.is_none() && are_restarted()
    }
}

/// Before a blocking `accept()`: whether the bell rings for the listener; `false` if it is readable.
///
/// # Errors
/// [`WAIT`] if neither is so; EAGAIN after the listener's time.
pub(crate) fn until_readable(listener: BorrowedFd<'_>, pause: &mut Option<Pause>) -> Result<bool, Errno> {
    let pause = pause.get_or_insert_with(|| Pause::of(listener));
    // It opens before the first connection waits: this thread will hear of those that other threads accept.
    let number = out().or_else(|| open().ok().and_then(|()| out()));
    // SAFETY: BorrowedFd requires an open descriptor other than -1. The bell stays open while this process
    // lives; if the program has just taken its number, poll() reports another file's state, and the hook
    // looks again.
    let bell = number.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    let mut asked =
        [listener, bell.unwrap_or(listener)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut asked, Some(&Timespec::default())) {
        Err(Errno::INTR) if pause.goes_on() => return Err(WAIT),
        result => result?,
    };
    if !asked[0].revents().is_empty() {
        return Ok(false);
    }
    let is_anothers = bell.is_some() && !asked[1].revents().is_empty();
    if is_anothers && take(listener.as_raw_fd()) {
        return Ok(true);
    }
    if pause.until.is_some_and(|until| until <= Instant::now()) {
        return Err(Errno::AGAIN);
    }
    pause.fds[1].fd = number.unwrap_or(listener.as_raw_fd());
    pause.hears = !is_anothers;
    Err(WAIT)
}

/// Whether accept() goes on after every signal that the program handles (SA_RESTART). poll() never does.
fn are_restarted() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: sigaction writes the present action to `action`, a local, for which all zeros is a valid
        // value; without a new action nothing changes.
        let (known, action) = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let known = libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0;
            (known, action)
        };
        let is_handled = known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !is_handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// If it uses the number `taken`, moves to another one.
///
/// # Errors
/// Those of [`Movable::move_from`].
pub(crate) fn move_from(taken: RawFd) -> Result<bool, Errno> {
    Ok(INTO.move_from(taken)? || OUT.move_from(taken)?)
}

/// Call it in a forked child: the bell stays with the parent.
pub(crate) fn on_fork() {
    for end in [&INTO, &OUT] {
        end.on_fork();
        let number = end.number();
        if number >= 0 && end.change(number, NOBODY).is_ok() {
            ours::release(number);
            // SAFETY: OwnedFd requires an open descriptor without another owner. It is the end that `open`
            // stored there, which the program can't close, and the child has one thread.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    TAKING.store(false, Ordering::Release);
    RUNG.drain(drop);
    GIVEN.store(0, Ordering::SeqCst);
    DONE.store(0, Ordering::SeqCst);
}
