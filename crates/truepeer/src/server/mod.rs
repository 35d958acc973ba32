//! Runs a plan: limits, sockets, routes, the engines, and signals until the end.

mod apply;
mod holder;
mod rules;
mod signals;
mod sockets;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use tracing::{error, info, warn};
use truepeer_session::counters::Counter;
use truepeer_session::{Advise, Journal};
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::limits;

use self::apply::Engines;
use self::signals::{Event, Events};
use crate::plan::{Change, Checked, Config, setup_of};
use crate::routes::guard::RoutesGuard;
use crate::routes::plan::Setup;

/// Serves until SIGTERM or SIGINT. Open sessions may then continue for a while; a second signal ends them at
/// once. SIGUSR1 logs the counters, SIGHUP reads files again. `advise` puts the engines' hints into words.
///
/// # Errors
/// The reason why it can't serve. Once it serves, no sender, client or backend can end it. A worker that ends
/// unexpectedly does, because the others would serve only a part of the connections.
pub(crate) fn run(config: &Config, checked: &Checked, advise: Advise) -> anyhow::Result<()> {
    // First: inherited descriptors have fixed numbers, which nothing else may have taken.
    let mut inherited = PassedSockets::take()?.into_listening();
    // Before the threads start: a signal that arrives meanwhile must not be lost.
    let mut events = Events::hear(&[SIGTERM, SIGINT, SIGUSR1, SIGHUP]).context("can't wait for signals")?;
    sockets::check_privilege(config)?;
    // Declared before the engines and so dropped after them: replies need the routes until the last session has
    // ended.
    let mut routes = Routes::default();
    let mark = routes.establish(config, checked)?;
    let open_files = limits::raise_open_files().unwrap_or_else(|error| {
        warn!("{error}: going on with the limit of open files as it is");
        limits::open_files()
    });
    let workers = config.workers.map_or_else(cores, std::num::NonZeroUsize::get);
    let budgets = rules::budgets(config, usize::try_from(open_files).unwrap_or(usize::MAX));
    let mut engines = Engines::new(workers, budgets, Journal::with_advice(advise), events.bell());
    engines.apply(&checked.listeners, mark, &mut inherited)?;
    sockets::warn_of_unasked(&inherited);
    drop(inherited);
    let mut draining_until = None;
    loop {
        match events.next(draining_until)? {
            Event::Signal(SIGUSR1) => report(&engines),
            Event::Signal(SIGHUP) if draining_until.is_some() => {
                info!("not reloaded: truepeer is about to end")
            }
            Event::Signal(SIGHUP) => reload(config, &mut engines, &mut routes),
            Event::Signal(_) if draining_until.is_none() && !config.drain.is_zero() => {
                drain(&mut engines, config.drain);
                draining_until = Some(Instant::now() + config.drain);
            }
            Event::Bell if !engines.have_ended()? => {}
            Event::Signal(_) | Event::Timeout | Event::Bell => break,
        }
    }
    info!("stopping with {}", open(&engines));
    Ok(())
}

/// The rules and routes of all plans so far: open sessions may still need those of an earlier one.
#[derive(Default)]
struct Routes {
    guards: Vec<(Setup, RoutesGuard)>,
}

impl Routes {
    /// Adds the rules that this plan needs and no earlier one did. Returns the mark for upstream connections.
    fn establish(&mut self, config: &Config, checked: &Checked) -> anyhow::Result<Option<u32>> {
        let setup = setup_of(config, checked).setup()?;
        let known = self.guards.iter().position(|(known, _)| *known == setup);
        let place = match known {
            Some(place) => place,
            None => {
                let guard = RoutesGuard::establish(config.routes.mode, &setup)?;
                self.guards.push((setup, guard));
                self.guards.len() - 1
            }
        };
        Ok(self.guards[place].1.upstream_mark())
    }
}

/// Reads every file and resolves every name again. On an error, everything stays as it was.
fn reload(config: &Config, engines: &mut Engines, routes: &mut Routes) {
    match try_reload(config, engines, routes) {
        Ok(changes) if changes.is_empty() => info!("reloaded: nothing has changed"),
        Ok(changes) => changes.iter().for_each(say),
        Err(problem) => error!("not reloaded, everything stays as it was: {problem:#}"),
    }
}

fn try_reload(config: &Config, engines: &mut Engines, routes: &mut Routes) -> anyhow::Result<Vec<Change>> {
    let checked = config.check()?;
    let mark = routes.establish(config, &checked)?;
    let changes = engines.apply(&checked.listeners, mark, &mut Vec::new())?;
    for warning in checked.warnings() {
        warn!("{warning}");
    }
    Ok(changes)
}

fn say(change: &Change) {
    match change {
        Change::Open(listener) => info!("reloaded: listener {} was opened", listener.key),
        Change::Close(listener) => {
            info!("reloaded: listener {} was closed; its open sessions go on", listener.key);
        }
        Change::SetRules(listener, parts) => {
            let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
            info!("reloaded: new sessions of listener {} have new {}", listener.key, parts.join(", "));
        }
    }
}

fn drain(engines: &mut Engines, limit: Duration) {
    engines.drain();
    info!(
        "stopping: nothing new is taken, {} may go on for {} s; a second signal ends them at once",
        open(engines),
        limit.as_secs_f32()
    );
}

fn report(engines: &Engines) {
    let counters = &engines.journal.counters;
    let totals: Vec<_> = Counter::ALL
        .iter()
        .map(|&counter| format!("{}={}", counter.name(), counters.total(counter)))
        .collect();
    let refusals: Vec<_> =
        counters.refusals().iter().map(|(reason, count)| format!("{reason}={count}")).collect();
    let sessions = engines.budgets.sessions.used();
    info!(sessions, refusals = refusals.join(" "), "counters: {}", totals.join(" "));
}

/// Describes what is open.
fn open(engines: &Engines) -> String {
    let (sessions, flows) = (engines.budgets.sessions.used(), engines.budgets.flows.used());
    match flows {
        0 => format!("{sessions} sessions open"),
        flows => format!("{sessions} sessions and {flows} flows open"),
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
