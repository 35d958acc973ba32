//! Brings what is attached on this machine to what is wanted.
//!
//! ```text
//!  kubernetes, docker ──Change──▶ Node ──▶ Board ──▶ conditions, events, metrics
//!                                  │ looks for processes, plans, starts steps
//!                                  ▼
//!                          truepeer attach …, a process for each step
//! ```
//!
//! The kernel is the memory: an agent that starts asks it what is attached, and believes nothing else. One
//! task owns all state. Steps of different pods run beside each other, two of a kind at a time; those of one
//! pod one after another.

mod core;
mod entry;
mod inherited;
mod outcome;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::plan::{Key, Step, Want};
use crate::processes::{Place, Proc, cgroup_mounts};
use crate::sender_limit::SenderLimit;
use crate::statuses::{NO_SERVER, Name, StatusRow, StatusTable};
use crate::truepeer::{Status, Truepeer};

use self::core::Core;
use inherited::Inherited;
use outcome::{Done, Found, Started};

/// How often attached places are looked at.
const CHECK: Duration = Duration::from_secs(1);
/// How often the kernel's rules are compared with what was attached.
const COMPARE: Duration = Duration::from_secs(60);
/// How soon for the first time: what was read at the start may have changed since.
const COMPARE_SOON: Duration = Duration::from_secs(1);
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
    /// Its status says something of truepeer, which must be right, also if it asks for nothing.
    pub(crate) has_condition: bool,
    /// Its containers say that they serve.
    pub(crate) is_serving: bool,
}

/// What an agent before this one said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) description: String,
    /// The rules served then; else they were being detached.
    pub(crate) is_true: bool,
}

fn find(proc: &Proc, host: u64, wanted: BTreeMap<Key, Option<u32>>) -> BTreeMap<Key, Found> {
    let needs_pods = wanted.values().any(Option::is_none);
    let mut pods = if needs_pods { proc.pods(host) } else { BTreeMap::new() };
    let places = wanted.into_iter().filter_map(|(key, process)| {
        let place = process.map_or_else(|| pods.remove(&key), |pid| proc.place(pid, host))?;
        let addresses = proc.addresses(&place);
        Some((key, Found { place, addresses }))
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
    limit: SenderLimit,
    steps: JoinSet<Done>,
    handles: BTreeMap<(Key, u64), AbortHandle>,
    permits: Arc<Semaphore>,
    /// Those that ask the kernel don't wait for those that attach: until then a pod may be called attached.
    looks: Arc<Semaphore>,
    statuses: Arc<StatusTable>,
    patience: Option<Duration>,
    notice: Duration,
}

/// When the driver looks, whatever happens.
struct Clock {
    check: Instant,
    compare: Instant,
}

/// The kernel's state at a moment after this one, if it could be read.
type Compared = (Instant, Option<(u64, Vec<Status>)>);

impl Node {
    pub(crate) fn new(
        truepeer: Truepeer,
        max: usize,
        limit: SenderLimit,
        statuses: Arc<StatusTable>,
    ) -> Result<Self> {
        let proc = Proc::new("/proc");
        let host = proc
            .netns_of_host()
            .context("/proc/1/ns/net can't be read: expected root with CAP_SYS_PTRACE, in the host's PID namespace (hostPID: true)")?;
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        Ok(Self {
            truepeer,
            proc,
            host,
            cgroups: cgroup_mounts(&mountinfo),
            max,
            limit,
            steps: JoinSet::new(),
            handles: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(2)),
            looks: Arc::new(Semaphore::new(2)),
            statuses,
            patience: None,
            notice: Duration::ZERO,
        })
    }

    /// A detach begins so long after its pod was heard of, and waits for open connections only so long.
    pub(crate) fn leaving(self, notice: Duration, patience: Duration) -> Self {
        Self { notice, patience: Some(patience), ..self }
    }

    /// Works until told to end. What is attached stays.
    pub(crate) async fn run(mut self, mut changes: mpsc::Receiver<Change>, mut end: oneshot::Receiver<()>) {
        // Before the pods' list, which is then newer than this.
        let core = Core::new(self.max, self.read_kernel().await, Instant::now());
        let mut core = core.with_notice(self.notice).with_limit(self.limit.clone());
        let mut read_at = Instant::now();
        let mut clock = Clock { check: Instant::now(), compare: Instant::now() + COMPARE };
        let mut compares: JoinSet<Compared> = JoinSet::new();
        loop {
            let now = Instant::now();
            let wake = core.wake(now).into_iter().chain([clock.check, clock.compare]).min().unwrap_or(now);
            let mut heard = Vec::new();
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => heard.push(change),
                    None => break,
                },
                Some(done) = self.steps.join_next() => if let Ok(done) = done { self.finish(&mut core, done) },
                Some(Ok(told)) = compares.join_next() => self.compared(&mut core, told, &mut clock).await,
                () = tokio::time::sleep_until(wake.into()) => {}
                _ = &mut end => break,
            }
            heard.extend(std::iter::from_fn(|| changes.try_recv().ok()));
            if !heard.is_empty() && core.has_heard_nothing() && read_at.elapsed() > COMPARE_SOON {
                core.inherit(self.read_kernel().await);
                read_at = Instant::now();
            }
            for change in heard {
                if core.update(change, Instant::now()) {
                    core.find_unasked(&self.pods().await, None, Instant::now());
                    clock.compare = Instant::now() + COMPARE_SOON;
                }
            }
            self.find_processes(&mut core, &mut clock).await;
            self.start_steps(&mut core);
            self.sweep(&mut core);
            self.look_for_servers(&mut core);
            self.compare(&core, &mut compares, &mut clock);
            self.publish(&core);
        }
        self.wind_up(core).await;
    }

    /// `None` if it can't be read.
    async fn read_kernel(&self) -> Option<Inherited> {
        let ticks = self.proc.ticks();
        let all = self.truepeer.status_of_all().await;
        let complain = |error: &anyhow::Error| tracing::warn!("what is attached already: {error:#}");
        Inherited::of(ticks, all.inspect_err(complain).ok()?.namespaces)
    }

    /// Those that have a process.
    async fn pods(&self) -> BTreeMap<Key, Place> {
        let (proc, host) = (self.proc.clone(), self.host);
        tokio::task::spawn_blocking(move || proc.pods(host)).await.unwrap_or_default()
    }

    fn finish(&mut self, core: &mut Core, done: Done) {
        self.handles.remove(&(done.key.clone(), done.number));
        if let Some((step, result)) = core.finish(done, Instant::now()) {
            self.statuses.count(step, result);
        }
    }

    /// Loses places whose process has ended, and looks for processes where one is missing.
    async fn find_processes(&self, core: &mut Core, clock: &mut Clock) {
        let now = Instant::now();
        if now >= clock.check {
            clock.check = now + CHECK;
            core.check_places(self.proc.ticks(), |place| self.proc.is_still(place), now);
            self.read_addresses(core, false).await;
        }
        let wanted = core.missing(now);
        if wanted.is_empty() {
            return;
        }
        let (proc, host) = (self.proc.clone(), self.host);
        // Some microseconds for each process of the machine, and pods say how long their tables are.
        let found = tokio::task::spawn_blocking(move || find(&proc, host, wanted)).await;
        let adopted = core.found(found.unwrap_or_default(), Instant::now());
        adopted.into_iter().for_each(|(step, result)| self.statuses.count(step, result));
    }

    /// Plugins of several networks add a device after the other, and IPv6 may come later.
    async fn read_addresses(&self, core: &mut Core, is_for_all: bool) {
        let places = core.attached_places(is_for_all, Instant::now());
        if places.is_empty() {
            return;
        }
        let proc = self.proc.clone();
        let read = move || {
            let read = |(key, place)| Some((key, proc.addresses(&place)?));
            places.into_iter().filter_map(read).collect()
        };
        core.heed(tokio::task::spawn_blocking(read).await.unwrap_or_default());
    }

    fn start_steps(&mut self, core: &mut Core) {
        for Started { key, number, step, place } in core.start_steps(Instant::now()) {
            let work = steps::Work {
                key: key.clone(),
                place,
                truepeer: self.truepeer.clone(),
                proc: self.proc.clone(),
                cgroups: self.cgroups.clone(),
                permits: if matches!(step, Step::Look(_)) { &self.looks } else { &self.permits }.clone(),
                patience: self.patience,
            };
            self.handles.insert((key, number), self.steps.spawn(work.run(step, number)));
        }
        self.end_steps(core);
    }

    /// Those whose results nobody waits for, with their processes.
    fn end_steps(&mut self, core: &Core) {
        self.handles.retain(|(key, number), handle| {
            let is_wanted = core.is_running(key, *number);
            if !is_wanted {
                handle.abort();
            }
            is_wanted
        });
    }

    /// The pins and the hooks of network namespaces that have ended.
    fn sweep(&self, core: &mut Core) {
        if !core.is_sweep_due(Instant::now()) {
            return;
        }
        let truepeer = self.truepeer.clone();
        tokio::spawn(async move {
            if let Err(error) = truepeer.sweep().await {
                tracing::warn!("removing what ended pods left: {error:#}");
            }
        });
    }

    /// A wrong port in the annotation has no other sign: connections to the right one reach the server with
    /// their header.
    fn look_for_servers(&self, core: &mut Core) {
        for (key, place, ports) in core.without_known_server(Instant::now()) {
            let unserved = self.proc.unserved(&place, &ports);
            if !unserved.is_empty() {
                let ports: Vec<String> = unserved.iter().map(ToString::to_string).collect();
                let text = format!(
                    "nothing listens on port {} of the pod: truepeer.dev/ports names the ports of the server in the \
                     pod, not those of its service",
                    ports.join(",")
                );
                tracing::warn!(%key, "{text}");
                self.statuses.warn(key, NO_SERVER, text);
            }
        }
    }

    /// Somebody else may change what is attached.
    fn compare(&self, core: &Core, compares: &mut JoinSet<Compared>, clock: &mut Clock) {
        let begun = Instant::now();
        if begun < clock.compare {
            return;
        }
        clock.compare = begun + if core.has_looked_for_unasked() { COMPARE } else { COMPARE_SOON };
        let (truepeer, ticks) = (self.truepeer.clone(), self.proc.ticks());
        if compares.is_empty() {
            compares.spawn(async move {
                let all = truepeer.status_of_all().await.ok();
                (begun, all.map(|all| (ticks, all.namespaces)))
            });
        }
    }

    async fn compared(&self, core: &mut Core, (begun, told): Compared, clock: &mut Clock) {
        let Some((ticks, all)) = told else {
            // Ask again soon: a difference would stay for a minute otherwise.
            clock.compare = Instant::now() + COMPARE_SOON;
            return;
        };
        core.compare(&all, begun);
        self.read_addresses(core, true).await;
        if !core.has_looked_for_unasked() || core.has_unknown(&all) {
            let fresh = Inherited::of(ticks, all).map(|inherited| (begun, inherited));
            core.find_unasked(&self.pods().await, fresh, Instant::now());
        }
    }

    fn publish(&self, core: &Core) {
        let rows: BTreeMap<Key, StatusRow> = core.rows().map(|(key, row)| (key.clone(), row)).collect();
        self.statuses.replace(rows);
        if core.has_heard_all() {
            self.statuses.mark_alive(Instant::now());
        }
    }

    /// A step that is cut off would be left half done. Waits for connections are: the next agent waits again.
    async fn wind_up(mut self, mut core: Core) {
        core.interrupt_waits();
        self.end_steps(&core);
        let rest = async { while self.steps.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END, rest).await;
    }
}
