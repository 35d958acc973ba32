//! Runs a plan: limits, sockets, routes, the engines, attachments, and signals until the end.

mod apply;
mod attachments;
mod holder;
mod process;
mod routes;
mod rules;
mod signals;
mod sockets;

use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use tracing::{error, info, warn};
use truepeer_session::Advise;
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::limits;

use self::process::Process;
use self::signals::{Event, Events};
use crate::file::{Loaded, Source};

/// Serves until SIGTERM or SIGINT. Open sessions may then continue for a while; a second signal ends them at
/// once. SIGUSR1 logs the counters, SIGHUP loads `source` again. `advise` puts the engines' hints into words.
///
/// # Errors
/// The reason why it can't serve. Once it serves, no sender, client or backend can end it. A worker that ends
/// unexpectedly does, because the others would serve only a part of the connections.
pub(crate) fn run(source: &Source, loaded: Loaded, advise: Advise) -> anyhow::Result<()> {
    // First: inherited descriptors have fixed numbers, which nothing else may have taken.
    let mut inherited = PassedSockets::take()?.into_listening();
    // Before the threads start: a signal that arrives meanwhile must not be lost.
    let mut events = Events::hear(&[SIGTERM, SIGINT, SIGUSR1, SIGHUP]).context("can't wait for signals")?;
    let open_files = limits::raise_open_files().unwrap_or_else(|error| {
        warn!("{error}: going on with the limit of open files as it is");
        limits::open_files()
    });
    let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
    let mut process = Process::new(&loaded.process, open_files, advise, &events.bell());
    process.apply(&loaded, &mut inherited)?;
    drop(loaded);
    sockets::warn_of_unasked(&inherited);
    drop(inherited);
    let mut draining_until = None;
    loop {
        match events.next(draining_until)? {
            Event::Signal(SIGUSR1) => process.report(),
            Event::Signal(SIGHUP) if draining_until.is_some() => {
                info!("not reloaded: truepeer is about to end");
            }
            Event::Signal(SIGHUP) => reload(source, &mut process),
            Event::Signal(_) if draining_until.is_none() && !process.config.drain.is_zero() => {
                drain(&mut process);
                draining_until = Some(Instant::now() + process.config.drain);
            }
            Event::Bell => {}
            Event::Signal(_) | Event::Timeout => break,
        }
        if process.have_ended()? && draining_until.is_some() {
            break;
        }
    }
    info!("stopping with {}", process.open());
    Ok(())
}

/// Reads every file and resolves every name again. On an error, everything stays as it was.
fn reload(source: &Source, process: &mut Process) {
    match try_reload(source, process) {
        Ok(changes) if changes.is_empty() => info!("reloaded: nothing has changed"),
        Ok(changes) => changes.iter().for_each(|change| info!("reloaded: {change}")),
        Err(problem) => error!("not reloaded, everything stays as it was: {problem:#}"),
    }
}

fn try_reload(source: &Source, process: &mut Process) -> anyhow::Result<Vec<String>> {
    let loaded = source.load()?;
    let changes = process.apply(&loaded, &mut Vec::new())?;
    for warning in loaded.warnings(source) {
        warn!("{warning}");
    }
    Ok(changes)
}

fn drain(process: &mut Process) {
    process.drain();
    info!(
        "stopping: nothing new is taken, {} may go on for {} s; a second signal ends them at once",
        process.open(),
        process.config.drain.as_secs_f32()
    );
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
