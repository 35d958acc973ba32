//! `truepeer run` and `truepeer connect`: start a program with a library or a supervisor between it and the
//! kernel.
//!
//! ```text
//! words ─▶ Program::find (PATH, #!, ELF) ─▶ choose ──┬── preload: the library, told by the environment; exec
//!                                                    └── notify: a supervisor; fork, seccomp, exec
//! ```
#![forbid(unsafe_code)]

mod bans;
mod choice;
mod library;
mod notify;
mod preload;
mod program;

use std::process::ExitCode;

use anyhow::Result;
use truepeer_session::Advise;

pub use bans::end_open;
use choice::Mechanism;
use notify::beside::{Alone, Beside};
pub use program::{Kind, Program};
use truepeer_config::plan::{LogConfig, connect_settings, note_of_run_sender, run_settings};
use truepeer_config::spec::{ConnectArgs, HowArgs, RunArgs, Verbosity};
use truepeer_sys::tell;

pub use program::NotStarted;

/// Each process of a family with the library has this memory, and so has a supervisor, as its `/proc` says.
const NAMES: &str = "/memfd:truepeer-names (deleted)";

/// Starts a program that accepts connections, and returns its status. `advise` puts hints into words, `log`
/// sets up logging.
///
/// # Errors
/// The reason why it can't be started: [`NotStarted`] is among the causes if the program is at fault.
pub fn run(args: &RunArgs, advise: Advise, log: fn(LogConfig)) -> Result<ExitCode> {
    if let Some(dir) = &args.how.unpack {
        return preload::install(dir).map(|()| ExitCode::SUCCESS);
    }
    let (settings, warnings) = run_settings(args)?;
    for warning in warnings {
        tell!("warning: {warning}");
    }
    if let Some(note) = note_of_run_sender(args) {
        tell!("note: {note}");
    }
    let log = || log(log_config(settings.verbose));
    match prepare(&args.how)? {
        (Mechanism::Preload, program) => preload::run(&settings, &program, None),
        (Mechanism::Both, program) => {
            preload::run(&settings, &program, warned(notify::beside::run(&settings, advise, &log)?))
        }
        (Mechanism::Notify, program) => notify::run(&settings, &program, advise, &log),
    }
}

/// Starts a program that makes connections, and returns its status. `log` sets up logging.
///
/// # Errors
/// As [`run`].
pub fn connect(args: &ConnectArgs, log: fn(LogConfig)) -> Result<ExitCode> {
    if let Some(dir) = &args.how.unpack {
        return preload::install(dir).map(|()| ExitCode::SUCCESS);
    }
    let sending = connect_settings(args)?;
    let log = || log(log_config(sending.verbose));
    match prepare(&args.how)? {
        (Mechanism::Preload, program) => preload::connect(&sending, &program, None),
        (Mechanism::Both, program) => {
            preload::connect(&sending, &program, warned(notify::beside::connect(&sending, &log)?))
        }
        (Mechanism::Notify, program) => notify::connect(&sending, &program, &log),
    }
}

/// Logs go to the program's standard error, so only warnings and errors are logged by default.
fn log_config(verbose: bool) -> LogConfig {
    LogConfig {
        verbosity: if verbose { Verbosity::States } else { Verbosity::Quiet },
        ..LogConfig::default()
    }
}

fn warned(beside: std::result::Result<Beside, Alone>) -> Option<Beside> {
    beside.inspect_err(|alone| tell!("truepeer: warning: {alone}")).ok()
}

fn prepare(how: &HowArgs) -> Result<(Mechanism, Program)> {
    let program = Program::find(&how.command)?;
    let mechanism = choice::choose(how.via.unwrap_or_default(), &program)?;
    if how.verbose {
        tell!("truepeer: {} by {}: {}", program.file.display(), mechanism, program.kind);
    }
    Ok((mechanism, program))
}
