//! Wakes threads that wait in poll(), ppoll(), select() or pselect6() for a listener to which this host can't
//! connect.
//!
//! ```text
//! poll([listener, …]) ─interrupted─▶ stopped ─▶ POLLIN for the listener, result 1 ─▶ accept()
//! ```
//! The call is interrupted, so the kernel has just found that nothing else is ready. Then it returns what it
//! would return for a connection at the listener. The program calls accept(), which the supervisor answers.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use truepeer_handover::SocketId;
use truepeer_sys::process::{
    self, PendingCall, StoppedThread, Tracer, read_memory, trace_apart, write_memory,
};

use super::callers::Caller;
use super::interrupt::has_a_signal;
use polled::{Polled, Write};

mod polled;

/// How long a thread may take to stop. It sleeps in a call that each signal interrupts.
const STOPS: Duration = Duration::from_millis(500);

/// How many descriptors of a call are looked up that nobody has passed to accept().
const MOST_LOOKUPS: u32 = 64;

/// What a search for waiting threads has led to.
#[derive(Debug, Default)]
pub(super) struct Woken {
    /// Threads that wait for the listener.
    pub(super) waiting: usize,
    /// The threads that continue.
    pub(super) woken: usize,
    /// Why another one doesn't.
    pub(super) obstacle: Option<Obstacle>,
}

/// Why a thread can't be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// ptrace(2) can't be called.
    Forbidden(process::Untraceable),
    /// It fails for this thread.
    Failed(Errno),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(process::Untraceable::Fatal) => {
                f.write_str("a seccomp filter kills whoever calls ptrace(2)")
            }
            Self::Forbidden(process::Untraceable::Refused(errno)) => {
                write!(f, "ptrace(2) is forbidden ({errno})")
            }
            Self::Failed(Errno::PERM) => f.write_str("a debugger traces it"),
            Self::Failed(errno) => write!(f, "ptrace(2) failed ({errno})"),
        }
    }
}

/// A thread that waits for a listener.
#[derive(Debug)]
struct Waiting<'callers> {
    process: i32,
    thread: i32,
    call: PendingCall,
    polled: Polled,
    listeners: &'callers [(i32, SocketId)],
}

/// Wakes threads, if ptrace(2) is permitted.
#[derive(Debug)]
pub(super) struct Pollers {
    permission: Result<(), Obstacle>,
}

impl Pollers {
    /// `permission`: of [`process::may_trace`].
    pub(super) fn new(permission: Result<(), Obstacle>) -> Self {
        Self { permission }
    }

    /// Wakes at most this many threads that wait for the callers' listener, while `is_ready`.
    pub(super) fn wake(&self, callers: &[Caller], most: usize, is_ready: impl Fn() -> bool + Sync) -> Woken {
        let mut listeners: HashMap<i32, Vec<(i32, SocketId)>> = HashMap::new();
        for caller in callers {
            listeners.entry(caller.process).or_default().push((caller.number, caller.socket));
        }
        let waiting: Vec<Waiting<'_>> =
            listeners.iter().flat_map(|(process, listeners)| waiting_in(*process, listeners)).collect();
        let mut found = Woken { waiting: waiting.len(), ..Woken::default() };
        if waiting.is_empty() {
            return found;
        }
        if let Err(why) = self.permission {
            found.obstacle = Some(why);
            return found;
        }
        let all = trace_apart(|tracer| {
            for one in &waiting {
                if found.woken >= most || !is_ready() {
                    break;
                }
                match one.wake(tracer, &is_ready) {
                    Ok(woken) => found.woken += usize::from(woken),
                    // It has ended.
                    Err(Errno::SRCH) => {}
                    Err(errno) => found.obstacle = Some(Obstacle::Failed(errno)),
                }
            }
            found
        });
        all.unwrap_or_else(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            Woken { waiting: waiting.len(), woken: 0, obstacle: Some(Obstacle::Failed(errno)) }
        })
    }
}

/// The threads of a process that wait for one of these listeners.
fn waiting_in(process: i32, listeners: &[(i32, SocketId)]) -> Vec<Waiting<'_>> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.filter_map(|thread| Waiting::of(process, thread, listeners)).collect()
}

impl<'callers> Waiting<'callers> {
    fn of(process: i32, thread: i32, listeners: &'callers [(i32, SocketId)]) -> Option<Self> {
        let call = PendingCall::of(process, thread).ok()??;
        let polled = Polled::of(&call, || is_in_poll(process, thread))?;
        let waiting = Self { process, thread, call, polled, listeners };
        // A process that was stopped (SIGSTOP) does not wait.
        (sleeps(process, thread) && waiting.result()?.1 > 0).then_some(waiting)
    }

    /// What the call would write, and return, for connections at the listeners. `None` if its memory can't be
    /// read.
    fn result(&self) -> Option<(Vec<Write>, i64)> {
        let read = |address, buffer: &mut [u8]| read_memory(self.thread, address, buffer);
        let lookups = Cell::new(MOST_LOOKUPS);
        let is_listener = |number| {
            let mut listeners = self.listeners.iter();
            // Mostly it polls the number that it passes to accept().
            if self.listeners.iter().all(|(known, _)| *known != number) {
                match lookups.get().checked_sub(1) {
                    Some(left) => lookups.set(left),
                    None => return false,
                }
            }
            listeners.any(|(_, socket)| socket.is_at(self.process, number))
        };
        self.polled.result(read, || descriptors_of(self.process), is_listener)
    }

    /// Returns `false` if it does not wait any more, has a signal to handle first, or another thread has
    /// taken the connection.
    fn wake(&self, tracer: &Tracer, is_ready: impl Fn() -> bool) -> Result<bool, Errno> {
        let stopped = tracer.stop(self.thread, STOPS)?;
        // With a signal the call fails with EINTR, or begins again.
        if !is_ready() || !stopped.is_within(&self.call)? || has_a_signal(self.thread) {
            return Ok(false);
        }
        let Some((writes, count)) = self.result().filter(|(_, count)| *count > 0) else { return Ok(false) };
        self.finish(&stopped, &writes, count)
    }

    fn finish(&self, stopped: &StoppedThread<'_>, writes: &[Write], count: i64) -> Result<bool, Errno> {
        let mut value = count;
        for write in writes {
            match write_memory(self.thread, write.address, &write.bytes) {
                Ok(()) => {}
                // The kernel could not write there, either.
                Err(Errno::FAULT) => value = -i64::from(Errno::FAULT.raw_os_error()),
                Err(errno) => return Err(errno),
            }
        }
        if self.polled.has_a_mask() {
            stopped.restore_signal_mask()?;
        }
        stopped.end(&self.call, value)
    }
}

/// State `S` in `/proc/PID/task/THREAD/stat`: interruptible, neither stopped nor traced.
fn sleeps(process: i32, thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// In which function of the kernel it sleeps: a call that has begun again after an interruption has another
/// number, whichever it was.
fn is_in_poll(process: i32, thread: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/task/{thread}/wchan")).is_ok_and(|name| name.contains("poll"))
}

/// The number of descriptors that a process has room for: select() looks at no others.
fn descriptors_of(process: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let room = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    room.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}
