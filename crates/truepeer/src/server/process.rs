//! Everything that one process runs: the listeners and attachments of all entries, and the rules that they need.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::{error, warn};
use truepeer_session::counters::Counter;
use truepeer_session::{Advise, Journal};

use super::apply::{Engines, Marks};
use super::attachments::{AttachChange, Attachments};
use super::routes::Routes;
use super::signals::Bell;
use super::{rules, sockets};
use crate::file::Loaded;
use crate::log;
use crate::plan::{Change, CheckedAttach, CheckedEntry, CheckedListener, ProcessConfig};

/// A running process. Dropping it ends everything at once.
pub(super) struct Process {
    pub(super) engines: Engines,
    attachments: Attachments,
    /// Dropped after the engines: replies need the rules until the last session has ended.
    routes: Routes,
    pub(super) config: ProcessConfig,
    open_files: usize,
}

/// The parts of a plan, of all entries together.
#[derive(Default)]
struct Wanted<'a> {
    listeners: Vec<Arc<CheckedListener>>,
    marks: Marks,
    attachments: Vec<&'a CheckedAttach>,
}

impl Process {
    /// Nothing runs yet: [`Self::apply`] starts it.
    pub(super) fn new(config: &ProcessConfig, open_files: usize, advise: Advise, bell: &Bell) -> Self {
        let workers = config.workers.map_or_else(super::cores, std::num::NonZeroUsize::get);
        let budgets = rules::budgets(&[], config.max_flows, open_files);
        let journal = Journal::with_advice(advise);
        Self {
            engines: Engines::new(workers, budgets, journal, bell.clone()),
            attachments: Attachments::new(bell.clone()),
            routes: Routes::default(),
            config: config.clone(),
            open_files,
        }
    }

    /// Applies the difference between what runs and `loaded`, and describes it: a line for each change.
    ///
    /// # Errors
    /// A change that is not possible. Everything is then as it was.
    pub(super) fn apply(
        &mut self,
        loaded: &Loaded,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Vec<String>> {
        let wanted = self.wanted(loaded)?;
        let (before, before_config) = (self.engines.running().to_vec(), self.config.clone());
        self.set_limits(&loaded.process, &wanted.listeners);
        let applied = self.engines.apply(&wanted.listeners, &wanted.marks, inherited).and_then(|changes| {
            let attached = self.attachments.apply(&wanted.attachments).inspect_err(|_| {
                let back = self.engines.apply(&before, &wanted.marks, &mut Vec::new());
                if let Err(failure) = back {
                    error!("can't take the changes back: {failure:#}");
                }
            })?;
            Ok((changes, attached))
        });
        let (changes, attached) = match applied {
            Ok(applied) => applied,
            Err(failure) => {
                self.set_limits(&before_config, &before);
                return Err(failure);
            }
        };
        let mut said: Vec<String> = changes.iter().map(describe).collect();
        said.extend(attached.iter().map(describe_attach));
        said.extend(self.settings(&loaded.process));
        Ok(said)
    }

    /// Adds the rules that the plan needs.
    fn wanted<'a>(&mut self, loaded: &'a Loaded) -> anyhow::Result<Wanted<'a>> {
        let mut wanted = Wanted::default();
        for entry in &loaded.checked.entries {
            match entry {
                CheckedEntry::Relay { config, checked, .. } => {
                    sockets::check_privilege(&checked.listeners)?;
                    let mark = self.routes.establish(config, checked)?;
                    for listener in &checked.listeners {
                        wanted.marks.set(listener, mark);
                        wanted.listeners.push(Arc::clone(listener));
                    }
                }
                CheckedEntry::Attach(attach) => wanted.attachments.push(attach),
            }
        }
        Ok(wanted)
    }

    fn set_limits(&self, config: &ProcessConfig, listeners: &[Arc<CheckedListener>]) {
        let budgets = rules::budgets(listeners, config.max_flows, self.open_files);
        self.engines.budgets.set_limits(&budgets);
    }

    /// Applies the settings of the whole process, and names those that have to wait.
    fn settings(&mut self, new: &ProcessConfig) -> Vec<String> {
        let old = std::mem::replace(&mut self.config, new.clone());
        let mut said = Vec::new();
        if old.log.verbosity != new.log.verbosity {
            log::set_verbosity(new.log.verbosity);
            said.push("the log level has changed".to_owned());
        }
        if old.drain != new.drain {
            said.push(format!("the drain timeout is {} s", new.drain.as_secs_f32()));
        }
        for (name, has_changed) in [
            ("workers", old.workers != new.workers),
            ("the log format", old.log.format != new.log.format),
            ("the admin sockets", old.admin != new.admin),
        ] {
            if has_changed {
                warn!("{name}: the change takes effect when truepeer is started again");
                said.push(format!("{name}: the change takes effect when truepeer is started again"));
            }
        }
        said
    }

    /// Takes nothing new. The bell rings when the last session of an engine has ended.
    pub(super) fn drain(&mut self) {
        self.engines.drain();
        self.attachments.drain();
    }

    /// Whether everything has ended after a drain.
    ///
    /// # Errors
    /// A worker has ended unexpectedly.
    pub(super) fn have_ended(&self) -> anyhow::Result<bool> {
        Ok(self.engines.have_ended()? && self.attachments.have_ended())
    }

    /// Describes what is open.
    pub(super) fn open(&self) -> String {
        let budgets = &self.engines.budgets;
        match (budgets.sessions.used(), budgets.flows.used()) {
            (sessions, 0) => format!("{sessions} sessions open"),
            (sessions, flows) => format!("{sessions} sessions and {flows} flows open"),
        }
    }

    /// Logs the counters.
    pub(super) fn report(&self) {
        let counters = &self.engines.journal.counters;
        let totals: Vec<_> = Counter::ALL
            .iter()
            .map(|&counter| format!("{}={}", counter.name(), counters.total(counter)))
            .collect();
        let refusals: Vec<_> =
            counters.refusals().iter().map(|(reason, count)| format!("{reason}={count}")).collect();
        let sessions = self.engines.budgets.sessions.used();
        tracing::info!(sessions, refusals = refusals.join(" "), "counters: {}", totals.join(" "));
    }
}

fn describe(change: &Change) -> String {
    match change {
        Change::Open(listener) => format!("listener {} was opened", listener.key),
        Change::Close(listener) => format!("listener {} was closed; its open sessions go on", listener.key),
        Change::SetRules(listener, parts) => {
            let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
            format!("new sessions of listener {} have new {}", listener.key, parts.join(", "))
        }
    }
}

fn describe_attach(change: &AttachChange) -> String {
    match change {
        AttachChange::Attached(key) => format!("{} was attached", key.pins.display()),
        AttachChange::NewRules(key) => format!("{} has new rules", key.pins.display()),
        AttachChange::Leaving(key) => {
            format!("{} checks no new connections, and is detached with its last one", key.pins.display())
        }
    }
}
