//! `truepeer run` by notification: a supervisor answers the program's `accept`, for programs that no library can be
//! loaded into (static ones: Go, musl), and for whole families of processes.
//!
//! ```text
//! truepeer ─▶ feasible::check ─▶ Command::start(filter) ─▶ the program, its threads, its children
//!    │                                                      │ accept4()
//!    ▼                                                      ▼ (waits in the kernel)
//! Supervisor::run, one thread, waits for nobody ◀── notification
//!    ├ calls      which call, on which socket: Listeners, or "go on"
//!    ├ accepting  the next connection whose client is known ─▶ handing_over: descriptor, address, answer
//!    ├ Late       connections whose header has not come yet
//!    ├ Ready      those whose header came late ─▶ Ringer: wakes the program's epoll
//!    ├ Parked     accept() of blocking listeners, with an eye on signals
//!    ├ Names      who the client of an open connection is: getpeername()
//!    └ Life       signals to the program, its end and status to us
//! ```
//! What a program does with memory while its call is being answered can only harm itself: descriptors and flags come in
//! registers; of its memory the supervisor reads a length and writes an address, with the rights of the program's own call.

mod accepting;
mod caller;
mod feasible;
mod handing_over;
mod interrupt;
mod journal;
mod life;
mod listener;
mod parked;
mod ready;
mod ringer;
mod supervisor;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use truepeer_handover::{Destination, Sending, Settings};
use truepeer_sys::process::{Command, SignalDoor};
use truepeer_sys::seccomp::{Filter, Verdict, calls};
use truepeer_sys::{inherit, limits};

use super::program::Program;
use crate::config::{LogConfig, Verbosity};
use crate::log;
use life::Life;
use supervisor::Supervisor;

/// Starts a program that accepts connections, under a supervisor; ends as it ends.
///
/// # Errors
/// Whatever keeps it from being started or supervised, with what to use instead.
pub(super) fn run(settings: &Settings, program: &Program) -> Result<ExitCode> {
    feasible::check(program)?;
    log::init(log_config(settings.verbose));
    // Before the program: signals that come meanwhile are for it.
    let signals = SignalDoor::open(&life::SIGNALS)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("can't adopt what the program leaves behind")?;
    let command = Command::new(&program.file, program.words.clone())?.with_signals_of(&signals);
    let started = command.start(filter(settings.destination));
    let supervised = started.with_context(|| format!("{} can't be run", program.file.display()))?;
    // They are the program's now; while we had them, too, it could not close them.
    inherit::close_listening_sockets();
    let life = Life::of(&supervised.child, signals);
    feasible::check_reach(life.pid()).inspect_err(|_| life.kill())?;
    // After the program, which keeps the limits that we were given.
    let open_files = limits::raise_open_files().unwrap_or_else(|_| limits::open_files());
    let ending = Supervisor::new(settings, supervised.notifier, life, open_files)?.run()?;
    Ok(ending.follow())
}

/// Starts a program that makes connections, under a supervisor; ends as it ends.
pub(super) fn connect(_sending: &Sending, program: &Program) -> Result<ExitCode> {
    bail!(
        "{} needs the mechanism notify, which this version has for truepeer run only",
        program.file.display()
    )
}

/// In the program's own standard error: nothing but what an operator should know, unless asked for.
fn log_config(verbose: bool) -> LogConfig {
    LogConfig {
        verbosity: if verbose { Verbosity::States } else { Verbosity::Quiet },
        ..LogConfig::default()
    }
}

/// What is asked about. io_uring would accept connections past us: without it, programs use epoll.
fn filter(destination: Destination) -> Filter {
    let no_such_call = Verdict::Fail(Errno::NOSYS);
    let filter = Filter::default()
        .rule(calls::ACCEPT4, Verdict::Ask)
        .rule(calls::ACCEPT, Verdict::Ask)
        .rule(calls::GETPEERNAME, Verdict::Ask)
        .rule(calls::LISTEN, Verdict::Ask)
        .rule(calls::IO_URING_SETUP, no_such_call);
    match destination {
        Destination::Socket => filter,
        Destination::Header => filter.rule(calls::GETSOCKNAME, Verdict::Ask),
    }
}
