//! The pods of a node: as the API server has them, and as the node has them.

use std::collections::VecDeque;

use super::*;

/// One pod.
pub(super) struct Pod {
    pub(super) want: Want,
    /// As its condition says.
    pub(super) condition: Option<Claim>,
    pub(super) sandbox: Option<Sandbox>,
}

/// What becomes of a condition that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Taken,
    Refused,
    /// Another one was faster: refused, and heard of later.
    Conflict,
    /// Written, and said to have failed.
    Half,
}

/// How the API server does.
pub(super) struct Api {
    pub(super) refuses_until: Instant,
    pub(super) list_takes: Duration,
    /// How much later the watch tells a change.
    pub(super) latency: Duration,
    /// The watch tells nothing more, until it is opened again.
    pub(super) is_stale: bool,
    pub(super) writes: Writes,
}

/// See the module.
pub(super) struct World {
    pub(super) pods: BTreeMap<Key, Pod>,
    pub(super) dice: Dice,
    begun: Instant,
    pub(super) now: Instant,
    pub(super) api: Api,
    /// What the watch has not told yet; `None`: the pod was deleted.
    pub(super) untold: VecDeque<(Instant, Key, Option<Desired>)>,
    /// Pods of which a step has failed.
    pub(super) failed: BTreeSet<Key>,
    /// Processes and pods that there were so far.
    count: u64,
    /// Numbers of network namespaces that have ended.
    free: Vec<u64>,
}

pub(super) fn rules(dice: &mut Dice) -> Rules {
    let allow = ["10.0.0.7/32", "0.0.0.0/0", "10.0.0.0/24"][dice.roll(3)];
    Rules {
        ports: [Port::Tcp([80, 81][dice.roll(2)])].into(),
        allow: [allow.parse().unwrap()].into(),
        header: [Header::Require, Header::Optional][dice.roll(2)],
        ..Rules::default()
    }
}

pub(super) fn want(dice: &mut Dice) -> Want {
    match dice.roll(16) {
        0..4 => Want::Nothing,
        4 => Want::Forbidden("the operator's limit".to_owned()),
        // An attachment stays, and no other begins.
        5 => Want::Unclear("a typo".to_owned()),
        _ => Want::Attach(rules(dice)),
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(1);
        let api = Api {
            refuses_until: now,
            list_takes: Duration::ZERO,
            latency: Duration::ZERO,
            is_stale: false,
            writes: Writes::Taken,
        };
        let mut world = Self {
            pods: BTreeMap::new(),
            dice: Dice(seed | 1),
            begun,
            now,
            api,
            untold: VecDeque::new(),
            failed: BTreeSet::new(),
            count: 0,
            free: Vec::new(),
        };
        for _ in 0..PODS {
            let want = want(&mut world.dice);
            let key = world.create(want);
            let pod = world.pods.get_mut(&key).unwrap();
            let sandbox = pod.sandbox.as_mut().unwrap();
            (sandbox.has_process, sandbox.has_address) = (begun, begun);
            sandbox.started = world.count;
            if let Want::Attach(rules) = &pod.want {
                sandbox.attach(rules.clone());
            }
        }
        world
    }

    pub(super) fn any(&mut self) -> Key {
        let number = self.dice.roll(self.pods.len());
        self.pods.keys().nth(number).unwrap().clone()
    }

    /// A pod whose sandbox starts.
    pub(super) fn create(&mut self, want: Want) -> Key {
        self.count += 1;
        let key = format!("{:05}", self.count);
        self.pods.insert(key.clone(), Pod { want, condition: None, sandbox: None });
        self.start_sandbox(&key);
        self.tell(&key);
        key
    }

    pub(super) fn delete(&mut self, key: &Key) {
        self.end_sandbox(key);
        self.pods.remove(key);
        self.tell(key);
    }

    /// Another one: the attachment ends with the one before. As a rule, its network namespace gets a number
    /// that has just become free.
    pub(super) fn start_sandbox(&mut self, key: &Key) {
        self.end_sandbox(key);
        self.count += 1;
        let number = self.free.pop_if(|_| self.dice.roll(4) != 0).unwrap_or(self.count);
        let has_process = self.now + self.dice.up_to(300);
        let mut sandbox = Sandbox::new(self.ticks(has_process) + self.count, number, has_process);
        sandbox.has_address = sandbox.has_process + self.dice.up_to(300);
        if let Some(pod) = self.pods.get_mut(key) {
            pod.sandbox = Some(sandbox);
        }
    }

    pub(super) fn end_sandbox(&mut self, key: &Key) {
        let ended = self.pods.get_mut(key).and_then(|pod| pod.sandbox.take());
        self.free.extend(ended.map(|sandbox| sandbox.netns));
    }

    pub(super) fn sandbox(&mut self, key: &Key) -> Option<&mut Sandbox> {
        self.pods.get_mut(key)?.sandbox.as_mut()
    }

    /// The watch will tell of a pod.
    pub(super) fn tell(&mut self, key: &Key) {
        if !self.api.is_stale {
            let last = self.untold.back().map_or(self.now, |(time, ..)| *time);
            let time = last.max(self.now + self.api.latency);
            let desired = self.pods.get(key).map(|pod| desired(key, pod));
            self.untold.push_back((time, key.clone(), desired));
        }
    }

    /// What a list has that is asked for now. The watch after it tells what comes later.
    pub(super) fn list(&mut self) -> Vec<(Key, Desired)> {
        self.untold.clear();
        self.api.is_stale = false;
        self.pods.iter().map(|(key, pod)| (key.clone(), desired(key, pod))).collect()
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.now < self.api.refuses_until
    }

    /// The API server is well a moment after this.
    pub(super) fn heal(&mut self) {
        let outage = self.dice.up_to(1000);
        let list_takes = self.dice.up_to(500);
        let latency = self.dice.up_to(50);
        let refuses_until = self.now + if self.dice.one_in(2) { outage } else { Duration::ZERO };
        self.api = Api { refuses_until, list_takes, latency, is_stale: false, writes: Writes::Taken };
    }

    /// The clock in which processes are started, finer than the kernel's: no two start at once.
    pub(super) fn ticks(&self, time: Instant) -> u64 {
        u64::try_from((time - self.begun).as_millis()).unwrap_or(u64::MAX) * 1_000_000
    }

    /// Whether a step fails: in a life of the agent, one of a pod, since the next one waits ever longer.
    pub(super) fn fails(&mut self, key: &Key) -> bool {
        self.dice.one_in(50) && self.failed.insert(key.clone())
    }

    /// `truepeer attach status --all`, and the time before it. It may fail.
    pub(super) fn status_of_all(&mut self) -> Option<(u64, Vec<Status>)> {
        let is_told = !self.dice.one_in(8);
        let attached = self.pods.values().filter_map(|pod| pod.sandbox.as_ref());
        let attached = attached.filter(|sandbox| sandbox.is_attached());
        is_told.then(|| (self.ticks(self.now), attached.map(Sandbox::status).collect()))
    }

    pub(super) fn inherited(&mut self) -> Option<Inherited> {
        let (ticks, all) = self.status_of_all()?;
        Inherited::of(ticks, all)
    }

    /// What /proc shows.
    pub(super) fn places(&self) -> BTreeMap<Key, Place> {
        let sandboxes = self.pods.iter().filter_map(|(key, pod)| Some((key, pod.sandbox.as_ref()?)));
        let visible = sandboxes.filter(|(_, sandbox)| sandbox.has_process <= self.now);
        visible.map(|(key, sandbox)| (key.clone(), sandbox.place())).collect()
    }
}

fn desired(key: &Key, pod: &Pod) -> Desired {
    let name = Name { namespace: Some("default".to_owned()), name: key.clone() };
    let (claim, has_condition) = (pod.condition.clone(), pod.condition.is_some());
    Desired { name, want: pod.want.clone(), process: None, claim, has_condition, is_serving: true }
}
