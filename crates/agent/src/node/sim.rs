//! The agent's memory, with the real planner, a kernel, an API server that fails, and agents that are killed
//! between any two steps.
//!
//! After each return of the agent, once the API answers, the kernel's rules must equal the annotations within
//! 5 s.

use super::super::outcome::{Outcome, Seen};
use super::super::{CHECK, COMPARE_SOON};
use super::*;
use crate::node::Claim;
use crate::plan::description;
use crate::rules::Rules;
use crate::rules::{Header, Port};
use crate::truepeer::{Attachment, PortStatus, RulesInForce, SenderInForce};

const PODS: usize = 200;
const FAULTS: usize = 20;
/// What a step takes; two run at a time.
const LOOK: Duration = Duration::from_millis(25);
const CHANGE: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_millis(25);
const DEADLINE: Duration = Duration::from_secs(5);

/// Small numbers, from one seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap_or_default();
        high % sides
    }
}

/// One pod: as the API server has it, as the last list had it, and as the kernel has it.
#[derive(Clone)]
struct Pod {
    want: Want,
    condition: Option<Claim>,
    /// Its process's and its network namespace's number.
    started: u64,
    netns: u64,
    kernel: Option<Rules>,
}

struct World {
    pods: BTreeMap<Key, Pod>,
    dice: Dice,
    processes: u64,
    now: Instant,
    /// Conditions can't be written.
    is_deaf: bool,
    /// A list comes so much later, while the watch has its changes already.
    list_takes: Duration,
}

fn rules(dice: &mut Dice) -> Rules {
    let allow = ["10.0.0.7/32", "0.0.0.0/0", "10.0.0.0/24"][dice.roll(3)];
    Rules {
        ports: [Port::Tcp([80, 81][dice.roll(2)])].into(),
        allow: [allow.parse().unwrap()].into(),
        header: [Header::Require, Header::Optional][dice.roll(2)],
        ..Rules::default()
    }
}

fn want(dice: &mut Dice) -> Want {
    match dice.roll(16) {
        0..4 => Want::Nothing,
        4 => Want::Forbidden("the operator's limit".to_owned()),
        // An attachment stays, and no other begins.
        5 => Want::Unclear("a typo".to_owned()),
        _ => Want::Attach(rules(dice)),
    }
}

/// As truepeer tells it.
fn status(netns: u64, kernel: Option<&Rules>) -> Status {
    let Some(rules) = kernel else { return Status { netns: Some(netns), ..Status::default() } };
    let sender = |prefix: &ipnet::IpNet| SenderInForce { prefix: *prefix, header: rules.header.to_string() };
    let port = |port: &Port| PortStatus {
        ports: port.to_string(),
        protocol: "tcp".to_owned(),
        ..PortStatus::default()
    };
    let in_force = RulesInForce {
        senders: rules.allow.iter().map(sender).collect(),
        header_timeout_ms: 5000,
        header_wait_ms: 1000,
        header_max: 16384,
        unshowable: "show-sender".to_owned(),
        close_after_s: 60,
        ..RulesInForce::default()
    };
    Status {
        attached: true,
        current: true,
        netns: Some(netns),
        ports: rules.ports.iter().map(port).collect(),
        attachments: vec![Attachment { id: 0, rules: Some(in_force) }],
        ..Status::default()
    }
}

/// A life of the agent.
struct Agent {
    core: Core,
    flying: Vec<(Instant, Started)>,
    next_check: Instant,
    next_compare: Option<Instant>,
    next_list: Option<Instant>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed | 1);
        let pods = (0..PODS).map(|number| {
            let want = want(&mut dice);
            let kernel = if let Want::Attach(rules) = &want { Some(rules.clone()) } else { None };
            let started = 1 + number as u64;
            (format!("{number:03}"), Pod { want, condition: None, started, netns: started, kernel })
        });
        let pods = pods.collect();
        let processes = 1 + PODS as u64;
        Self { pods, dice, processes, now: Instant::now(), is_deaf: false, list_takes: Duration::ZERO }
    }

    fn start(&mut self) -> Agent {
        // Reading it may fail.
        let inherited = (self.dice.roll(8) != 0).then(|| self.all());
        let core = Core::new(PODS, inherited, self.now);
        let next_list = Some(self.now + self.list_takes);
        Agent { core, flying: Vec::new(), next_check: self.now, next_compare: None, next_list }
    }

    fn all(&self) -> Vec<Status> {
        let attached = self.pods.values().filter(|pod| pod.kernel.is_some());
        attached.map(|pod| status(pod.netns, pod.kernel.as_ref())).collect()
    }

    fn places(&self) -> BTreeMap<Key, Place> {
        self.pods.iter().map(|(key, pod)| (key.clone(), place(pod))).collect()
    }

    fn list(&mut self, agent: &mut Agent) {
        for (key, pod) in &self.pods {
            agent.core.update(Change::Set(key.clone(), desired(key, pod)), self.now);
        }
        if agent.core.update(Change::Only(self.pods.keys().cloned().collect()), self.now) {
            agent.core.find_unasked(&self.places(), None, self.now);
            agent.next_compare = Some(self.now + COMPARE_SOON);
        }
    }

    /// Something of the outside: an annotation, a sandbox, the API server.
    fn fault(&mut self, agent: Option<&mut Agent>) {
        let key = format!("{:03}", self.dice.roll(PODS));
        match self.dice.roll(8) {
            0 | 1 => {
                let want = want(&mut self.dice);
                self.pods.get_mut(&key).unwrap().want = want;
                self.tell(&key, agent);
            }
            // A stale watch: it is heard with the next list.
            2 => {
                let want = want(&mut self.dice);
                self.pods.get_mut(&key).unwrap().want = want;
            }
            3 => self.is_deaf = !self.is_deaf,
            // A condition that is not true: half a write, a conflict, somebody else's.
            4 => {
                let rules = rules(&mut self.dice);
                let pod = self.pods.get_mut(&key).unwrap();
                let claim =
                    Claim { description: description(&rules, pod.netns), is_true: self.dice.roll(2) == 0 };
                pod.condition = (self.dice.roll(3) != 0).then_some(claim);
                self.tell(&key, agent);
            }
            // The API server is slow, or well again.
            5 => self.list_takes = Duration::from_millis(self.dice.roll(1500) as u64),
            // The watch breaks: all pods are listed anew.
            6 => {
                let at = self.now + self.list_takes;
                agent.into_iter().for_each(|agent| agent.next_list = Some(at));
            }
            _ => self.start_sandbox(&key),
        }
    }

    /// Another one: the attachment ends with the one before. The kernel may give its network namespace the
    /// number of that.
    fn start_sandbox(&mut self, key: &Key) {
        self.processes += 1;
        let is_same_number = self.dice.roll(2) == 0;
        let pod = self.pods.get_mut(key).unwrap();
        pod.kernel = None;
        pod.started = self.processes;
        if !is_same_number {
            pod.netns = self.processes;
        }
    }

    fn tell(&self, key: &Key, agent: Option<&mut Agent>) {
        if let (Some(agent), Some(pod)) = (agent, self.pods.get(key)) {
            agent.core.update(Change::Set(key.clone(), desired(key, pod)), self.now);
        }
    }

    /// One look of the agent at its world.
    fn turn(&mut self, agent: &mut Agent) {
        self.now += TURN;
        let now = self.now;
        let (done, flying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut agent.flying).into_iter().partition(|(end, _)| *end <= now);
        agent.flying = flying;
        for (_, started) in done {
            let done = self.finish(started);
            agent.core.finish(done, now);
        }
        if agent.next_list.take_if(|time| *time <= now).is_some() {
            self.list(agent);
        }
        if agent.next_compare.take_if(|time| *time <= now).is_some() {
            let all = self.all();
            agent.core.compare(&all, now);
            if !agent.core.has_looked_for_unasked() {
                agent.core.find_unasked(&self.places(), Some(&all), now);
            }
        }
        let places = self.places();
        if now >= agent.next_check {
            agent.next_check = now + CHECK;
            let all: BTreeSet<u64> = places.values().map(|place| place.started).collect();
            agent.core.check_places(|place| all.contains(&place.started), now);
        }
        let missing = agent.core.missing(now);
        if !missing.is_empty() {
            let found = missing.into_keys().map(|key| {
                let place = places[&key].clone();
                (key, Found { place, has_address: true })
            });
            agent.core.found(found.collect(), now);
        }
        for started in agent.core.start_steps(now) {
            // Two at a time: the earliest end of two before it.
            let takes = if matches!(started.step, Step::Look(_)) { LOOK } else { CHANGE };
            let mut ends: Vec<Instant> = agent.flying.iter().map(|(end, _)| *end).collect();
            ends.sort_unstable();
            let begin = ends.len().checked_sub(2).map_or(now, |last| ends[last]);
            agent.flying.push((begin + takes, started));
        }
        let core = &agent.core;
        agent.flying.retain(|(_, started)| core.is_running(&started.key, started.number));
        if !self.is_deaf && self.dice.roll(20) == 0 {
            self.write_conditions(agent);
        }
    }

    fn write_conditions(&mut self, agent: &Agent) {
        for (key, row) in agent.core.rows() {
            let pod = self.pods.get_mut(key).unwrap();
            match row.state {
                crate::statuses::State::Attached { description, .. } => {
                    pod.condition = Some(Claim { description, is_true: true });
                }
                crate::statuses::State::Idle => pod.condition = None,
                _ => {}
            }
        }
    }

    /// What a step of truepeer does.
    fn finish(&mut self, Started { key, number, step, place }: Started) -> Done {
        let fails = self.dice.roll(50) == 0;
        let pod = self.pods.get_mut(&key).unwrap();
        let is_here = pod.started == place.started;
        let outcome = match step {
            Step::Look(wanted) => {
                let kernel = pod.kernel.as_ref().filter(|_| is_here);
                Outcome::Looked(Seen::of(&status(place.netns, kernel), wanted))
            }
            // Half a write: done, and said to have failed.
            Step::Attach(rules) => {
                if is_here {
                    pod.kernel = Some(rules.clone());
                }
                match (is_here, fails) {
                    (true, false) => Outcome::Attached { rules, warnings: Vec::new() },
                    (true, true) => Outcome::Failed { step: "attach", why: "it takes too long".to_owned() },
                    (false, _) => Outcome::Ended,
                }
            }
            Step::Detach | Step::Forget => {
                if is_here {
                    pod.kernel = None;
                }
                Outcome::Detached
            }
        };
        Done { key, number, place, took: LOOK, outcome }
    }

    /// Killed: each step under way is done, or not begun.
    fn kill(&mut self, agent: Agent) {
        for (_, started) in agent.flying {
            if self.dice.roll(2) == 0 {
                self.finish(started);
            }
        }
    }

    fn wrong(&self) -> Vec<String> {
        let differ = |pod: &Pod| match (&pod.want, &pod.kernel) {
            (Want::Attach(rules), kernel) => kernel.as_ref() != Some(rules),
            (Want::Nothing | Want::Forbidden(_), kernel) => kernel.is_some(),
            (Want::Unclear(_), _) => false,
        };
        let wrong = self.pods.iter().filter(|(_, pod)| differ(pod));
        wrong.map(|(key, pod)| format!("{key}: wanted {:?}, kernel {:?}", pod.want, pod.kernel)).collect()
    }
}

fn place(pod: &Pod) -> Place {
    Place { pid: 7, started: pod.started, netns: pod.netns, cgroup: None }
}

fn desired(key: &Key, pod: &Pod) -> Desired {
    let name = Name { namespace: Some("default".to_owned()), name: key.clone() };
    Desired { name, want: pod.want.clone(), process: None, claim: pod.condition.clone() }
}

/// Faults while an agent runs, its end between two steps, faults while none runs, and its return.
fn round(seed: u64) {
    let mut world = World::new(seed);
    let mut agent = world.start();
    for _ in 0..FAULTS / 2 {
        for _ in 0..world.dice.roll(8) {
            world.turn(&mut agent);
        }
        world.fault(Some(&mut agent));
    }
    for _ in 0..world.dice.roll(8) {
        world.turn(&mut agent);
    }
    world.kill(agent);
    for _ in 0..FAULTS / 2 {
        world.fault(None);
    }
    let mut agent = world.start();
    let end = world.now + DEADLINE;
    // Between its first look at the kernel and the list.
    for _ in 0..world.dice.roll(3) {
        world.turn(&mut agent);
    }
    let key = format!("{:03}", world.dice.roll(PODS));
    world.start_sandbox(&key);
    while world.now < end {
        world.turn(&mut agent);
        let is_quiet = agent.next_list.is_none() && agent.next_compare.is_none() && agent.flying.is_empty();
        // Nothing is left to be done.
        if is_quiet && agent.core.wake(world.now).is_none_or(|wake| wake >= end) {
            break;
        }
    }
    let wrong = world.wrong();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
}

/// 10,000 rounds with TRUEPEER_TEST_ALL; otherwise few of them.
#[test]
fn the_kernels_rules_equal_the_annotations_after_each_return() {
    let rounds = if std::env::var_os("TRUEPEER_TEST_ALL").is_some() { 10_000 } else { 40 };
    (1..=rounds).for_each(|number: u64| round(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
}

/// An agent that starts again must not detach the first for the second.
#[test]
fn of_containers_that_share_a_network_the_first_stays_attached() {
    let (now, mut dice) = (Instant::now(), Dice(1));
    let pod = |want| Pod { want, condition: None, started: 7, netns: 7, kernel: None };
    let (first, second) = (rules(&mut dice), rules(&mut dice));
    let mut core = Core::new(9, Some(vec![status(7, Some(&first))]), now);
    for (key, rules) in [("a", first), ("b", second)] {
        let key = key.to_owned();
        let desired = desired(&key, &pod(Want::Attach(rules)));
        core.update(Change::Set(key, desired), now);
    }
    core.update(Change::Only(["a".to_owned(), "b".to_owned()].into()), now);
    let place = place(&pod(Want::Nothing));
    let found = core.missing(now).into_keys();
    let found = found.map(|key| (key, Found { place: place.clone(), has_address: true }));
    assert_eq!(core.found(found.collect(), now), [("adopt", "ok")]);
    assert!(core.start_steps(now).is_empty());
}
