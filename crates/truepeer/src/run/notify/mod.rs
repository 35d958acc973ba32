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
//!    ├ Parked     accept() of blocking listeners, with an eye on signals, and on Siblings: listeners that nobody else serves
//!    ├ Names      who the client of an open connection is: getpeername()
//!    └ Life       signals to the program, its end and status to us; guard: neither ends without the other
//! ```
//! What a program does with memory while its call is being answered can only harm itself: descriptors and flags come in
//! registers; of its memory the supervisor reads a length and writes an address, with the rights of the program's own call.

mod accepting;
mod caller;
mod datagrams;
mod feasible;
mod guard;
mod handing_over;
mod interrupt;
mod journal;
mod life;
mod listener;
mod message;
mod parked;
mod reach;
mod ready;
mod receiving;
mod ringer;
mod siblings;
mod supervisor;
mod telling;
mod watch;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use truepeer_handover::{ConnectSettings, Destination, RunSettings};
use truepeer_policy::Dialect;
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::limits;
use truepeer_sys::process::{SignalDoor, SpawnCommand};
use truepeer_sys::seccomp::{Filter, Notifier, SeccompAction, calls};

use super::program::{NotStarted, Program};
use crate::log;
use crate::plan::LogConfig;
use crate::spec::Verbosity;
use guard::Side;
use life::Life;
use supervisor::Supervisor;
use telling::Telling;

/// Starts a program that accepts connections, under a supervisor; ends as it ends.
///
/// # Errors
/// Whatever keeps it from being started or supervised, with what to use instead.
pub(super) fn run(settings: &RunSettings, program: &Program) -> Result<ExitCode> {
    let started = start(program, settings.verbose, accepting_calls(settings.destination))?;
    let (notifier, life) = match started {
        Started::Supervised(notifier, life) => (notifier, life),
        Started::Ended(status) => return Ok(status),
    };
    // After the program, which keeps the limits that we were given.
    let open_files = limits::raise_open_files().unwrap_or_else(|_| limits::open_files());
    Ok(Supervisor::new(settings, notifier, life, open_files)?.run()?.follow())
}

/// Starts a program that makes connections, under a supervisor; ends as it ends.
///
/// # Errors
/// As [`run`].
pub(super) fn connect(sending: &ConnectSettings, program: &Program) -> Result<ExitCode> {
    let (notifier, life) = match start(program, sending.verbose, connecting_calls(sending))? {
        Started::Supervised(notifier, life) => (notifier, life),
        Started::Ended(status) => return Ok(status),
    };
    let _ = limits::raise_open_files();
    Ok(Telling::new(sending, notifier, life)?.run()?.follow())
}

/// Where a start has led: to the supervisor, or, in the guard's process, to the end of all.
enum Started {
    Supervised(Notifier, Life),
    Ended(ExitCode),
}

fn start(program: &Program, verbose: bool, filter: Filter) -> Result<Started> {
    feasible::check(program)?;
    log::init(log_config(verbose));
    // Before the program: signals that come meanwhile are for it.
    let signals = SignalDoor::open(&life::SIGNALS)?;
    let mut passed = PassedSockets::take()?;
    let guard = match guard::stand(&signals, &mut passed)? {
        Side::Supervisor(guard) => guard,
        Side::Guard(status) => return Ok(Started::Ended(status)),
    };
    let command = SpawnCommand::new(&program.file, program.words.clone())?.with_signals_of(&signals);
    let started = command.with_passed_sockets(passed.count()).start(filter);
    let supervised =
        started.with_context(|| NotStarted::NotExecutable(program.file.display().to_string()))?;
    // They are the program's now; while we had them, too, it could not close them.
    drop(passed);
    let life = Life::of(&supervised.child, signals, guard);
    feasible::check_reach(life.pid()).inspect_err(|_| life.kill())?;
    Ok(Started::Supervised(supervised.notifier, life))
}

/// In the program's own standard error: nothing but what an operator should know, unless asked for.
fn log_config(verbose: bool) -> LogConfig {
    LogConfig {
        verbosity: if verbose { Verbosity::States } else { Verbosity::Quiet },
        ..LogConfig::default()
    }
}

/// io_uring would make calls past us: without it, programs use epoll.
fn without_io_uring() -> Filter {
    Filter::default().rule(calls::IO_URING_SETUP, SeccompAction::Fail(Errno::NOSYS))
}

fn accepting_calls(destination: Destination) -> Filter {
    let filter = without_io_uring()
        .rule(calls::ACCEPT4, SeccompAction::Ask)
        .rule(calls::ACCEPT, SeccompAction::Ask)
        .rule(calls::GETPEERNAME, SeccompAction::Ask)
        .rule(calls::LISTEN, SeccompAction::Ask);
    match destination {
        Destination::Socket => filter,
        Destination::Header => filter.rule(calls::GETSOCKNAME, SeccompAction::Ask),
    }
}

/// Answers carry the header back.
fn with_receiving_calls(filter: Filter) -> Filter {
    let calls = [calls::RECVFROM, calls::RECVMSG, calls::RECVMMSG, calls::READ, calls::READV];
    calls.into_iter().fold(filter, |filter, call| filter.rule(call, SeccompAction::Ask))
}

/// A program that connects by sending (MSG_FASTOPEN) is told that this is not to be had, and connects first.
fn connecting_calls(sending: &ConnectSettings) -> Filter {
    const MSG_FASTOPEN: u32 = 0x2000_0000;
    const LONGEST_DATAGRAM: u32 = 65_535;
    const SOL_UDP: u32 = 17;
    // What makes one call several datagrams, or several calls one: as kernels that lack it.
    const UDP_CORK_SEGMENT_GRO: [u32; 3] = [1, 103, 104];
    let not_to_be_had = SeccompAction::Fail(Errno::OPNOTSUPP);
    let filter = without_io_uring().rule(calls::CONNECT, SeccompAction::Ask);
    if let Some(dialect) = sending.datagrams {
        let filter = if dialect == Dialect::Spp { with_receiving_calls(filter) } else { filter };
        // By sendmsg() the notifier itself comes to us.
        return filter
            .rule(calls::SENDTO, SeccompAction::Ask)
            .rule(calls::SENDMMSG, SeccompAction::Ask)
            .rule(calls::WRITEV, SeccompAction::Ask)
            .rule_up_to(calls::WRITE, 2, LONGEST_DATAGRAM, SeccompAction::Ask)
            .rule_for_options(SOL_UDP, &UDP_CORK_SEGMENT_GRO, SeccompAction::Fail(Errno::NOPROTOOPT))
            .rule_unless_marked(calls::SENDMSG, 2, SeccompAction::Ask);
    }
    filter.rule_if_set(calls::SENDTO, 3, MSG_FASTOPEN, not_to_be_had).rule_if_set(
        calls::SENDMSG,
        2,
        MSG_FASTOPEN,
        not_to_be_had,
    )
}
