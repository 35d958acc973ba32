//! Everything that one process runs: the listeners and attachments of all entries, and the rules that they
//! need.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::warn;
use truepeer_relay::udp::moving::MovingFlow;
use truepeer_session::{Advise, Journal};

use super::apply::{Engines, OpenListener};
use super::attachments::Attachments;
use super::certificates::Certificates;
use super::requests::HandedOver;
use super::routes::Routes;
use super::rules::Marks;
use super::signals::Bell;
use super::splice::Programs;
use super::upgrade::Taking;
use super::{rules, sockets};
use truepeer_cli::file::LoadedConfig;
use truepeer_config::plan::passed;
use truepeer_config::plan::{
    Change, CheckedAttach, CheckedEntry, CheckedListener, Config, EntryConfig, ListenerKey, Part,
    ProcessConfig, join,
};
use truepeer_ops::admin::ListenerView;
use truepeer_ops::log;
use truepeer_privilege::keeper::guard::Hands;

/// A running process. Dropping it ends everything at once.
pub(super) struct Process {
    pub(super) engines: Engines,
    pub(super) attachments: Attachments,
    certificates: Certificates,
    /// Dropped after the engines: replies need the rules until the last session has ended.
    pub(super) routes: Routes,
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
    pub(super) fn new(
        config: &ProcessConfig,
        open_files: usize,
        advise: Advise,
        bell: &Bell,
        programs: Programs,
        hands: Hands,
        attachments: Attachments,
    ) -> Self {
        let workers = config.workers.map_or_else(super::cores, std::num::NonZeroUsize::get);
        let budgets = rules::budgets(&[], config.max_flows, open_files);
        let journal = Journal::with_advice(advise);
        let certificates = Certificates::default();
        let challenges = certificates.challenges();
        Self {
            engines: Engines::new(workers, budgets, journal, bell.clone(), programs, challenges),
            attachments,
            certificates,
            routes: Routes::by(hands),
            config: config.clone(),
            open_files,
        }
    }

    /// Applies the difference between what runs and `loaded`, and describes it: a line for each change.
    ///
    /// # Errors
    /// A change that is not possible. Everything is then as it was, except what [`Engines::missing`] names.
    pub(super) fn apply(
        &mut self,
        loaded: &LoadedConfig,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Vec<String>> {
        let wanted = self.wanted(loaded)?;
        let stale = sockets::take_stale(inherited, &wanted.listeners);
        self.engines.free(&stale);
        self.change(&wanted, &loaded.process, inherited)
    }

    /// Opens the listeners whose sockets the old process doesn't have, before it lets go of the others.
    ///
    /// # Errors
    /// One that can't be opened.
    pub(super) fn apply_new(
        &mut self,
        loaded: &LoadedConfig,
        inherited: &mut Vec<OwnedFd>,
        taking: &Taking,
    ) -> anyhow::Result<()> {
        let mut wanted = self.wanted(loaded)?;
        wanted.listeners.iter().try_for_each(|listener| taking.check_families(listener))?;
        wanted.listeners.retain(|listener| !taking.has(listener));
        wanted.attachments.clear();
        self.attachments.begin_take_over(&taking.attached);
        self.change(&wanted, &loaded.process, inherited).map(drop)
    }

    fn change(
        &mut self,
        wanted: &Wanted<'_>,
        config: &ProcessConfig,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Vec<String>> {
        let (before, before_config) = (self.engines.before(), self.config.clone());
        let before_listeners = before.running.clone();
        self.set_limits(config, &wanted.listeners);
        self.certificates.load(config);
        let applied = self.engines.apply(&wanted.listeners, &wanted.marks, inherited).and_then(|changes| {
            let attached =
                self.attachments.apply(&wanted.attachments, config.log.verbosity).inspect_err(|_| {
                    self.engines.return_to(before);
                })?;
            Ok((changes, attached))
        });
        let (changes, attached) = match applied {
            Ok(applied) => applied,
            Err(failure) => {
                self.set_limits(&before_config, &before_listeners);
                return Err(failure);
            }
        };
        let mut said: Vec<String> = changes.iter().map(describe).collect();
        said.extend(attached);
        self.certificates.apply(config)?;
        said.extend(self.settings(config));
        Ok(said)
    }

    /// Adds the rules that the plan needs.
    fn wanted<'a>(&mut self, loaded: &'a LoadedConfig) -> anyhow::Result<Wanted<'a>> {
        let mut wanted = Wanted::default();
        for entry in &loaded.checked.entries {
            match entry {
                CheckedEntry::Relay { config, checked } => {
                    for listener in &checked.listeners {
                        passed::refuse_unknown(listener.key.address)?;
                    }
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
        wanted.listeners = join(wanted.listeners);
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
        if old.reload_on_change != new.reload_on_change {
            let not = if new.reload_on_change { "" } else { " not" };
            said.push(format!("a change of a file is{not} a reason to reload"));
        }
        for (name, has_changed) in [
            ("workers", old.workers != new.workers),
            ("the log format", old.log.format != new.log.format),
            ("the admin sockets", old.admin != new.admin),
            ("confine and user", old.confine != new.confine),
        ] {
            if has_changed {
                warn!("{name}: the change takes effect when truepeer is started again");
                said.push(format!("{name}: the change takes effect when truepeer is started again"));
            }
        }
        said
    }

    /// The open listeners, and the sites that share one.
    pub(super) fn listeners(&self) -> Vec<ListenerView> {
        let views = |open: OpenListener<'_>| {
            let config = &open.listener.config;
            let view = move |(site, id)| ListenerView {
                id,
                entry: if config.http.is_some() { "https" } else { "proxy" },
                protocol: config.protocol,
                addresses: open.addresses.clone(),
                site,
                is_open: true,
            };
            let sites = open.sites.into_iter().map(|(name, id)| (Some(name), id));
            std::iter::once((None, open.id)).chain(sites).map(view).collect::<Vec<_>>()
        };
        self.engines.listeners().into_iter().flat_map(views).collect()
    }

    /// The listeners that should be open and are not.
    pub(super) fn missing(&self) -> Vec<String> {
        self.engines.missing().iter().map(ToString::to_string).collect()
    }

    /// Begins to move flows to a new process: reads no datagrams from now on.
    pub(super) fn give_flows(&mut self) -> anyhow::Result<Vec<(ListenerKey, MovingFlow)>> {
        if self.engines.udp().is_empty() {
            return Ok(Vec::new());
        }
        self.engines.pause_flows()?;
        Ok(self.engines.describe_flows()?)
    }

    /// The new process has failed: everything goes on here.
    pub(super) fn keep(&mut self) -> anyhow::Result<()> {
        self.attachments.renew();
        if !self.engines.udp().is_empty() {
            self.engines.resume_flows()?;
        }
        Ok(())
    }

    /// The new process serves what `to` names. The rest drains.
    pub(super) fn hand_over(&mut self, to: &HandedOver) -> anyhow::Result<()> {
        self.attachments.hand_over(&to.attached);
        self.certificates.stop();
        if !self.engines.udp().is_empty() {
            self.engines.release(&to.udp)?;
            self.engines.resume_flows()?;
        }
        self.engines.release_spliced()?;
        self.engines.drain();
        Ok(())
    }

    /// Serves with the sockets and flows of the old process, once `serving` has told it so. Returns how many
    /// flows go on.
    pub(super) fn take_over(
        &mut self,
        loaded: &LoadedConfig,
        inherited: &mut Vec<OwnedFd>,
        flows: Vec<(SocketAddr, MovingFlow)>,
        serving: impl FnOnce(&Self, &mut Vec<OwnedFd>, Vec<SocketAddr>, Vec<String>) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let has_udp = loaded.process.entries.iter().filter_map(EntryConfig::relay).any(Config::has_udp);
        if has_udp {
            self.engines.pause_flows()?;
        }
        // Sockets of the old process that no listener here has stay until it has let go.
        let wanted = self.wanted(loaded)?;
        self.change(&wanted, &loaded.process, inherited)?;
        let adopted = if has_udp { self.engines.adopt_flows(flows)? } else { 0 };
        let udp = self.engines.udp().into_iter().map(|(key, _)| key.address).collect();
        serving(self, inherited, udp, self.attachments.names())?;
        self.attachments.end_take_over();
        if has_udp {
            self.engines.resume_flows()?;
        }
        Ok(adopted)
    }

    /// Leaves rules and routes in place if sessions that need them go on without truepeer.
    pub(super) fn leave_routes(&mut self) {
        if self.engines.leave_sessions() {
            std::mem::take(&mut self.routes).leave();
        }
    }

    /// Takes nothing new. The bell rings when the last session of an engine has ended.
    pub(super) fn drain(&mut self) {
        self.certificates.stop();
        self.engines.drain();
        self.attachments.drain();
    }

    /// Begins to wait for the replies to datagrams that were passed on. Returns whether there may be any.
    pub(super) fn await_last_replies(&self) -> bool {
        self.engines.read_no_more();
        self.engines.budgets.flows.used() > 0
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
        let flows = self.engines.budgets.flows.used();
        match (self.engines.journal.counters.all_open().saturating_sub(flows), flows) {
            (sessions, 0) => format!("{sessions} sessions open"),
            (sessions, flows) => format!("{sessions} sessions and {flows} flows open"),
        }
    }

    /// Logs the counters.
    pub(super) fn report(&self) {
        log::counters(&self.engines.journal.counters, self.engines.budgets.sessions.used());
    }
}

fn describe(change: &Change) -> String {
    match change {
        Change::Open(listener) => format!("listener {} was opened", listener.key),
        Change::Close(listener) => format!("listener {} was closed; its open sessions go on", listener.key),
        Change::SetRules(listener, parts) => {
            let (gone, new): (Vec<_>, Vec<_>) = parts.iter().partition(|part| matches!(part, Part::Gone(_)));
            let list =
                |parts: Vec<&Part>| parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let with = |word: &str, parts: Vec<&Part>| {
                (!parts.is_empty()).then(|| format!("{word} {}", list(parts)))
            };
            let have = [with("new", new), with("no", gone)].into_iter().flatten().collect::<Vec<_>>();
            format!("new sessions of listener {} have {}", listener.key, have.join(", "))
        }
    }
}
