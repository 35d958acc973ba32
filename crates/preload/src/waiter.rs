//! The thread that waits for late headers, so that `accept()` doesn't have to. The first late header starts
//! it.
//!
//! It gets connections through a pipe and delivers them through the shared queue. It shares nothing else with
//! the program's threads.

mod thread;

use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Resource, getrlimit};
use truepeer_handover::{Late, ListenerAddr};

use self::thread::Waiter;
use crate::movable::{Movable, NOBODY, STARTING};
use crate::{bell, ours, say};

/// A line of text, padded with spaces. Pipes read and write it atomically (PIPE_BUF, pipe(7)).
const MESSAGE_BYTES: usize = 160;
/// Room for thousands of them, if the quota of pipes permits.
const PIPE_BYTES: usize = 1 << 20;
const STACK_BYTES: usize = 256 << 10;

/// The writing end of the pipe.
static INBOX: Movable = Movable::nobody();
/// The number that the waiter must release to the program, and its answer.
static WANTED: AtomicI32 = AtomicI32::new(NOBODY);
const DONE: i32 = -1;
const UNKNOWN: i32 = -2;
/// Instead of a number: withdraw all reminders.
const WITHDRAW: i32 = i32::MIN;
/// The waiter has reminders in the program's epolls.
static REMINDS: AtomicBool = AtomicBool::new(false);
/// How often, and how long each time, to wait for the answer.
const ATTEMPTS: u32 = 1000;
const INTERVAL: Duration = Duration::from_millis(1);

/// Passes a connection to the waiter until its header comes.
pub(crate) fn wait(socket: OwnedFd, listener: BorrowedFd<'_>, sender: SocketAddr) {
    if let Err(error) = try_wait(socket, listener, sender) {
        say::complaint(
            "waiter",
            None,
            format_args!("can't wait for the late header of a connection from {sender}: {error}"),
        );
    }
}

fn try_wait(socket: OwnedFd, listener: BorrowedFd<'_>, sender: SocketAddr) -> Result<(), Errno> {
    let listener = ListenerAddr::of(listener)?;
    // Low numbers may be reused by the program (dup2). Move the connection before the waiter can decide on
    // it, because the waiter releases it.
    let socket = ours::keep_waiting(socket)?;
    let fd = socket.as_raw_fd();
    bell::on_given();
    match tell(format_args!("{fd} {listener} {sender}")) {
        Ok(()) => {
            // The waiter owns it from now on.
            let _ = socket.into_raw_fd();
            Ok(())
        }
        Err(error) => {
            bell::on_not_given();
            ours::release(fd);
            Err(error)
        }
    }
}

/// The program gets a connection that has been silent, under this number. If telling fails, its guard is all.
pub(crate) fn watch(connection: BorrowedFd<'_>) {
    let _ = tell(format_args!("watch {}", connection.as_raw_fd()));
}

/// More connections are ready than the one that the program was woken for.
pub(crate) fn repeat(listener: ListenerAddr) {
    if INBOX.number() >= 0 {
        // If it fails, the waiter announces them again in a moment.
        let _ = tell(format_args!("again {listener}"));
    }
}

/// Sends the waiter a message. If the program has closed the pipe with its own system calls, creates a new
/// one.
fn tell(line: fmt::Arguments<'_>) -> Result<(), Errno> {
    let mut message = [b' '; MESSAGE_BYTES];
    // Two addresses and a number always fit. Nothing is allocated: a signal handler may close a listener.
    let _ = message.as_mut_slice().write_fmt(line);
    for _ in 0..2 {
        let inbox = inbox()?;
        match INBOX
            .with(|inbox| if is_read(inbox)? { rustix::io::write(inbox, &message) } else { Err(Errno::PIPE) })
        {
            Ok(_) => return Ok(()),
            Err(Errno::BADF | Errno::PIPE) => {
                // Whichever thread is faster starts it.
                let _ = INBOX.change(inbox, NOBODY);
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::PIPE)
}

/// A write to a pipe without a reader would raise SIGPIPE.
fn is_read(inbox: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut asked = [PollFd::from_borrowed_fd(inbox, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(!asked[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL))
}

fn inbox() -> Result<RawFd, Errno> {
    loop {
        match INBOX.change(NOBODY, STARTING) {
            Ok(()) => {
                let started = start();
                if started.is_err() {
                    let _ = INBOX.change(STARTING, NOBODY);
                }
                return started;
            }
            // Another thread is starting it.
            Err(STARTING) => std::thread::yield_now(),
            Err(inbox) => return Ok(inbox),
        }
    }
}

/// If the waiter or its pipe uses the number `taken`, moves that descriptor to another number.
///
/// # Errors
/// EMFILE if no number is free; ETIMEDOUT if the waiter doesn't answer.
pub(crate) fn move_from(taken: RawFd) -> Result<bool, Errno> {
    if INBOX.move_from(taken)? {
        return Ok(true);
    }
    if INBOX.number() < 0 {
        return Ok(false);
    }
    WANTED.store(taken, Ordering::SeqCst);
    tell(format_args!("move {taken}"))?;
    for _ in 0..ATTEMPTS {
        match WANTED.load(Ordering::SeqCst) {
            DONE => return Ok(true),
            UNKNOWN => return Ok(false),
            _ => std::thread::sleep(INTERVAL),
        }
    }
    Err(Errno::TIMEDOUT)
}

/// Whether the program's epolls have reminders.
pub(crate) fn reminds() -> bool {
    REMINDS.load(Ordering::Acquire)
}

/// Withdraws all reminders. They are renewed at the next announcement.
///
/// # Errors
/// ETIMEDOUT if the waiter doesn't answer.
pub(crate) fn withdraw_reminders() -> Result<(), Errno> {
    move_from(WITHDRAW).map(drop)
}

fn start() -> Result<RawFd, Errno> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (reader, writer) = (ours::keep(reader, false)?, ours::keep(writer, false)?);
    // If the quota does not permit it, fewer can arrive at once.
    let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
    let epoll = ours::keep(epoll::create(epoll::CreateFlags::CLOEXEC)?, false)?;
    let late = Late::on(epoll, reader.as_fd())?;
    bell::open()?;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    let most = usize::try_from(limit).unwrap_or(usize::MAX).max(16);
    let inode = fstat(&reader)?.st_ino;
    let waiter = Waiter::new(late, reader, inode, most);
    let (running, runs) = mpsc::sync_channel(1);
    let spawned = without_signals(|| {
        std::thread::Builder::new().name("truepeer".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            let _ = running.send(());
            waiter.run();
        })
    });
    match spawned {
        Ok(_) => {
            // A child that the program makes by clone(2) (vsftpd) has the C library's list of threads. While
            // a thread there has not begun, setuid(3) in the child waits for it, and it never
            // begins there (nptl's setxid_futex).
            let _ = runs.recv();
            let number = writer.as_raw_fd();
            INBOX.hold(writer);
            Ok(number)
        }
        Err(error) => {
            ours::release(writer.as_raw_fd());
            Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        }
    }
}

/// A thread inherits the signal mask. Block all: the program's signal handlers must not run in this thread.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sigfillset and pthread_sigmask read or write a sigset_t each; both are locals, and all zeros is
    // a valid value before sigfillset.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        done
    }
}

/// Call it in a forked child: the waiter and its connections stayed with the parent.
pub(crate) fn on_fork() {
    bell::on_fork();
    REMINDS.store(false, Ordering::Release);
    INBOX.on_fork();
    let inbox = INBOX.number();
    if INBOX.change(inbox, NOBODY).is_ok() && inbox >= 0 {
        ours::release(inbox);
        // SAFETY: OwnedFd requires an open descriptor without another owner. It is the writing end that
        // `start` stored there, and the child has one thread.
        drop(unsafe { OwnedFd::from_raw_fd(inbox) });
    }
    ours::close_waiting();
}
