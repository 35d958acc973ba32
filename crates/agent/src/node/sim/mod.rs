//! The agent's memory, with the real planner, a kernel, an API server that fails, and agents that are killed
//! between any two steps.
//!
//! ```text
//!  World: pods, conditions ──list, watch──▶ Life: Core and its steps ──▶ each Sandbox's kernel
//!            ▲ faults                          │
//!            └─────────── conditions ◀─────────┘
//! ```
//!
//! 5 s after the last return of the agent, and the API server's list of pods, the kernel's rules must equal
//! the annotations, and the conditions must say so. At no time may a pod be called attached for long while
//! its kernel has nothing: its service would send it connections whose headers reach the server.

mod faults;
mod kernel;
mod life;
mod single;
mod world;

use super::super::outcome::Outcome;
use super::super::{CHECK, COMPARE, COMPARE_SOON};
use super::*;
use crate::node::Claim;
use crate::rules::{Header, Rules};

use kernel::Sandbox;
use life::Life;
use world::World;

const PODS: usize = 200;
/// Of the API, in all lives together; beside each, something happens to a pod.
const FAULTS: usize = 20;
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

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    fn up_to(&mut self, milliseconds: usize) -> Duration {
        Duration::from_millis(self.roll(milliseconds + 1) as u64)
    }
}

/// Lives of the agent with faults in them and between them, and its last return.
fn round(seed: u64) {
    let mut world = World::new(seed);
    let lives = 1 + world.dice.roll(3);
    for number in 0..lives {
        let faults = FAULTS * (number + 1) / lives - FAULTS * number / lives;
        let mut life = Life::start(&mut world);
        for _ in 0..faults / 2 {
            for _ in 0..world.dice.roll(12) {
                life.turn(&mut world);
            }
            world.fault(Some(&mut life));
            world.event(Some(&mut life));
        }
        for _ in 0..world.dice.roll(8) {
            life.turn(&mut world);
        }
        life.end(&mut world);
        for _ in faults / 2..faults {
            world.now += world.dice.up_to(50);
            world.fault(None);
            world.event(None);
        }
    }
    last_life(&mut world);
}

fn last_life(world: &mut World) {
    world.heal();
    let mut life = Life::start(world);
    // Between its first look at the kernel and the list.
    for _ in 0..world.dice.roll(20) {
        life.turn(world);
    }
    let key = world.any();
    world.start_sandbox(&key);
    while !life.has_heard_all() {
        life.turn(world);
    }
    let end = world.now + DEADLINE;
    while world.now < end && !life.is_through(world, end) {
        life.turn(world);
    }
    let wrong = life.wrong(world);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// 10,000 rounds with TRUEPEER_TEST_ALL, otherwise some hundred. TRUEPEER_SIM_SEED: this one alone.
#[test]
fn the_kernels_rules_equal_the_annotations_after_each_return() {
    let one = std::env::var("TRUEPEER_SIM_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = if std::env::var_os("TRUEPEER_TEST_ALL").is_some() { 10_000 } else { 300 };
    let seeds = (1..=rounds).map(|number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let seeds: Vec<u64> = one.map_or_else(|| seeds.collect(), |seed| vec![seed]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let some = |first: usize| seeds.iter().skip(first).step_by(threads);
        let workers: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || some(first).try_for_each(run))).collect();
        for worker in workers {
            if let Err(failed) = worker.join().unwrap() {
                panic!("{failed}");
            }
        }
    });
}

fn run(seed: &u64) -> Result<(), String> {
    let outcome = std::panic::catch_unwind(|| round(*seed));
    outcome.map_err(|_| format!("TRUEPEER_SIM_SEED={seed} runs this round alone"))
}

/// An agent that starts again must not detach the first for the second.
#[test]
fn of_containers_that_share_a_network_the_first_stays_attached() {
    let (now, mut dice) = (Instant::now(), Dice(1));
    let (first, second) = (world::rules(&mut dice), world::rules(&mut dice));
    let mut sandbox = Sandbox::new(7, 7, now);
    sandbox.attach(first.clone());
    let mut core = Core::new(9, Inherited::of(8, vec![sandbox.status()]), now);
    for (key, rules) in [("a", first), ("b", second)] {
        let name = Name { namespace: None, name: key.to_owned() };
        let want = Want::Attach(rules);
        let (has_condition, is_serving) = (false, true);
        let desired = Desired { name, want, process: None, claim: None, has_condition, is_serving };
        core.update(Change::Set(key.to_owned(), desired), now);
    }
    core.update(Change::Only(["a".to_owned(), "b".to_owned()].into()), now);
    let found = core.missing(now).into_keys();
    let found = found.map(|key| (key, Found { place: sandbox.place(), addresses: None }));
    assert_eq!(core.found(found.collect(), now), [("adopt", "ok")]);
    assert!(core.start_steps(now).is_empty());
}
