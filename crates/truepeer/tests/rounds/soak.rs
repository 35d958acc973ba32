//! All kinds of load for long, with reloads and upgrades: what truepeer and the kernel hold stays flat, and is given back.
//!
//! ```text
//! idle │ load on one process, reloaded │ load, a new process in each step │ load on the last one │ idle
//! ```
//! `SOAK_SECONDS=1800` runs for longer. `SOAK_CHARTS=DIRECTORY` writes charts there (`make soak` does both).

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Running, Test};

use crate::chart;
use crate::descriptors::Descriptors;
use crate::load::{Load, lock};
use crate::samples::{Observer, Sample};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let test =
        Test::new("all_kinds_of_load_leave_nothing_behind", |bed| leaves_nothing_behind(bed, length()));
    let test = test.time_limit(3 * length() + Duration::from_secs(240));
    let test = test.needs_program("haproxy").needs_program("dnsdist").needs_program("unbound");
    // Long until it has been seen to pass twenty times in a row.
    vec![test.needs_program("nginx").long()]
}

fn length() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(16))
}

/// Steps of a part of the load: each is a reload, or an upgrade.
const STEPS: u32 = 6;
/// Looks in the whole time, unless they would be too close together.
const LOOKS: u32 = 240;
/// Looks in a quarter of the first process' load. A busy machine needs long for each.
const LEAST_LOOKS: usize = 5;
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// dnsdist checks each second, from another port each time, and a flow ends after five seconds of silence.
const CHECKED: Duration = Duration::from_secs(8);
/// Allowed beside a quarter.
const MORE_DESCRIPTORS: u64 = 8;
/// Allowed growth of resident memory between two quarters, beside a tenth.
const MORE_KIB: u64 = 8 << 10;

fn leaves_nothing_behind(bed: &Bed, length: Duration) -> anyhow::Result<()> {
    mount_bpf_in_place()?;
    let stage = Stage::start(bed, "auto", "20s")?;
    // The first process is started as the last one is: with the same descriptors.
    let mut running = upgraded(bed, &stage, &stage.start_by_manager(bed)?)?;
    let observer = Observer::new(&stage.host, bed.dir().join("admin.sock"));
    let load = Load::new(&stage);
    let watch = Watch::new(&observer, &load, running.pid());
    let idle = watch.idle_look()?;
    let outcome = thread::scope(|scope| {
        load.start(scope);
        scope.spawn(|| watch.look_again_and_again((length / LOOKS).max(LEAST_PAUSE)));
        let outcome = in_turns(bed, &stage, &load, &watch, &mut running, length);
        load.end();
        watch.is_over.store(true, Relaxed);
        outcome
    });
    // Charts of a failed run show more than its message.
    if let Some(directory) = std::env::var_os("SOAK_CHARTS") {
        chart::write(&watch.samples(), &PathBuf::from(directory))?;
    }
    eprintln!("soak: {}", load.summary());
    load.verdict(&stage.clients_that_asked())?;
    outcome?;
    let is_idle = || watch.look().is_ok_and(|now| now.open == 0);
    let waited = bed.wait_for("all sessions to end", is_idle);
    waited.with_context(|| stage.truepeer(&["sessions"]).run(bed).unwrap_or_default())?;
    let samples = watch.samples();
    let failure = lock(&watch.failure).take();
    stays_flat(&samples).with_context(|| format!("the last look that failed: {failure:?}"))?;
    is_given_back(&idle, bed, &watch)
}

/// The most of everything that the first process and the kernel held before the load.
struct Idle {
    sockets: u64,
    descriptors: Descriptors,
}

/// Half of the time one process, a quarter with a new one in each step, a quarter the last one.
fn in_turns(
    bed: &Bed,
    stage: &Stage,
    load: &Load<'_>,
    watch: &Watch<'_>,
    running: &mut Running,
    length: Duration,
) -> anyhow::Result<()> {
    // The last variant has the listeners of the first one.
    let mut variant = 1;
    for (part, share) in
        [("one process", length / 2), ("upgrades", length / 4), ("the last process", length / 4)]
    {
        for step in 0..STEPS {
            let until = Instant::now() + share / STEPS;
            load.begin_phase(format!("{part}, step {step}"))?;
            if part == "upgrades" {
                *running = upgraded(bed, stage, running)?;
                watch.pid.store(running.pid(), Relaxed);
            } else {
                variant += 1;
                stage.write_config(bed, variant)?;
                stage.truepeer(&["reload"]).run(bed)?;
            }
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }
    load.begin_phase("the end".to_owned())
}

fn upgraded(bed: &Bed, stage: &Stage, running: &Running) -> anyhow::Result<Running> {
    let new = stage.truepeer(&["serve", "--take-over"]).start(bed)?;
    new.wait_for_log("upgrade: serves in place of process")?;
    let status = running.wait_end()?;
    ensure!(status.success(), "{status}: {}", running.log());
    Ok(new)
}

struct Watch<'a> {
    observer: &'a Observer,
    load: &'a Load<'a>,
    /// The process that serves.
    pid: AtomicI32,
    is_over: AtomicBool,
    samples: Mutex<Vec<Sample>>,
    /// Why the last look that failed did so. Looks fail while one process takes another one's place.
    failure: Mutex<Option<anyhow::Error>>,
}

impl<'a> Watch<'a> {
    fn new(observer: &'a Observer, load: &'a Load<'a>, pid: i32) -> Self {
        Self {
            observer,
            load,
            pid: pid.into(),
            is_over: false.into(),
            samples: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    fn look(&self) -> anyhow::Result<Sample> {
        let sample = self.observer.look(self.pid.load(Relaxed), self.load.done())?;
        lock(&self.samples).push(sample);
        Ok(sample)
    }

    /// The most in [`CHECKED`]: dnsdist's checks come and go.
    fn idle_look(&self) -> anyhow::Result<Idle> {
        let begun = Instant::now();
        let mut most = Idle { sockets: 0, descriptors: Descriptors::default() };
        while begun.elapsed() < CHECKED {
            most.sockets = most.sockets.max(self.look()?.sockets);
            most.descriptors = most.descriptors.most(&self.descriptors()?);
            thread::sleep(LEAST_PAUSE);
        }
        Ok(most)
    }

    fn descriptors(&self) -> anyhow::Result<Descriptors> {
        self.observer.descriptors(self.pid.load(Relaxed))
    }

    fn look_again_and_again(&self, pause: Duration) {
        while !self.is_over.load(Relaxed) {
            if let Err(error) = self.look() {
                *lock(&self.failure) = Some(error);
            }
            thread::sleep(pause);
        }
    }

    fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).clone()
    }
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<_> = samples.iter().map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The first process, under load for half of the time: its last quarter beside its second one.
fn stays_flat(samples: &[Sample]) -> anyhow::Result<()> {
    let first = samples.first().context("no looks")?;
    let of_first: Vec<_> = samples.iter().copied().filter(|sample| sample.pid == first.pid).collect();
    ensure!(of_first.len() >= 4 * LEAST_LOOKS, "{} looks at the first process", of_first.len());
    let quarter = of_first.len() / 4;
    let (early, late) = (&of_first[quarter..2 * quarter], &of_first[3 * quarter..]);
    let resident = |samples: &[Sample]| median(samples, |sample| sample.resident_kib);
    let (before, after) = (resident(early), resident(late));
    ensure!(after <= before + before / 10 + MORE_KIB, "{before} KiB were resident, then {after} KiB");
    let held = |samples: &[Sample]| median(samples, |sample| sample.descriptors);
    let (before, after) = (held(early), held(late));
    ensure!(after <= before + before / 4 + MORE_DESCRIPTORS, "{before} descriptors were open, then {after}");
    let spliced = of_first.iter().map(|sample| sample.spliced).max().unwrap_or_default();
    ensure!(spliced > 0, "no session has left user space");
    Ok(())
}

/// The last process, idle, holds no more of anything than the first one did before the load, and its host has no more TCP sockets.
/// dnsdist's own checks go on.
fn is_given_back(idle: &Idle, bed: &Bed, watch: &Watch<'_>) -> anyhow::Result<()> {
    let mut last = None;
    let outcome = bed.wait_for("what was taken to be given back", || {
        let now = watch.look().and_then(|sample| Ok((sample.sockets, watch.descriptors()?)));
        let is_back = now.as_ref().is_ok_and(|(sockets, descriptors)| {
            *sockets <= idle.sockets && descriptors.more_than(&idle.descriptors).is_empty()
        });
        last = Some(now);
        is_back
    });
    outcome.with_context(|| match last {
        Some(Ok((sockets, descriptors))) => format!(
            "more than before the load: {:?}; TCP sockets of the host: {sockets} (before: {}); all: {descriptors}before: {}",
            descriptors.more_than(&idle.descriptors),
            idle.sockets,
            idle.descriptors
        ),
        last => format!("the last look: {last:?}"),
    })
}
