//! Annotations that change while the agent is killed, again and again: afterwards the kernel has their rules.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::Test;
use crate::agent::Agent;
use crate::bed::{Bed, Pod};
use crate::wait::until;

pub(crate) const TESTS: &[Test] = &[(
    "the_kernel_has_the_rules_of_the_annotations_after_each_kill",
    the_kernel_has_the_rules_of_the_annotations_after_each_kill,
)];

const PODS: usize = 4;
const PORTS: [u16; 2] = [80, 81];

/// Small numbers, always the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Annotations, and the ports whose server then sees the balancer's client.
fn annotations(dice: &mut Dice) -> (Value, Vec<u16>) {
    let of = |ports: &str, allow: &str| json!({"truepeer.dev/ports": ports, "truepeer.dev/allow": allow});
    match dice.roll(5) {
        0 => (json!({"truepeer.dev/ports": null, "truepeer.dev/allow": null}), Vec::new()),
        1 => (of("80", "10.88.0.0/16"), vec![80]),
        2 => (of("81", "10.88.0.0/16"), vec![81]),
        3 => (of("80,81", "any"), vec![80, 81]),
        // The balancer is not listed.
        _ => (of("80,81", "192.0.2.7"), Vec::new()),
    }
}

fn has(pod: &Pod<'_>, attached: &[u16]) -> Result<()> {
    PORTS.iter().try_for_each(|port| {
        if attached.contains(port) { pod.expect_attached(*port) } else { pod.expect_raw(*port) }
    })
}

fn the_kernel_has_the_rules_of_the_annotations_after_each_kill(bed: &Bed) -> Result<()> {
    let swept = sweep(bed);
    bed.cluster.let_write_conditions(true)?;
    swept
}

/// 100 times with TRUEPEER_TEST_ALL, otherwise few times.
fn sweep(bed: &Bed) -> Result<()> {
    let rounds = if std::env::var_os("TRUEPEER_TEST_ALL").is_some() { 100 } else { 4 };
    let mut dice = Dice(0x9e37_79b9);
    let mut agent = Agent::start(bed, &[])?;
    let mut pods = (0..PODS).map(|_| bed.pod(&[])).collect::<Result<Vec<_>>>()?;
    for pod in &mut pods {
        pod.start_sandbox()?;
        PORTS.iter().try_for_each(|port| pod.start_server(*port))?;
    }
    let mut wanted = vec![Vec::new(); PODS];
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        // The API takes no conditions for some rounds.
        match round % 10 {
            6 => bed.cluster.let_write_conditions(false)?,
            9 => bed.cluster.let_write_conditions(true)?,
            _ => {}
        }
        let mut change = |dice: &mut Dice| {
            let number = usize::try_from(dice.roll(PODS as u64))?;
            let (annotations, attached) = annotations(dice);
            wanted[number] = attached;
            pods[number].annotate(annotations)
        };
        (0..dice.roll(4)).try_for_each(|_| change(&mut dice))?;
        // Between any two of its steps.
        std::thread::sleep(Duration::from_millis(dice.roll(700)));
        agent.kill();
        (0..dice.roll(3)).try_for_each(|_| change(&mut dice))?;
        let begun = Instant::now();
        agent = Agent::start(bed, &[])?;
        for (pod, attached) in pods.iter().zip(&wanted) {
            let is_so = until("the annotation's rules", || {
                has(pod, attached)?;
                Ok(Some(()))
            });
            is_so.with_context(|| format!("round {round}: {}: {attached:?}; {}", pod.name, agent.log()))?;
        }
        longest = longest.max(begun.elapsed());
    }
    println!("{rounds} kills; at most {longest:?} from the agent's start to the rules");
    Ok(())
}
