//! A life of the agent: what its driver does, between an API server and kernels that are made up.

use super::world::Writes;
use super::*;
use crate::statuses::State;

/// What a step takes; two of a kind run at a time.
const LOOKS: Duration = Duration::from_millis(25);
const CHANGES: (u64, usize) = (150, 200);
/// How soon a list is asked for again that was refused.
const AGAIN: Duration = Duration::from_millis(800);
/// So long a pod may be called attached whose kernel has nothing: a sandbox that ended is noticed a second
/// later, and where the kernel's whole state could not be read, it is asked for each pod.
const LIE: Duration = Duration::from_secs(3);

/// The kernel's clock, and what was attached then.
type Told = (u64, Vec<Status>);

/// See the module.
pub(super) struct Life {
    core: Core,
    steps: Vec<Running>,
    /// A list that was asked for: when it comes, and what it has. Without one, the watch is open.
    list: Option<(Instant, Vec<(Key, Desired)>)>,
    /// When a list is asked for.
    ask: Option<Instant>,
    /// Conditions as they are known.
    known: BTreeMap<Key, Option<Claim>>,
    read_at: Instant,
    next_check: Instant,
    next_compare: Instant,
    /// The kernel's state that is being read.
    compare: Option<(Instant, Option<Told>)>,
    lies: BTreeMap<(Key, u64), Instant>,
    turns: u32,
}

struct Running {
    begins: Instant,
    ends: Instant,
    started: Started,
}

impl Life {
    pub(super) fn start(world: &mut World) -> Self {
        let now = world.now;
        world.failed.clear();
        Self {
            core: Core::new(PODS, world.inherited(), now),
            steps: Vec::new(),
            list: None,
            ask: Some(now),
            known: BTreeMap::new(),
            read_at: now,
            next_check: now,
            next_compare: now + COMPARE,
            compare: None,
            lies: BTreeMap::new(),
            turns: 0,
        }
    }

    /// All pods are listed anew.
    pub(super) fn lose_watch(&mut self, now: Instant) {
        self.list = None;
        self.ask.get_or_insert(now);
    }

    /// One look of the agent at its world.
    pub(super) fn turn(&mut self, world: &mut World) {
        world.now += TURN;
        self.finish_steps(world);
        self.hear(world);
        self.find_processes(world);
        self.start_steps(world);
        self.compare(world);
        self.turns += 1;
        if self.turns.is_multiple_of(4) {
            self.write_conditions(world);
            self.judge(world);
        }
    }

    fn hear(&mut self, world: &mut World) {
        let now = world.now;
        if self.ask.take_if(|time| *time <= now).is_some() {
            self.list = Some((now + world.api.list_takes, world.list()));
        }
        let mut heard = Vec::new();
        if let Some((_, listed)) = self.list.take_if(|(time, _)| *time <= now) {
            let is_refused = world.is_refusing();
            let count = if is_refused { world.dice.roll(PODS) } else { listed.len() };
            let keys = listed.iter().map(|(key, _)| key.clone()).collect();
            heard.extend(listed.into_iter().take(count).map(|(key, desired)| Change::Set(key, desired)));
            if is_refused {
                self.ask = Some(now + AGAIN);
            } else {
                self.known.retain(|key, _| BTreeSet::contains(&keys, key));
                heard.push(Change::Only(keys));
            }
        }
        while self.list.is_none()
            && self.ask.is_none()
            && world.untold.front().is_some_and(|(time, ..)| *time <= now)
        {
            let (_, key, desired) = world.untold.pop_front().unwrap();
            heard.push(
                desired
                    .map_or_else(|| Change::Gone(key.clone()), |desired| Change::Set(key.clone(), desired)),
            );
        }
        if !heard.is_empty() && self.core.has_heard_nothing() && now - self.read_at > COMPARE_SOON {
            self.core.inherit(world.inherited());
            self.read_at = now;
        }
        for change in heard {
            match &change {
                Change::Set(key, desired) => _ = self.known.insert(key.clone(), desired.claim.clone()),
                Change::Gone(key) => _ = self.known.remove(key),
                Change::Only(_) => {}
            }
            if self.core.update(change, now) {
                self.core.find_unasked(&world.places(), None, now);
                self.next_compare = now + COMPARE_SOON;
            }
        }
    }

    fn find_processes(&mut self, world: &World) {
        let now = world.now;
        if now >= self.next_check {
            self.next_check = now + CHECK;
            let places = world.places();
            let all: BTreeSet<u64> = places.values().map(|place| place.started).collect();
            self.core.check_places(world.ticks(now), |place| all.contains(&place.started), now);
        }
        let missing = self.core.missing(now);
        if missing.is_empty() {
            return;
        }
        let found = missing.into_keys().filter_map(|key| {
            let sandbox = world.pods.get(&key)?.sandbox.as_ref()?;
            let is_through = sandbox.has_address <= now;
            let found = Found { place: sandbox.place(), addresses: (!is_through).then(Addresses::new) };
            (sandbox.has_process <= now).then_some((key, found))
        });
        self.core.found(found.collect(), now);
    }

    fn start_steps(&mut self, world: &mut World) {
        let now = world.now;
        for started in self.core.start_steps(now) {
            let takes = match started.step {
                Step::Look(_) => LOOKS,
                _ => Duration::from_millis(CHANGES.0) + world.dice.up_to(CHANGES.1),
            };
            let kind = |step: &Step| std::mem::discriminant(step);
            let same = |running: &&Running| kind(&running.started.step) == kind(&started.step);
            let mut ends: Vec<Instant> = self.steps.iter().filter(same).map(|running| running.ends).collect();
            ends.sort_unstable();
            let is_free = matches!(started.step, Step::Detach) || ends.len() < 2;
            let begins = if is_free { now } else { ends[ends.len() - 2] };
            self.steps.push(Running { begins, ends: begins + takes, started });
        }
        let core = &self.core;
        let is_wanted = |running: &mut Running| core.is_running(&running.started.key, running.started.number);
        let (wanted, cut): (Vec<_>, Vec<_>) = std::mem::take(&mut self.steps)
            .into_iter()
            .map(|mut running| (is_wanted(&mut running), running))
            .partition(|(is, _)| *is);
        self.steps = wanted.into_iter().map(|(_, running)| running).collect();
        cut.into_iter().for_each(|(_, running)| kill(running, world));
    }

    fn finish_steps(&mut self, world: &mut World) {
        let now = world.now;
        for Running { begins, ends, started } in std::mem::take(&mut self.steps) {
            let is_over = match &started.step {
                Step::Detach if begins < now => drain(&started, world),
                _ => ends <= now,
            };
            if is_over {
                let done = finish(started, world);
                self.core.finish(done, now);
            } else {
                self.steps.push(Running { begins, ends, started });
            }
        }
    }

    fn compare(&mut self, world: &mut World) {
        let now = world.now;
        match self.compare.take() {
            Some((begun, Some((ticks, all)))) => {
                self.core.compare(&all, begun);
                if !self.core.has_looked_for_unasked() || self.core.has_unknown(&all) {
                    let fresh = Inherited::of(ticks, all).map(|inherited| (begun, inherited));
                    self.core.find_unasked(&world.places(), fresh, now);
                }
            }
            Some((_, None)) => self.next_compare = now + COMPARE_SOON,
            None => {}
        }
        if now >= self.next_compare {
            self.next_compare = now + if self.core.has_looked_for_unasked() { COMPARE } else { COMPARE_SOON };
            self.compare = Some((now, world.status_of_all()));
        }
    }

    fn write_conditions(&mut self, world: &mut World) {
        for (key, row) in self.core.rows() {
            let Some(known) = self.known.get_mut(key) else { continue };
            let claim = claim(&row.state);
            if *known == claim || world.is_refusing() || !world.dice.one_in(2) {
                continue;
            }
            let Some(pod) = world.pods.get_mut(key) else { continue };
            if matches!(world.api.writes, Writes::Taken | Writes::Half) {
                pod.condition.clone_from(&claim);
                world.tell(key);
            }
            if world.api.writes == Writes::Taken {
                *known = claim;
            }
        }
    }

    /// Of a pod that is called attached, new connections must find rules.
    fn judge(&mut self, world: &World) {
        let mut lies = BTreeMap::new();
        for (key, row) in self.core.rows() {
            let is_true = claim(&row.state).is_some_and(|claim| claim.is_true);
            let Some(sandbox) = world.pods.get(key).and_then(|pod| pod.sandbox.as_ref()) else { continue };
            if is_true && sandbox.serving().is_none() && sandbox.has_process <= world.now {
                let lie = (key.clone(), sandbox.started);
                let since = self.lies.get(&lie).copied().unwrap_or(world.now);
                let doing = self.core.entries[key].doing();
                assert!(
                    world.now - since < LIE,
                    "{key}: {:?}; wanted {:?}; {doing:?}; since {:?} after its process",
                    row.state,
                    world.pods[key].want,
                    since - sandbox.has_process
                );
                lies.insert(lie, since);
            }
        }
        self.lies = lies;
    }

    /// Killed, or told to end. A step under way is done, half done, or not begun; if it is told, all but the
    /// waits are done.
    pub(super) fn end(self, world: &mut World) {
        let is_told = world.dice.one_in(4);
        for running in self.steps {
            if is_told && !matches!(running.started.step, Step::Detach) {
                finish(running.started, world);
            } else {
                kill(running, world);
            }
        }
    }

    pub(super) fn has_heard_all(&self) -> bool {
        self.core.has_heard_all()
    }

    /// Nothing will happen before `end`.
    pub(super) fn is_through(&self, world: &World, end: Instant) -> bool {
        let waits =
            |running: &Running| matches!(running.started.step, Step::Detach) && running.ends < world.now;
        let is_visible = |pod: &world::Pod| {
            pod.sandbox.as_ref().is_none_or(|sandbox| sandbox.has_address + CHECK <= world.now)
        };
        let is_said = |key, row: StatusRow| self.known.get(key) == Some(&claim(&row.state));
        self.ask.is_none()
            && self.list.is_none()
            && world.untold.is_empty()
            && self.compare.is_none()
            && self.next_compare >= end
            && self.steps.iter().all(waits)
            && world.pods.values().all(is_visible)
            && self.core.wake(world.now).is_none_or(|wake| wake >= end)
            && self.core.rows().all(|(key, row)| is_said(key, row))
    }

    /// What is not as it must be.
    pub(super) fn wrong(&self, world: &World) -> Vec<String> {
        let rows: BTreeMap<&Key, StatusRow> = self.core.rows().collect();
        let mut wrong = Vec::new();
        for (key, pod) in &world.pods {
            let Some(sandbox) = &pod.sandbox else { continue };
            let serving = sandbox.serving();
            let is_wrong = match &pod.want {
                Want::Attach(rules) => serving != Some(rules),
                Want::Nothing | Want::Forbidden(_) => serving.is_some(),
                Want::Unclear(_) => false,
            };
            let is_said = pod.condition.as_ref().is_some_and(|claim| claim.is_true);
            if is_wrong || is_said != serving.is_some() {
                let (want, state) = (&pod.want, rows.get(key).map(|row| &row.state));
                wrong.push(format!(
                    "{key}: {want:?}, kernel {serving:?}, condition {:?}, agent {state:?}",
                    pod.condition
                ));
            }
        }
        wrong
    }
}

/// The condition, as far as the next agent reads it.
fn claim(state: &State) -> Option<Claim> {
    let claim = |description: &String, is_true| Some(Claim { description: description.clone(), is_true });
    match state {
        State::Attached { description, .. }
        | State::Refused { kept: Some(description), .. }
        | State::Failed { kept: Some(description), .. } => claim(description, true),
        State::Detaching { description, .. } => claim(description, false),
        State::Idle
        | State::Waiting(_)
        | State::Refused { .. }
        | State::Failed { .. }
        | State::NoRoom { .. } => None,
    }
}

/// The process of a detach: lets new connections pass, and ends with the open ones.
fn drain(started: &Started, world: &mut World) -> bool {
    let waits = [Duration::ZERO, world.dice.up_to(500), Duration::from_secs(3600)][world.dice.roll(3)];
    let now = world.now;
    let sandbox = world.sandbox(&started.key).filter(|sandbox| sandbox.is_at(&started.place));
    sandbox.is_none_or(|sandbox| {
        sandbox.drain(now + waits);
        sandbox.is_drained(now)
    })
}

/// Its process is killed.
fn kill(Running { begins, started, .. }: Running, world: &mut World) {
    let how_far = world.dice.roll(3);
    if begins > world.now || how_far == 0 {
        return;
    }
    match &started.step {
        Step::Detach => _ = drain(&started, world),
        Step::Attach(rules) => {
            let sandbox = world.sandbox(&started.key).filter(|sandbox| sandbox.is_at(&started.place));
            let Some(sandbox) = sandbox else { return };
            if how_far == 1 { sandbox.attach_half(rules) } else { sandbox.attach(rules.clone()) }
        }
        Step::Look(_) | Step::Forget => {}
    }
}

/// What a step of truepeer does.
fn finish(Started { key, number, step, place }: Started, world: &mut World) -> Done {
    let (fails, how_far) = (world.fails(&key), world.dice.roll(3));
    let sandbox = world.sandbox(&key).filter(|sandbox| sandbox.is_at(&place));
    let failed = |step: &'static str| Outcome::Failed { step, why: "it takes too long".to_owned() };
    let outcome = match (step, sandbox) {
        (Step::Look(wanted), sandbox) => {
            let told = sandbox.filter(|_| !fails).map(|sandbox| sandbox.status());
            let told = told.ok_or_else(|| anyhow::anyhow!("no such process"));
            Outcome::of_look(told, wanted, place.netns, None)
        }
        (Step::Attach(_), None) => Outcome::Ended,
        // Done, half done or not begun.
        (Step::Attach(rules), Some(sandbox)) if fails => {
            match how_far {
                0 => sandbox.attach(rules),
                1 => sandbox.attach_half(&rules),
                _ => {}
            }
            failed("attach")
        }
        (Step::Attach(rules), Some(sandbox)) => {
            sandbox.attach(rules.clone());
            Outcome::Attached { rules, warnings: Vec::new() }
        }
        (Step::Detach | Step::Forget, None) => failed("detach"),
        (Step::Detach | Step::Forget, Some(sandbox)) => {
            sandbox.detach();
            if fails { failed("detach") } else { Outcome::Detached }
        }
    };
    Done { key, number, place, addresses: None, took: LOOKS, outcome }
}
