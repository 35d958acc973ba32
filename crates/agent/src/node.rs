//! Brings what is attached on this machine to what is wanted.
//!
//! ```text
//!  kubernetes, docker ──Change──▶ Node ──▶ Board ──▶ conditions, events, metrics
//!                                  │ looks for processes, plans, starts steps
//!                                  ▼
//!                          truepeer attach …, a process for each step
//! ```
//!
//! One task owns all state. Steps of different pods run beside each other, two at a time; those of one pod one after another.

mod entry;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::plan::{self, Doing, Key, Step, Want};
use crate::processes::{Place, Proc, cgroup_mounts};
use crate::statuses::{Name, StatusTable};
use crate::truepeer::Truepeer;

use entry::Entry;
use steps::Done;

/// How often attached places are looked at.
const CHECK: Duration = Duration::from_secs(1);
/// How soon, and how rarely, processes of a pod are looked for.
const SOON: Duration = Duration::from_millis(50);
const RARELY: Duration = Duration::from_secs(2);
/// How long after an end leftovers are removed: several pods often end together.
const SWEEP: Duration = Duration::from_secs(2);
/// How long steps may go on when the agent is told to end.
const END: Duration = Duration::from_secs(5);

/// What is known of one pod or container.
#[derive(Debug, Clone)]
pub(crate) struct Desired {
    pub(crate) name: Name,
    pub(crate) want: Want,
    /// A container's process; pods' are found by their UID.
    pub(crate) process: Option<u32>,
    /// What an earlier agent said that it had attached.
    pub(crate) claim: Option<Claim>,
}

/// What an agent before this one said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) description: String,
    /// The rules served then; else they were being detached.
    pub(crate) is_true: bool,
}

/// A place, and whether the network plugin is through with it.
struct Found {
    place: Place,
    has_address: bool,
}

fn find(proc: &Proc, host: u64, wanted: BTreeMap<Key, Option<u32>>) -> BTreeMap<Key, Found> {
    let needs_pods = wanted.values().any(Option::is_none);
    let mut pods = if needs_pods { proc.pods(host) } else { BTreeMap::new() };
    let places = wanted.into_iter().filter_map(|(key, process)| {
        let place = process.map_or_else(|| pods.remove(&key), |pid| proc.place(pid, host))?;
        let has_address = proc.has_address(&place);
        Some((key, Found { place, has_address }))
    });
    places.collect()
}

/// What a front end hears.
#[derive(Debug)]
pub(crate) enum Change {
    Set(Key, Desired),
    Gone(Key),
    /// Those that exist; all others are gone.
    Only(BTreeSet<Key>),
}

/// See the module.
pub(crate) struct Node {
    truepeer: Truepeer,
    proc: Proc,
    /// The machine's own network namespace.
    host: u64,
    cgroups: Vec<PathBuf>,
    max: usize,
    entries: BTreeMap<Key, Entry>,
    arrivals: u64,
    steps: JoinSet<Done>,
    permits: Arc<Semaphore>,
    statuses: Arc<StatusTable>,
    patience: Option<Duration>,
    /// When leftovers are removed: a moment after the last end.
    sweep: Option<Instant>,
    next_check: Instant,
    next_search: Instant,
    has_heard_all: bool,
}

impl Node {
    pub(crate) fn new(truepeer: Truepeer, max: usize, statuses: Arc<StatusTable>) -> Result<Self> {
        let proc = Proc::new("/proc");
        let host = proc
            .netns_of_host()
            .context("/proc/1/ns/net can't be read: expected root with CAP_SYS_PTRACE, in the host's PID namespace (hostPID: true)")?;
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        let now = Instant::now();
        Ok(Self {
            truepeer,
            proc,
            host,
            cgroups: cgroup_mounts(&mountinfo),
            max,
            entries: BTreeMap::new(),
            arrivals: 0,
            steps: JoinSet::new(),
            permits: Arc::new(Semaphore::new(2)),
            statuses,
            patience: None,
            sweep: None,
            next_check: now,
            next_search: now,
            has_heard_all: false,
        })
    }

    /// A detach waits for open connections only so long.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Works until told to end. What is attached stays.
    pub(crate) async fn run(mut self, mut changes: mpsc::Receiver<Change>, mut end: oneshot::Receiver<()>) {
        loop {
            let wake = self.wake();
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => self.update(change),
                    None => break,
                },
                Some(done) = self.steps.join_next() => if let Ok(done) = done { self.finish(done) },
                () = tokio::time::sleep_until(wake.into()) => {}
                _ = &mut end => break,
            }
            while let Ok(change) = changes.try_recv() {
                self.update(change);
            }
            self.find_processes().await;
            self.start_steps();
            self.sweep();
            self.publish();
        }
        self.wind_up().await;
    }

    fn update(&mut self, change: Change) {
        match change {
            Change::Set(key, desired) => {
                match self.entries.get_mut(&key) {
                    Some(entry) => entry.update(desired),
                    None => {
                        self.arrivals += 1;
                        self.entries.insert(key, Entry::new(desired, self.arrivals));
                    }
                }
                self.next_search = Instant::now();
            }
            Change::Gone(key) => self.remove(&key),
            Change::Only(keys) => {
                let gone: Vec<_> = self.entries.keys().filter(|key| !keys.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| self.remove(key));
                if !self.has_heard_all {
                    // Of pods that ended while no agent ran.
                    self.sweep = Some(Instant::now() + SWEEP);
                }
                self.has_heard_all = true;
            }
        }
    }

    /// Its network namespace ends with it, and everything in there.
    fn remove(&mut self, key: &Key) {
        if let Some(mut entry) = self.entries.remove(key) {
            entry.interrupt();
            if entry.is_attached() {
                tracing::info!(name = %entry.desired.name, "gone");
                self.sweep = Some(Instant::now() + SWEEP);
            }
        }
        self.statuses.remove(key);
    }

    /// Loses places whose process has ended, and looks for processes where one is missing.
    async fn find_processes(&mut self) {
        let now = Instant::now();
        if now >= self.next_check {
            self.next_check = now + CHECK;
            for entry in self.entries.values_mut() {
                if entry.place.as_ref().is_some_and(|place| !self.proc.is_still(place)) {
                    entry.lose_place(now);
                    self.next_search = now;
                }
            }
        }
        if now < self.next_search || !self.entries.values().any(Entry::is_searching) {
            return;
        }
        let searched = self.entries.iter().filter(|(_, entry)| entry.is_searching());
        let wanted = searched.map(|(key, entry)| (key.clone(), entry.desired.process)).collect();
        let (proc, host) = (self.proc.clone(), self.host);
        // Some microseconds for each process of the machine, and pods say how long their tables are.
        let mut found =
            tokio::task::spawn_blocking(move || find(&proc, host, wanted)).await.unwrap_or_default();
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_searching()) {
            entry.found(found.remove(key));
        }
        self.find_conflicts();
        let now = Instant::now();
        let waits = self.entries.values().filter_map(|entry| entry.searching_for(now));
        let youngest = waits.min().unwrap_or(RARELY);
        self.next_search = now + (youngest / 8).clamp(SOON, RARELY);
    }

    /// Containers may share a network namespace, and each attach replaces all that is there: who came first keeps it.
    fn find_conflicts(&mut self) {
        let mut holders: BTreeMap<u64, (u64, Name)> = BTreeMap::new();
        let asking = |entry: &Entry| matches!(entry.desired.want, Want::Attach(_));
        for entry in self.entries.values().filter(|entry| asking(entry)) {
            let Some(place) = &entry.place else { continue };
            let is_earlier = holders.get(&place.netns).is_none_or(|(arrival, _)| entry.arrival < *arrival);
            if is_earlier {
                holders.insert(place.netns, (entry.arrival, entry.desired.name.clone()));
            }
        }
        for entry in self.entries.values_mut() {
            let holder = entry.place.as_ref().and_then(|place| holders.get(&place.netns));
            entry.conflict =
                holder.filter(|(arrival, _)| asking(entry) && *arrival != entry.arrival).map(|(_, name)| {
                    Want::Forbidden(format!(
                        "it shares the network of {name}, which has such labels: name all ports there"
                    ))
                });
        }
    }

    fn start_steps(&mut self) {
        let now = Instant::now();
        let views = self.entries.iter().map(|(key, entry)| (key.clone(), entry.view(now))).collect();
        let plan = plan::plan(&views, self.max);
        for (key, entry) in &mut self.entries {
            entry.is_without_room = plan.without_room.contains(key);
        }
        for (key, step) in plan.steps {
            self.start(&key, step, now);
        }
    }

    fn start(&mut self, key: &Key, step: Step, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.interrupt();
        if step == Step::Forget {
            self.sweep = Some(now + SWEEP);
            return entry.forget();
        }
        let Some(place) = entry.place.clone() else { return };
        let work = steps::Work {
            key: key.clone(),
            place,
            truepeer: self.truepeer.clone(),
            proc: self.proc.clone(),
            cgroups: self.cgroups.clone(),
            permits: self.permits.clone(),
            patience: self.patience,
        };
        let doing = match &step {
            Step::Verify(_) => Doing::Verify,
            Step::Detach => Doing::Detach,
            Step::Attach(_) | Step::Forget => Doing::Attach,
        };
        entry.begin(doing, now, |number| self.steps.spawn(work.run(step, number)));
    }

    fn finish(&mut self, done: Done) {
        let Some(entry) = self.entries.get_mut(&done.key) else { return };
        if let Some((step, result)) = entry.finish(done) {
            self.statuses.count(step, result);
        }
        // Before the next plan, which would take a place that is missing for one that has ended.
        if entry.is_searching() {
            self.next_search = Instant::now();
        }
    }

    /// The pins and the hooks of network namespaces that have ended.
    fn sweep(&mut self) {
        if self.sweep.take_if(|time| *time <= Instant::now()).is_none() {
            return;
        }
        let truepeer = self.truepeer.clone();
        tokio::spawn(async move {
            if let Err(error) = truepeer.sweep().await {
                tracing::warn!("removing what ended pods left: {error:#}");
            }
        });
    }

    fn publish(&mut self) {
        for (key, entry) in &self.entries {
            self.statuses.write(key, entry.line(self.max));
        }
        if self.has_heard_all {
            self.statuses.mark_alive(Instant::now());
        }
    }

    fn wake(&self) -> Instant {
        let now = Instant::now();
        let due = self.entries.values().filter_map(|entry| entry.backoff.due()).filter(|due| *due > now);
        let is_searching = self.entries.values().any(Entry::is_searching);
        let search = is_searching.then_some(self.next_search);
        due.chain(search).chain(self.sweep).chain([self.next_check]).min().unwrap_or(self.next_check)
    }

    /// A step that is cut off would be left half done. Waits for connections are: the next agent waits again.
    async fn wind_up(mut self) {
        let waiting = self.entries.values_mut().filter(|entry| entry.doing() == Some(Doing::Detach));
        waiting.for_each(Entry::interrupt);
        let rest = async { while self.steps.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END, rest).await;
    }
}
