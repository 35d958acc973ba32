//! Changes the engines from the running plan to another one: completely, or not at all.

use std::collections::BTreeMap;
use std::iter;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::io::Errno;
use tracing::{error, info};
use truepeer_https::challenges::Challenges;
use truepeer_https::{Https, HttpsRules};
use truepeer_policy::{Bans, BansAt};
use truepeer_relay::udp::moving::MovingFlow;
use truepeer_relay::{FlowOffload, Offloads, Relay, Splicing, StaysReason};
use truepeer_session::budget::Budgets;
use truepeer_session::{Engine, EngineError, Health, Journal, ListenerId, ListenerSnapshot, SessionList};

use super::rules::Marks;
use super::signals::Bell;
use super::splice::{Obstacle, Programs};
use super::{notify, rules, sockets};
use truepeer_config::plan::{Change, CheckedListener, ListenerConfig, ListenerKey, Part, diff};
use truepeer_config::spec::{Protocol, SpliceLinger};
use truepeer_ops::admin::SpliceDoc;
use truepeer_origin::HealthTable;

/// How long an address may stay taken after the service manager was told to close its socket: it may do so in
/// a process of its own.
const LETTING_GO: Duration = Duration::from_secs(1);
/// How often such an address is tried.
const TRY: Duration = Duration::from_millis(2);

/// The listeners before a change.
pub(super) struct Before {
    pub(super) running: Vec<Arc<CheckedListener>>,
    expected: Vec<ListenerKey>,
    marks: Marks,
}

/// A listener that is open.
pub(super) struct OpenListener<'a> {
    pub(super) listener: &'a CheckedListener,
    pub(super) id: ListenerId,
    pub(super) addresses: Vec<SocketAddr>,
    /// By name, each with its own counters.
    pub(super) sites: Vec<(String, ListenerId)>,
}

/// The running engines: the relay for listeners without TLS, https for those with it. An engine starts with
/// its first listener.
pub(super) struct Engines {
    relay: Option<Relay>,
    https: Option<Https>,
    running: Vec<Arc<CheckedListener>>,
    /// The marks that the running listeners have.
    marks: Marks,
    /// The listeners that should be open: more than `running` after a change that could not be undone.
    expected: Vec<ListenerKey>,
    /// Until then, a taken address is tried again.
    lets_go_until: Option<Instant>,
    /// The health of origins, which outlives the rules that ask for it.
    health: HealthTable,
    /// A listener keeps its id, and so its counters, even if it is closed and opened again.
    ids: BTreeMap<ListenerKey, ListenerId>,
    /// The same for sites that share one, by name.
    site_ids: BTreeMap<(ListenerKey, String), ListenerId>,
    workers: usize,
    pub(super) budgets: Budgets,
    pub(super) journal: Arc<Journal>,
    /// Rung when a worker has ended unexpectedly, and when the last one of an engine has ended after a
    /// drain.
    bell: Bell,
    /// The kernel's programs that take sessions over, and those that make sessions.
    programs: Programs,
    /// Answers to an ACME authority.
    challenges: Arc<Challenges>,
    /// Who is banned, for all listeners.
    pub(super) bans: Arc<Bans>,
}

impl Engines {
    /// Starts with no engine.
    pub(super) fn new(
        workers: usize,
        budgets: Budgets,
        journal: Journal,
        bell: Bell,
        programs: Programs,
        challenges: Arc<Challenges>,
    ) -> Self {
        Self {
            relay: None,
            https: None,
            running: Vec::new(),
            marks: Marks::default(),
            expected: Vec::new(),
            lets_go_until: None,
            health: HealthTable::default(),
            ids: BTreeMap::new(),
            site_ids: BTreeMap::new(),
            workers,
            budgets,
            journal: Arc::new(journal),
            bell,
            programs,
            challenges,
            bans: Arc::default(),
        }
    }

    /// What is open, for [`Self::return_to`].
    pub(super) fn before(&self) -> Before {
        let (running, expected) = (self.running.clone(), self.expected.clone());
        Before { running, expected, marks: self.marks.clone() }
    }

    /// Has the relay's sessions find out whether their backends still have the connections.
    pub(super) fn probe_backends(&self) {
        self.relay.iter().for_each(Relay::probe_backends);
    }

    /// The listeners that should be open and are not.
    pub(super) fn missing(&self) -> Vec<ListenerKey> {
        let is_open = |key: &ListenerKey| self.running.iter().any(|listener| listener.key == *key);
        self.expected.iter().filter(|key| !is_open(key)).copied().collect()
    }

    /// Takes sockets out of the service manager's store. Their addresses are free a moment later.
    pub(super) fn free(&mut self, sockets: &[(Protocol, SocketAddr)]) {
        if notify::take_back(sockets) {
            self.lets_go_until = Some(Instant::now() + LETTING_GO);
        }
    }

    /// Applies the difference between the running plan and `plan`, and returns it. Open sessions keep their
    /// rules.
    ///
    /// # Errors
    /// A change that is not possible. The changes before it are undone; [`Self::missing`] tells what could
    /// not be.
    pub(super) fn apply(
        &mut self,
        plan: &[Arc<CheckedListener>],
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Vec<Change>> {
        let (before, changes) = (self.before(), self.changes_to(plan, marks));
        sockets::refuse_beside_passed(&changes)?;
        if let Err(failure) = self.carry_out_all(&changes, marks, inherited) {
            self.return_to(before);
            return Err(failure);
        }
        self.expected = plan.iter().map(|listener| listener.key).collect();
        Ok(changes)
    }

    /// Undoes changes, as far as possible.
    pub(super) fn return_to(&mut self, before: Before) {
        for change in self.changes_to(&before.running, &before.marks) {
            if let Err(failure) = self.carry_out_all(&[change], &before.marks, &mut Vec::new()) {
                error!("can't take a change back: {failure:#}");
            }
        }
        self.expected = before.expected;
    }

    /// The changes to a plan. A listener's mark is no part of its configuration: it follows from the rules
    /// and routes that its entry needs.
    fn changes_to(&self, plan: &[Arc<CheckedListener>], marks: &Marks) -> Vec<Change> {
        let mut changes = diff(&self.running, plan);
        let marked = plan.iter().filter(|one| with_sites(one).any(|one| marks.of(one) != self.marks.of(one)));
        let untold = marked.filter(|one| changes.iter().all(|change| change.key() != one.key));
        let untold: Vec<_> = untold.map(|one| Change::SetRules(Arc::clone(one), vec![Part::Mark])).collect();
        changes.extend(untold);
        changes
    }

    fn carry_out_all(
        &mut self,
        changes: &[Change],
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<()> {
        // Listeners in the way of others are closed first.
        let opens = changes.iter().position(|change| matches!(change, Change::Open(_))).unwrap_or(0);
        let (in_the_way, others) = changes.split_at(opens);
        let outcome = in_the_way.iter().try_for_each(|change| self.carry_out(change, marks, inherited));
        outcome.and_then(|()| {
            let closed: Vec<_> = in_the_way.iter().map(Change::key).collect();
            self.free(&closed.iter().map(|key| (key.protocol, key.address)).collect::<Vec<_>>());
            others.iter().try_for_each(|change| self.carry_out(change, marks, inherited))
        })
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
        if let Change::Open(listener) | Change::SetRules(listener, _) = change {
            with_sites(listener).for_each(|one| self.marks.set(one, marks.of(one)));
        }
        Ok(())
    }

    fn open(
        &mut self,
        listener: &CheckedListener,
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError> {
        loop {
            let opened = self.try_open(listener, marks, inherited);
            let is_taken =
                matches!(&opened, Err(EngineError::Listen(failed)) if failed.error.errno == Errno::ADDRINUSE);
            if !is_taken || self.lets_go_until.is_none_or(|until| until < Instant::now()) {
                return opened;
            }
            thread::sleep(TRY);
        }
    }

    fn try_open(
        &mut self,
        listener: &CheckedListener,
        marks: &Marks,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError> {
        let id = self.id(listener.key);
        self.ban_at(listener);
        if listener.config.needs_https() {
            let rules = self.https_rules(listener, marks);
            self.https()?.open(id, rules, inherited)
        } else {
            self.relay()?.open(id, rules::relay(listener, marks.of(listener)), inherited)
        }
    }

    fn close(&mut self, listener: &CheckedListener) -> Result<(), EngineError> {
        let id = self.id(listener.key);
        if listener.config.needs_https() { self.https()?.close(id) } else { self.relay()?.close(id) }
    }

    fn set_rules(&mut self, listener: &CheckedListener, marks: &Marks) -> Result<(), EngineError> {
        let id = self.id(listener.key);
        self.ban_at(listener);
        if listener.config.needs_https() {
            let rules = self.https_rules(listener, marks);
            self.https()?.set_rules(id, rules)
        } else {
            self.relay()?.set_rules(id, rules::relay(listener, marks.of(listener)))
        }
    }

    fn https_rules(&mut self, listener: &CheckedListener, marks: &Marks) -> HttpsRules {
        let ids = self.site_ids(listener);
        let common = rules::Common { health: &self.health, challenges: &self.challenges };
        rules::https(listener, marks, &common, &ids)
    }

    /// The listener's policy refuses who is banned, at any moment.
    fn ban_at(&self, listener: &CheckedListener) {
        let port = listener.key.address.port();
        for site in with_sites(listener) {
            site.policy.bans.get_or_init(|| BansAt::new(Arc::clone(&self.bans), port));
        }
    }

    fn id(&mut self, key: ListenerKey) -> ListenerId {
        let next = self.next_id();
        *self.ids.entry(key).or_insert(next)
    }

    fn site_ids(&mut self, listener: &CheckedListener) -> Vec<ListenerId> {
        let sites = listener.sites().into_iter().flatten();
        let id = |site: &CheckedListener| {
            let next = self.next_id();
            *self.site_ids.entry((listener.key, site.name().to_owned())).or_insert(next)
        };
        sites.map(id).collect()
    }

    fn next_id(&self) -> ListenerId {
        ListenerId::new(u16::try_from(self.ids.len() + self.site_ids.len()).unwrap_or(u16::MAX))
    }

    /// Whether sessions may leave user space; `None`: no listener's are to.
    pub(super) fn splice(&self) -> Option<SpliceDoc> {
        let are_wanted =
            |of: fn(&ListenerConfig) -> bool| self.running.iter().any(|listener| of(&listener.config));
        let of_sessions = || self.programs.obstacle.as_ref();
        let of_flows = || self.programs.flows.as_ref().and_then(|flows| flows.as_ref().err());
        let obstacle = match [ListenerConfig::may_splice, ListenerConfig::may_offload_flows].map(are_wanted) {
            [true, _] => of_sessions(),
            [false, true] => of_flows(),
            [false, false] => return None,
        };
        Some(obstacle.map(Obstacle::shown).unwrap_or_default())
    }

    fn relay(&mut self) -> Result<&mut Relay, EngineError> {
        if self.relay.is_none() {
            let bell = self.bell.clone();
            let on_end = move || bell.ring();
            let programs = self.programs.splices.as_ref().zip(self.programs.ways.as_ref());
            let obstacle = self.programs.obstacle.as_ref();
            let stays = obstacle.map_or(StaysReason::NotLoaded, |obstacle| obstacle.reason);
            let start = |(splices, ways): (&Arc<_>, &Arc<_>)| {
                Splicing::start(Arc::clone(splices), Arc::clone(ways), stays)
            };
            let sessions = programs.map(start).transpose().map_err(EngineError::Thread)?.ok_or(stays);
            let flows = match &self.programs.flows {
                Some(Ok((table, ways))) => {
                    let started = FlowOffload::start(Arc::clone(table), Arc::clone(ways));
                    Ok(started.map_err(EngineError::Thread)?)
                }
                Some(Err(obstacle)) => Err(obstacle.reason),
                None => Err(StaysReason::NotLoaded),
            };
            let offloads = Offloads { sessions, flows };
            let (workers, budgets, journal) = (self.workers, &self.budgets, &self.journal);
            self.relay = Some(Relay::start_offloading(workers, budgets, journal, offloads, on_end)?);
        }
        self.relay.as_mut().ok_or(EngineError::WorkerGone)
    }

    fn https(&mut self) -> Result<&mut Https, EngineError> {
        // Without the feature no plan has a listener with TLS, and the linker leaves the engine out.
        if cfg!(feature = "https") && self.https.is_none() {
            let bell = self.bell.clone();
            let on_end = move || bell.ring();
            self.https = Some(Https::start(self.workers, &self.budgets, &self.journal, on_end)?);
        }
        self.https.as_mut().ok_or(EngineError::WorkerGone)
    }

    /// The sessions of each engine.
    pub(super) fn sessions(&self) -> Vec<Arc<dyn SessionList>> {
        let sessions = [self.relay.as_ref().map(Engine::sessions), self.https.as_ref().map(Engine::sessions)];
        sessions.into_iter().flatten().collect()
    }

    /// Ends the sessions of those who are banned.
    pub(super) fn end_banned(&self) {
        self.sessions().iter().for_each(|sessions| sessions.end_banned());
    }

    /// The open listeners, with their addresses and the counters of their sites, by name.
    pub(super) fn listeners(&self) -> Vec<OpenListener<'_>> {
        let snapshots =
            [self.relay.as_ref().map(Engine::snapshot), self.https.as_ref().map(Engine::snapshot)];
        let open: Vec<_> = snapshots.into_iter().flatten().flat_map(|snapshot| snapshot.listeners).collect();
        self.running.iter().filter_map(|listener| self.describe(listener, &open)).collect()
    }

    fn describe<'a>(
        &self,
        listener: &'a CheckedListener,
        open: &[ListenerSnapshot],
    ) -> Option<OpenListener<'a>> {
        let id = *self.ids.get(&listener.key)?;
        let addresses = open.iter().find(|one| one.id == id).map(|one| one.addresses.clone());
        let sites = listener.sites().into_iter().flatten().filter_map(|site| {
            let name = site.name().to_owned();
            let id = *self.site_ids.get(&(listener.key, name.clone()))?;
            Some((name, id))
        });
        let sites = sites.collect();
        Some(OpenListener { listener, id, addresses: addresses.unwrap_or_default(), sites })
    }

    /// Duplicates of all listening sockets, by listener. Those on a port that the kernel chose are left out:
    /// nobody could find them by their address.
    pub(super) fn sockets(&self) -> Result<Vec<(ListenerKey, Vec<OwnedFd>)>, EngineError> {
        let named = self.running.iter().filter(|listener| listener.key.address.port() != 0);
        let duplicates = named.map(|listener| {
            let id = *self.ids.get(&listener.key).ok_or(EngineError::WorkerGone)?;
            let sockets = match (&self.relay, &self.https) {
                (_, Some(https)) if listener.config.needs_https() => https.sockets(id)?,
                (Some(relay), _) if !listener.config.needs_https() => relay.sockets(id)?,
                _ => return Err(EngineError::NotOpen(id)),
            };
            Ok((listener.key, sockets))
        });
        duplicates.collect()
    }

    /// Reads no datagrams until [`Self::resume_flows`].
    pub(super) fn pause_flows(&mut self) -> Result<(), EngineError> {
        self.relay()?.pause_flows()
    }

    pub(super) fn resume_flows(&mut self) -> Result<(), EngineError> {
        self.relay()?.resume_flows()
    }

    /// All flows, while paused.
    pub(super) fn describe_flows(&mut self) -> Result<Vec<(ListenerKey, MovingFlow)>, EngineError> {
        let mut flows = Vec::new();
        for (key, id) in self.udp() {
            flows.extend(self.relay()?.describe_flows(id)?.into_iter().map(|flow| (key, flow)));
        }
        Ok(flows)
    }

    /// Adopts flows of another process, while paused. Returns how many have a listener here.
    pub(super) fn adopt_flows(&mut self, flows: Vec<(SocketAddr, MovingFlow)>) -> Result<usize, EngineError> {
        let ids: BTreeMap<_, _> = self.udp().into_iter().map(|(key, id)| (key.address, id)).collect();
        let known = flows.into_iter().filter_map(|(address, flow)| {
            let listener = *ids.get(&address)?;
            Some(MovingFlow { listener, ..flow })
        });
        let known = known.collect();
        self.relay()?.adopt_flows(known)
    }

    /// Another process serves these UDP listeners now.
    pub(super) fn release(&mut self, addresses: &[SocketAddr]) -> Result<(), EngineError> {
        for (key, id) in self.udp() {
            if addresses.contains(&key.address) {
                self.relay()?.release(id)?;
                self.running.retain(|listener| listener.key != key);
            }
        }
        Ok(())
    }

    /// The UDP listeners that can be found by their address.
    pub(super) fn udp(&self) -> Vec<(ListenerKey, ListenerId)> {
        let udp = self.running.iter().map(|listener| listener.key);
        let udp = udp.filter(|key| key.protocol == Protocol::Udp && key.address.port() != 0);
        udp.filter_map(|key| Some((key, *self.ids.get(&key)?))).collect()
    }

    /// Whether sessions that have left user space go on when this process ends: its own, or those of one that
    /// was killed.
    pub(super) fn leave_sessions(&self) -> bool {
        let leaves = self.running.iter().any(|one| one.config.splice.linger == SpliceLinger::Leave);
        let splices = self.programs.splices.as_ref();
        splices.is_some_and(|splices| leaves && splices.has_unwatched() || splices.orphans_go_on())
    }

    /// Lets another process have the sessions that have left user space.
    pub(super) fn release_spliced(&mut self) -> Result<(), EngineError> {
        self.relay.as_mut().map_or(Ok(()), Relay::release_spliced)
    }

    /// Stops accepting connections and flows. The bell rings when the last session of an engine has ended.
    pub(super) fn drain(&mut self) {
        self.relay.iter_mut().for_each(Engine::drain);
        self.https.iter_mut().for_each(Engine::drain);
    }

    /// Reads no datagrams of senders any more; replies still pass.
    pub(super) fn read_no_more(&self) {
        self.relay.iter().for_each(Relay::read_no_more);
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

/// The listener, and the sites that share it.
fn with_sites(listener: &CheckedListener) -> impl Iterator<Item = &CheckedListener> {
    iter::once(listener).chain(listener.sites().into_iter().flatten())
}

#[cfg(test)]
mod tests;
