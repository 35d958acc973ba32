//! The program's life: its signals, its end, and its orphans.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tracing::{info, warn};
use truepeer_sys::process::SignalFd;

use super::guard::{Ending, Guard, SIGCHLD, children, end_family};

/// These signals are passed on to the program, except SIGCHLD, which reports its end: HUP, INT, QUIT, USR1,
/// USR2, TERM, CHLD, WINCH.
pub(super) const SIGNALS: [i32; 8] = [1, 2, 3, 10, 12, 15, SIGCHLD, 28];

/// A signal that the guard got is the same one that this process got within this time before.
const SAME: Duration = Duration::from_secs(1);

/// The program and its orphans. Orphans become this process's children (PR_SET_CHILD_SUBREAPER): it must wait
/// for them, and where Yama lets a process inspect only its descendants, it still can.
#[derive(Debug)]
pub(super) struct Life {
    program: Pid,
    signals: SignalFd,
    guard: Guard,
    ending: Option<Ending>,
    /// Signals that others than the guard sent to this process, and when.
    own: HashMap<i32, Instant>,
}

impl AsFd for Life {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Life {
    pub(super) fn of(child: &Child, signals: SignalFd, guard: Guard) -> Self {
        Self { program: Pid::from_child(child), signals, guard, ending: None, own: HashMap::new() }
    }

    /// Readable: call [`Self::on_guard`].
    pub(super) fn guard(&self) -> BorrowedFd<'_> {
        self.guard.as_fd()
    }

    /// Passes the guard's signals on. Returns the ending if the guard has ended: nobody would notice this
    /// process's own end.
    pub(super) fn on_guard(&mut self) -> Option<Ending> {
        // The same signal may have come for this process, too.
        if let Some(ending) = self.turn() {
            return Some(ending);
        }
        loop {
            match self.guard.told() {
                // A service manager sends a signal to all processes, so the program has it already.
                Ok(signal) => {
                    if self.own.remove(&signal).is_none_or(|got| got.elapsed() > SAME) {
                        self.pass_on(signal);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Err(_) => {
                    end_family();
                    return Some(Ending::Killed(Signal::KILL.as_raw()));
                }
            }
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.program.as_raw_nonzero().get()
    }

    pub(super) fn kill(&self) {
        let _ = kill_process(self.program, Signal::KILL);
    }

    /// Passes signals on and reaps children. Returns the program's ending once nothing is left to supervise.
    pub(super) fn turn(&mut self) -> Option<Ending> {
        let mut of_children = false;
        while let Some(caught) = self.signals.next() {
            match caught.signal {
                SIGCHLD => of_children = true,
                // The guard passes on the signals that it gets. Any sender here addressed the whole process
                // group (a terminal) or the whole service, so the program has the signal
                // already.
                signal if !caught.from_kernel => {
                    self.own.insert(signal, Instant::now());
                }
                _ => {}
            }
        }
        if of_children { self.collect() } else { None }
    }

    fn pass_on(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if self.ending.is_none() {
            let _ = kill_process(self.program, signal);
        } else {
            signal_all(&children(), signal);
        }
    }

    fn collect(&mut self) -> Option<Ending> {
        loop {
            match wait(WaitOptions::NOHANG) {
                // A stop is the ringer's: it traces the program for a moment.
                Ok(Some((pid, status))) if pid == self.program && !status.stopped() => {
                    self.ending = Some(Ending::of(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return self.on_others_alive(),
                Err(_) => return self.ending,
            }
        }
    }

    /// A program that ended with success has gone to the background, so its children are served further. A
    /// program that failed is reported at once, and its remaining processes get SIGTERM: nobody will answer
    /// their calls.
    fn on_others_alive(&mut self) -> Option<Ending> {
        match self.ending? {
            Ending::Exited(0) => {
                info!(
                    "the program has gone to the background; its {} processes are still served",
                    children().len()
                );
                None
            }
            ending => {
                let left = children();
                warn!("the program failed; terminating the {} processes that it left behind", left.len());
                signal_all(&left, Signal::TERM);
                Some(ending)
            }
        }
    }
}

/// A process that has ended meanwhile needs no signal.
fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}
