//! Knows all pods or containers of this machine and decides what to do next. It starts no process, and gets
//! the time as a parameter: [`super::Node`] drives it, and so does a simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::in_force;
use crate::plan::{self, Actual, Doing, Key, Step, Want};
use crate::processes::{Addresses, Place};
use crate::rules::Port;
use crate::sender_limit::SenderLimit;
use crate::statuses::{Name, StatusRow};
use crate::truepeer::Status;

use super::entry::Entry;
use super::inherited::Inherited;
use super::outcome::{Done, Found, Started};
use super::{Change, Desired};

/// How soon, and how rarely, processes of a pod are looked for.
const SOON: Duration = Duration::from_millis(50);
const RARELY: Duration = Duration::from_secs(2);
/// How long after an end leftovers are removed: several pods often end together.
const SWEEP: Duration = Duration::from_secs(2);

/// How long after an attach the network plugins may add devices and addresses.
const SETTLED: Duration = Duration::from_secs(30);
/// How long a pod's server may take to listen.
const SERVER: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Core {
    max: usize,
    limit: SenderLimit,
    entries: BTreeMap<Key, Entry>,
    /// They exist, ask for nothing, and nothing is known to be attached to them.
    idle: BTreeMap<Key, Desired>,
    /// The attachments that the agent found when it started. `None`: they could not be read.
    inherited: Option<Inherited>,
    arrivals: u64,
    next_search: Instant,
    /// When leftovers are removed: a moment after the last end.
    sweep: Option<Instant>,
    has_heard_all: bool,
    has_looked_for_unasked: bool,
    /// Each pod has been compared with `inherited`, which is not used again.
    has_adopted: bool,
    /// How long a pod is told before a step.
    notice: Duration,
}

impl Core {
    /// `inherited`: the kernel's state before anything was heard of pods.
    pub(super) fn new(max: usize, inherited: Option<Inherited>, now: Instant) -> Self {
        Self {
            max,
            limit: SenderLimit::default(),
            entries: BTreeMap::new(),
            idle: BTreeMap::new(),
            inherited,
            arrivals: 0,
            next_search: now,
            sweep: None,
            has_heard_all: false,
            has_looked_for_unasked: false,
            has_adopted: false,
            notice: Duration::ZERO,
        }
    }

    /// A step begins so long after the pod was heard of: its condition is False meanwhile, and services send
    /// it no more connections.
    pub(super) fn with_notice(self, notice: Duration) -> Self {
        Self { notice, ..self }
    }

    /// The senders that pods may allow: what an agent before this one attached may exceed it.
    pub(super) fn with_limit(self, limit: SenderLimit) -> Self {
        Self { limit, ..self }
    }

    /// The kernel's state, read again: the API server let the agent wait for its first answer.
    pub(super) fn inherit(&mut self, all: Option<Inherited>) {
        self.inherited = all;
    }

    pub(super) fn has_heard_nothing(&self) -> bool {
        self.entries.is_empty() && self.idle.is_empty() && !self.has_heard_all
    }

    /// Returns whether it was the first list of all of them.
    pub(super) fn update(&mut self, change: Change, now: Instant) -> bool {
        match change {
            Change::Set(key, desired) => self.set(key, desired, now),
            Change::Gone(key) => self.remove(&key, now),
            Change::Only(keys) => {
                let known = self.entries.keys().chain(self.idle.keys());
                let gone: Vec<_> = known.filter(|key| !keys.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| self.remove(key, now));
                if !self.has_heard_all {
                    // Of pods that ended while no agent ran.
                    self.sweep = Some(now + SWEEP);
                    self.has_heard_all = true;
                    return true;
                }
            }
        }
        false
    }

    fn set(&mut self, key: Key, desired: Desired, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.update(desired, now);
        } else if desired.want == Want::Nothing && desired.claim.is_none() {
            self.idle.insert(key, desired);
            return;
        } else {
            self.idle.remove(&key);
            self.enter(key, desired, now);
        }
        self.next_search = now;
    }

    fn enter(&mut self, key: Key, desired: Desired, now: Instant) -> &mut Entry {
        self.arrivals += 1;
        self.entries.entry(key).or_insert(Entry::new(desired, self.arrivals, now))
    }

    /// Its network namespace ends with it, and everything in there.
    fn remove(&mut self, key: &Key, now: Instant) {
        self.idle.remove(key);
        if let Some(entry) = self.entries.remove(key)
            && entry.may_be_attached()
        {
            tracing::info!(name = %entry.desired.name, "gone");
            self.sweep = Some(now + SWEEP);
        }
    }

    /// Whether it is known what is attached to pods that ask for nothing.
    pub(super) fn has_looked_for_unasked(&self) -> bool {
        self.has_looked_for_unasked
    }

    /// Finds what an agent before this one, or somebody by hand, has attached to pods that ask for nothing.
    /// Their conditions need not mention it. `pods`: those that have a process; `fresh`: the kernel's state
    /// after the given moment, unless it was read at the start.
    pub(super) fn find_unasked(
        &mut self,
        pods: &BTreeMap<Key, Place>,
        fresh: Option<(Instant, Inherited)>,
        now: Instant,
    ) {
        let begun = fresh.as_ref().map(|(begun, _)| *begun);
        let inherited = fresh.map(|(_, inherited)| inherited).or_else(|| self.inherited.clone());
        let Some(inherited) = inherited else { return };
        self.has_looked_for_unasked = true;
        for (key, place) in pods {
            let Some(status) = inherited.at(place) else { continue };
            if let Some(desired) = self.idle.remove(key) {
                self.enter(key.clone(), desired, now);
            }
            // Of what asks, or has a claim, the kernel is asked anyway.
            let entry = self.entries.get_mut(key).filter(|entry| entry.actual == Actual::Nothing);
            if let Some(entry) = entry.filter(|entry| begun.is_none_or(|begun| entry.is_as_at(begun))) {
                entry.is_attached_unasked(place, status, &self.limit);
                self.next_search = now;
            }
        }
    }

    /// Whether something is attached of which no entry knows.
    pub(super) fn has_unknown(&self, all: &[Status]) -> bool {
        let known = self.entries.values().filter_map(|entry| match entry.actual {
            Actual::Attached { netns, .. } | Actual::Other { netns } => Some(netns),
            Actual::Unknown | Actual::Nothing => None,
        });
        let known: BTreeSet<u64> = known.collect();
        all.iter().filter_map(|status| status.netns).any(|netns| !known.contains(&netns))
    }

    /// Where something is attached: soon afterwards, or at any time.
    pub(super) fn attached_places(&self, is_for_all: bool, now: Instant) -> BTreeMap<Key, Place> {
        let is_young =
            |entry: &&Entry| entry.changed_at.is_some_and(|changed| now.duration_since(changed) <= SETTLED);
        let attached =
            self.entries.iter().filter(|(_, entry)| matches!(entry.actual, Actual::Attached { .. }));
        let asked = attached.filter(|(_, entry)| is_for_all || is_young(entry));
        asked.filter_map(|(key, entry)| Some((key.clone(), entry.place.clone()?))).collect()
    }

    /// The addresses at these places.
    pub(super) fn heed(&mut self, addresses: BTreeMap<Key, Addresses>) {
        for (key, addresses) in addresses {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.heed(addresses);
            }
        }
    }

    /// The kernel's state at a moment after `begun`: whatever of it differs from what was attached is looked
    /// at again.
    pub(super) fn compare(&mut self, all: &[Status], begun: Instant) {
        let all: BTreeMap<u64, &Status> =
            all.iter().filter_map(|status| Some((status.netns?, status))).collect();
        for entry in self.entries.values_mut().filter(|entry| entry.is_as_at(begun)) {
            let Actual::Attached { netns, rules } = &entry.actual else { continue };
            let status = all.get(netns);
            let difference = status.map_or_else(
                || Some("it is not attached".to_owned()),
                |status| in_force::difference(status, rules),
            );
            if let Some(difference) = difference {
                tracing::warn!(name = %entry.desired.name, "not as the agent left it: {difference}");
                entry.doubt(true);
            }
        }
    }

    /// Loses places whose process has ended. `ticks`: before they are looked at.
    pub(super) fn check_places(&mut self, ticks: u64, is_still: impl Fn(&Place) -> bool, now: Instant) {
        for entry in self.entries.values_mut() {
            if entry.place.as_ref().is_some_and(|place| !is_still(place)) {
                entry.lose_place(now);
                self.next_search = now;
            } else {
                entry.is_seen(ticks);
            }
        }
    }

    /// Those whose server must have started by now, if there is one; each is told once. Containers that are
    /// not ready yet, or that wait for those that begin before them, may take longer.
    pub(super) fn without_known_server(&mut self, now: Instant) -> Vec<(Key, Place, BTreeSet<Port>)> {
        let mut all = Vec::new();
        for (key, entry) in &mut self.entries {
            let (Actual::Attached { rules, .. }, Some(place)) = (&entry.actual, &entry.place) else {
                continue;
            };
            let is_due = entry.serving_since().is_some_and(|since| now.duration_since(since) >= SERVER);
            if !entry.is_server_known && is_due {
                all.push((key.clone(), place.clone(), rules.ports.clone()));
                entry.is_server_known = true;
            }
        }
        all
    }

    /// Whose processes are to be looked for now, with a container's process.
    pub(super) fn missing(&self, now: Instant) -> BTreeMap<Key, Option<u32>> {
        if now < self.next_search {
            return BTreeMap::new();
        }
        let searched = self.entries.iter().filter(|(_, entry)| entry.is_searching());
        searched.map(|(key, entry)| (key.clone(), entry.desired.process)).collect()
    }

    /// Those of [`Core::missing`] that were found. Returns steps and results, as [`Core::finish`] does.
    pub(super) fn found(
        &mut self,
        mut found: BTreeMap<Key, Found>,
        now: Instant,
    ) -> Vec<(&'static str, &'static str)> {
        let mut adopted = Vec::new();
        let inherited = self.inherited.as_ref();
        let had_nothing = |place: &Place| inherited.is_some_and(|inherited| inherited.has_nothing(place));
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_searching()) {
            entry.found(found.remove(key), had_nothing);
        }
        self.find_conflicts();
        if let Some(inherited) = self.inherited.as_ref().filter(|_| !self.has_adopted) {
            for entry in self.entries.values_mut().filter(|entry| entry.is_unknown()) {
                let status = entry.place.as_ref().and_then(|place| inherited.at(place));
                adopted.extend(status.and_then(|status| entry.adopt(status, &self.limit, now)));
            }
        }
        self.has_adopted = self.has_heard_all;
        let waits = self.entries.values().filter_map(|entry| entry.searching_for(now));
        let youngest = waits.min().unwrap_or(RARELY);
        self.next_search = now + (youngest / 8).clamp(SOON, RARELY);
        adopted
    }

    /// Containers may share a network namespace, and each attach replaces all that is there: who came first
    /// keeps it.
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
            if entry.conflict.is_some() {
                entry.is_not_its_own();
            }
        }
    }

    /// The steps that begin now. One that was under way for the same pod ends by that: see
    /// [`Core::is_running`].
    pub(super) fn start_steps(&mut self, now: Instant) -> Vec<Started> {
        let notice = self.notice;
        let views = self.entries.iter().map(|(key, entry)| (key.clone(), entry.view(now, notice))).collect();
        let plan = plan::plan(&views, self.max);
        for (key, entry) in &mut self.entries {
            entry.is_without_room = plan.without_room.contains(key);
        }
        plan.steps.into_iter().filter_map(|(key, step)| self.start(key, step, now)).collect()
    }

    fn start(&mut self, key: Key, step: Step, now: Instant) -> Option<Started> {
        let entry = self.entries.get_mut(&key)?;
        entry.interrupt();
        if step == Step::Forget {
            self.sweep = Some(now + SWEEP);
            entry.forget();
            return None;
        }
        let place = entry.place.clone()?;
        let doing = match &step {
            Step::Look(_) => Doing::Look,
            Step::Detach => Doing::Detach,
            Step::Attach(_) | Step::Forget => Doing::Attach,
        };
        let number = entry.begin(doing, now);
        Some(Started { key, number, step, place })
    }

    /// Whether the result of a step is still waited for.
    pub(super) fn is_running(&self, key: &Key, number: u64) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.running() == Some(number))
    }

    /// Returns the step's name and how it ended, unless nobody waits for it.
    pub(super) fn finish(&mut self, done: Done, now: Instant) -> Option<(&'static str, &'static str)> {
        let entry = self.entries.get_mut(&done.key)?;
        let counted = entry.finish(done, &self.limit, now);
        // Before the next plan, which would take a place that is missing for one that has ended.
        if entry.is_searching() {
            self.next_search = now;
        }
        counted
    }

    /// Steps that only wait: the next agent waits again.
    pub(super) fn interrupt_waits(&mut self) {
        let waiting = self.entries.values_mut().filter(|entry| entry.doing() == Some(Doing::Detach));
        waiting.for_each(Entry::interrupt);
    }

    /// Whether leftovers of network namespaces that have ended are to be removed now. Says so once.
    pub(super) fn is_sweep_due(&mut self, now: Instant) -> bool {
        self.sweep.take_if(|time| *time <= now).is_some()
    }

    pub(super) fn has_heard_all(&self) -> bool {
        self.has_heard_all
    }

    /// With those that ask for nothing and whose condition says something: it is to be taken back.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Key, StatusRow)> {
        let idle = self.idle.iter().filter(|(_, desired)| desired.has_condition);
        let idle = idle.map(|(key, desired)| (key, StatusRow::idle(desired.name.clone())));
        self.entries.iter().map(|(key, entry)| (key, entry.line(self.max))).chain(idle)
    }

    /// When something is to be done, if nothing is heard before.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        let due = self.entries.values().filter_map(|entry| entry.due(self.notice)).filter(|due| *due > now);
        let is_searching = self.entries.values().any(Entry::is_searching);
        due.chain(is_searching.then_some(self.next_search)).chain(self.sweep).min()
    }
}

#[cfg(test)]
#[path = "sim/mod.rs"]
mod sim;
