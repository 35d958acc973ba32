//! Changes the engines from the running plan to another one: completely, or not at all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context as _;
use tracing::{error, info};
use truepeer_https::Https;
use truepeer_relay::Relay;
use truepeer_session::budget::Budgets;
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId};

use super::signals::Bell;
use super::{rules, sockets};
use crate::plan::{Change, CheckedListener, ListenerKey, diff};

/// The marks of upstream connections that the rules and routes match, by listener.
#[derive(Debug, Default)]
pub(super) struct Marks(BTreeMap<ListenerKey, u32>);

impl Marks {
    pub(super) fn set(&mut self, listener: &CheckedListener, mark: Option<u32>) {
        self.0.extend(mark.map(|mark| (listener.key, mark)));
    }

    fn of(&self, listener: &CheckedListener) -> Option<u32> {
        self.0.get(&listener.key).copied()
    }
}

/// The running engines: the relay for listeners without TLS, https for those with it. An engine starts with its
/// first listener.
pub(super) struct Engines {
    relay: Option<Relay>,
    https: Option<Https>,
    running: Vec<Arc<CheckedListener>>,
    /// A listener keeps its id, and so its counters, even if it is closed and opened again.
    ids: BTreeMap<ListenerKey, ListenerId>,
    workers: usize,
    pub(super) budgets: Budgets,
    pub(super) journal: Arc<Journal>,
    /// Rung when a worker has ended unexpectedly, and when the last one of an engine has ended after a drain.
    bell: Bell,
}

impl Engines {
    /// Starts with no engine.
    pub(super) fn new(workers: usize, budgets: Budgets, journal: Journal, bell: Bell) -> Self {
        Self {
            relay: None,
            https: None,
            running: Vec::new(),
            ids: BTreeMap::new(),
            workers,
            budgets,
            journal: Arc::new(journal),
            bell,
        }
    }

    /// The listeners that are open.
    pub(super) fn running(&self) -> &[Arc<CheckedListener>] {
        &self.running
    }

    /// Applies the difference between the running plan and `plan`, and returns it. Open sessions keep their
    /// rules.
    ///
    /// # Errors
    /// A change that is not possible. The changes before it are undone.
    pub(super) fn apply(
        &mut self,
        plan: &[Arc<CheckedListener>],
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Vec<Change>> {
        let (before, changes) = (self.running.clone(), diff(&self.running, plan));
        let outcome = changes.iter().try_for_each(|change| self.carry_out(change, marks, inherited));
        if let Err(failure) = outcome {
            for change in diff(&self.running, &before) {
                if let Err(failure) = self.carry_out(&change, marks, inherited) {
                    error!("can't take a change back: {failure:#}");
                }
            }
            return Err(failure);
        }
        Ok(changes)
    }

    fn carry_out(
        &mut self,
        change: &Change,
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<()> {
        match change {
            Change::Open(listener) => {
                let opened = self.open(listener, marks, inherited);
                for address in opened.map_err(|error| sockets::explain(error, listener))? {
                    info!("listening on {address}");
                }
            }
            Change::Close(listener) => self.close(listener)?,
            Change::SetRules(listener, _) => {
                self.set_rules(listener, marks).with_context(|| format!("listener {}", listener.key))?;
            }
        }
        change.apply_to(&mut self.running);
        Ok(())
    }

    fn open(
        &mut self,
        listener: &CheckedListener,
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError> {
        let id = self.id(listener.key);
        if listener.config.speaks_tls() {
            self.https()?.open(id, rules::https(listener, marks.of(listener)), inherited)
        } else {
            self.relay()?.open(id, rules::relay(listener, marks.of(listener)), inherited)
        }
    }

    fn close(&mut self, listener: &CheckedListener) -> Result<(), EngineError> {
        let id = self.id(listener.key);
        if listener.config.speaks_tls() { self.https()?.close(id) } else { self.relay()?.close(id) }
    }

    fn set_rules(&mut self, listener: &CheckedListener, marks: &Marks) -> Result<(), EngineError> {
        let id = self.id(listener.key);
        if listener.config.speaks_tls() {
            self.https()?.set_rules(id, rules::https(listener, marks.of(listener)))
        } else {
            self.relay()?.set_rules(id, rules::relay(listener, marks.of(listener)))
        }
    }

    fn id(&mut self, key: ListenerKey) -> ListenerId {
        let next = u16::try_from(self.ids.len()).unwrap_or(u16::MAX);
        *self.ids.entry(key).or_insert_with(|| ListenerId::new(next))
    }

    fn relay(&mut self) -> Result<&mut Relay, EngineError> {
        if self.relay.is_none() {
            let bell = self.bell.clone();
            let on_end = move || bell.ring();
            self.relay = Some(Relay::start(self.workers, &self.budgets, &self.journal, on_end)?);
        }
        self.relay.as_mut().ok_or(EngineError::WorkerGone)
    }

    fn https(&mut self) -> Result<&mut Https, EngineError> {
        if self.https.is_none() {
            let bell = self.bell.clone();
            let on_end = move || bell.ring();
            self.https = Some(Https::start(self.workers, &self.budgets, &self.journal, on_end)?);
        }
        self.https.as_mut().ok_or(EngineError::WorkerGone)
    }

    /// Stops accepting connections and flows. The bell rings when the last session of an engine has ended.
    pub(super) fn drain(&mut self) {
        self.relay.iter_mut().for_each(Engine::drain);
        self.https.iter_mut().for_each(Engine::drain);
    }

    /// Whether all engines have ended after a drain.
    ///
    /// # Errors
    /// A worker has ended unexpectedly: the others would serve only a part of the connections.
    pub(super) fn have_ended(&self) -> anyhow::Result<bool> {
        let health = [self.relay.as_ref().map(Engine::health), self.https.as_ref().map(Engine::health)];
        let mut have_ended = true;
        for health in health.into_iter().flatten() {
            match health {
                Health::Broken(reason) => anyhow::bail!(
                    "a worker has ended by itself ({reason}): the others would serve a part of the connections only"
                ),
                Health::Serving => have_ended = false,
                Health::Ended => {}
            }
        }
        Ok(have_ended)
    }
}
