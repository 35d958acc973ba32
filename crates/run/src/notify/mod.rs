//! `truepeer run` by notification: a supervisor answers the program's `accept`. It serves programs that load
//! no library (static ones: Go, musl) and whole process trees.
//!
//! ```text
//! truepeer ─▶ feasible::check ─▶ Command::start(filter) ─▶ the program, its threads, its children
//!    │                                                      │ accept4()
//!    ▼                                                      ▼ (waits in the kernel)
//! Supervisor::run, one thread, never blocks ◀── notification
//!    ├ calls      which call, on which socket: Listeners, or "go on"
//!    ├ accepting  the next connection whose client is known ─▶ handing_over: descriptor, address, answer
//!    ├ Late       connections whose header has not come yet
//!    ├ Ready      those whose header came late ─▶ Ringer: wakes the program, however it waits
//!    │                 Kin: the library's processes, if it asks
//!    ├ Parked     accept() of blocking listeners, checked for signals
//!    ├ Siblings   listeners that no other thread serves
//!    ├ Names      who the client of an open connection is: getpeername()
//!    └ Life       signals to the program, its end and status; guard: neither ends without the other;
//!                 service_manager: what the program tells it comes from the guard
//! ```
//! A program that changes its memory while its call is being answered can only harm itself. Descriptors and
//! flags come in registers. Of the program's memory the supervisor reads a length and writes an address, both
//! with the rights of the program's own call.

mod accepting;
pub(super) mod beside;
mod caller;
mod callers;
mod feasible;
mod guard;
mod handing_over;
mod interrupt;
mod journal;
mod kin;
mod life;
mod listener;
mod parked;
mod pollers;
mod ready;
mod relation;
mod ringer;
mod service_manager;
mod siblings;
mod supervisor;
mod telling;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use rustix::io::Errno;
use truepeer_handover::{ConnectSettings, Destination, Names, RunSettings};
use truepeer_session::Advise;
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::limits;
use truepeer_sys::process::{SignalFd, SpawnCommand};
use truepeer_sys::seccomp::{Filter, ForeignCalls, Notifier, SeccompAction, calls};

use super::program::{NotStarted, Program};
use feasible::Infeasible;
use guard::Side;
use life::Life;
use relation::Relation;
use service_manager::NotifyRelay;
use supervisor::Supervisor;
use telling::Telling;

/// Starts a program that accepts connections under a supervisor, and ends as the program ends.
///
/// # Errors
/// Whatever keeps it from being started or supervised, with what to use instead.
pub(super) fn run(
    settings: &RunSettings,
    program: &Program,
    advise: Advise,
    log: &dyn Fn(),
) -> Result<ExitCode> {
    let started = start(program, log, accepting_calls(settings.destination, false))?;
    let (notifier, life) = match started {
        Started::Supervised(notifier, life) => (notifier, life),
        Started::Ended(status) => return Ok(status),
    };
    // Raise the limits after the start: the program keeps those that were given.
    let open_files = limits::raise_open_files().unwrap_or_else(|_| limits::open_files());
    let (names, _) = Names::create()?;
    let relation = Relation::Parent(*life);
    Ok(Supervisor::new(settings, notifier, relation, names, open_files, advise)?.run()?.follow())
}

/// Starts a program that makes connections under a supervisor, and ends as the program ends.
///
/// # Errors
/// As [`run`].
pub(super) fn connect(sending: &ConnectSettings, program: &Program, log: &dyn Fn()) -> Result<ExitCode> {
    let (notifier, life) = match start(program, log, connecting_calls(false))? {
        Started::Supervised(notifier, life) => (notifier, life),
        Started::Ended(status) => return Ok(status),
    };
    let _ = limits::raise_open_files();
    Ok(Telling::new(sending, notifier, Relation::Parent(*life))?.run()?.follow())
}

/// Variables of a service manager that name this process, and have to name the program.
const NUMBERED: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];

/// The result of a start: a supervisor or, in the guard's process, the final status.
enum Started {
    Supervised(Notifier, Box<Life>),
    Ended(ExitCode),
}

fn start(program: &Program, log: &dyn Fn(), filter: Filter) -> Result<Started> {
    feasible::check(program)?;
    log();
    // Catch signals before the program starts: those that come meanwhile are meant for it.
    let signals = SignalFd::open(&life::SIGNALS)?;
    let mut passed = PassedSockets::take()?;
    let command = SpawnCommand::new(&program.file, program.words.clone())?.with_signals_of(&signals);
    let mut command = command.with_own_number_in(&NUMBERED);
    let relay = NotifyRelay::open();
    if let Some(relay) = &relay {
        command = command.with_variable(service_manager::VARIABLE, &relay.variable());
    }
    let guard = match guard::stand(&signals, &mut passed, relay)? {
        Side::Supervisor(guard) => guard,
        Side::Guard(status) => return Ok(Started::Ended(status)),
    };
    let started = command.start(filter);
    let supervised = started.map_err(|error| match (error.call, error.errno) {
        ("start", Errno::BUSY) => Infeasible::Supervised.instead(program),
        _ => anyhow::Error::new(error).context(NotStarted::NotExecutable(program.file.display().to_string())),
    })?;
    // Close our copies: while the supervisor holds them, too, the program can't close its sockets.
    drop(passed);
    let life = Box::new(Life::of(&supervised.child, signals, guard));
    feasible::check_reach(life.pid(), program).inspect_err(|_| life.kill())?;
    Ok(Started::Supervised(supervised.notifier, life))
}

/// Calls through io_uring bypass the supervisor. Without io_uring, programs use epoll.
fn without_io_uring(foreign: ForeignCalls) -> Filter {
    with_io_uring(foreign, SeccompAction::Fail(Errno::NOSYS))
}

/// `setup` is the answer to a program that asks for a ring. An inherited ring can't be used. The supervisor
/// refuses `foreign` calls, and says so.
fn with_io_uring(foreign: ForeignCalls, setup: SeccompAction) -> Filter {
    let inherited = SeccompAction::Fail(Errno::NOSYS);
    Filter::with_foreign(foreign, SeccompAction::Ask)
        .rule(calls::IO_URING_SETUP, setup)
        .rule(calls::IO_URING_ENTER, inherited)
        .rule(calls::IO_URING_REGISTER, inherited)
}

/// `beside` the library: without its marked calls.
fn accepting_calls(destination: Destination, beside: bool) -> Filter {
    // Beside the library it is a surprise, so the supervisor says so.
    let start = match beside {
        true => with_io_uring(ForeignCalls::ACCEPTING, SeccompAction::Ask),
        false => without_io_uring(ForeignCalls::ACCEPTING),
    };
    let asked = [calls::ACCEPT4, calls::ACCEPT, calls::GETPEERNAME, calls::LISTEN, calls::GETSOCKNAME];
    let count = if destination == Destination::Header { asked.len() } else { asked.len() - 1 };
    asked[..count].iter().fold(start, |filter, &call| match beside {
        true => filter.rule_unless_marked(call, 0, SeccompAction::Ask),
        false => filter.rule(call, SeccompAction::Ask),
    })
}

/// MSG_FASTOPEN fails with EOPNOTSUPP: the program then calls connect() first. `beside`: the library is in
/// the program, and its marked calls pass.
fn connecting_calls(beside: bool) -> Filter {
    const MSG_FASTOPEN: u32 = 0x2000_0000;
    let refused = SeccompAction::Fail(Errno::OPNOTSUPP);
    match beside {
        true => with_io_uring(ForeignCalls::CONNECTING, SeccompAction::Ask)
            .rule_unless_marked(calls::CONNECT, 0, SeccompAction::Ask)
            .rule_if_set_unless_marked(calls::SENDTO, 0, (3, MSG_FASTOPEN), refused)
            .rule_if_set(calls::SENDMSG, 2, MSG_FASTOPEN, refused),
        false => without_io_uring(ForeignCalls::CONNECTING)
            .rule(calls::CONNECT, SeccompAction::Ask)
            .rule_if_set(calls::SENDTO, 3, MSG_FASTOPEN, refused)
            .rule_if_set(calls::SENDMSG, 2, MSG_FASTOPEN, refused),
    }
}
