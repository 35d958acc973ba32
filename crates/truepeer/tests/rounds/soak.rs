//! All kinds of load, with faults, reloads and upgrades: what truepeer and the kernel hold stays flat, and is
//! given back.
//!
//! ```text
//! idle │ load │ load on one process, reloaded │ load, a new process in each step │ load on the last one, reloaded │ idle
//! ```
//! The load lasts 16 s after [`SETTLED`]; `SOAK_SECONDS` sets another time. `SOAK_CHARTS=DIRECTORY` writes
//! charts there. `make soak` sets both.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Running, Test};

use crate::chart;
use crate::descriptors::Descriptors;
use crate::faults::Faults;
use crate::flat;
use crate::load::{Load, lock};
use crate::samples::{Objects, Observer, Sample};
use crate::stage::{NOWHERE, Stage};

pub(crate) fn tests() -> Vec<Test> {
    let test =
        Test::new("all_kinds_of_load_leave_nothing_behind", |bed| leaves_nothing_behind(bed, length()));
    let test = test.time_limit(3 * length() + Duration::from_secs(300));
    let test = test.needs_program("haproxy").needs_program("dnsdist").needs_program("unbound");
    vec![test.needs_program("nginx").needs_program("ss")]
}

fn length() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(16))
}

/// Steps of a part of the load: each is a reload, or an upgrade. Each waits for all clients, so a short run
/// has fewer.
fn steps(length: Duration) -> usize {
    if length < Duration::from_secs(60) { 4 } else { 6 }
}

/// Of these steps each third one has a process that stands still, and a reload that fails.
const FAULTY_EACH: usize = 3;
const STANDS_STILL: Duration = Duration::from_millis(500);
/// Looks in the whole time, unless they would be too close together.
const LOOKS: u32 = 240;
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Looks in a step. A busy machine needs long for each.
const LOOKS_OF_A_STEP: usize = 4;
/// dnsdist checks each second, from another port each time, and a flow ends after five seconds of silence.
const CHECKED: Duration = Duration::from_secs(8);
/// Load before the first step. UDP flows and ended sessions in the BPF tables stay for five seconds and until
/// the next sweep. Before that their number grows, which looks like a leak.
const SETTLED: Duration = Duration::from_secs(10);

fn leaves_nothing_behind(bed: &Bed, length: Duration) -> anyhow::Result<()> {
    mount_bpf_in_place()?;
    let stage = Stage::start(bed, "auto", "20s")?;
    // The first process is started as the last one is: with the same descriptors.
    let mut running = upgraded(bed, &stage, &stage.start_by_manager(bed)?)?;
    let observer = Observer::new(&stage.host, bed.dir().join("admin.sock"));
    let load = Load::new(&stage)?;
    let faults = Faults::new(bed, &stage, &load);
    let watch = Watch::new(&observer, &load, running.pid());
    let idle = watch.idle_look()?;
    let outcome = thread::scope(|scope| {
        watch.begin_step(running.pid());
        load.start(scope);
        scope.spawn(|| faults.run());
        scope.spawn(|| watch.look_again_and_again((length / LOOKS).max(LEAST_PAUSE)));
        let turns = Turns { bed, stage: &stage, load: &load, faults: &faults, watch: &watch };
        let outcome = turns.take(&mut running, length, steps(length));
        load.end();
        watch.is_over.store(true, Relaxed);
        outcome
    });
    // Charts of a failed run show more than its message.
    if let Some(directory) = std::env::var_os("SOAK_CHARTS") {
        chart::write(&watch.samples(), &PathBuf::from(directory))?;
    }
    eprintln!("soak: each fault {} times; {}", faults.rounds(), load.summary());
    load.verdict(&stage.clients_that_asked())?;
    outcome?;
    let is_idle = || watch.look().is_ok_and(|now| now.open == 0);
    let waited = bed.wait_for("all sessions to end", is_idle);
    waited.with_context(|| stage.truepeer(&["sessions"]).run(bed).unwrap_or_default())?;
    let failure = lock(&watch.failure).take().map(|error| format!("{error:#}"));
    flat::stays_flat(&watch.samples(), steps(length))
        .with_context(|| format!("the last look that failed: {failure:?}"))?;
    is_given_back(&idle, bed, &watch)
}

/// The most of everything that the first process and the kernel held before the load.
struct Idle {
    sockets: u64,
    flows: u64,
    descriptors: Descriptors,
    objects: Objects,
}

/// What the load goes through.
struct Turns<'a> {
    bed: &'a Bed,
    stage: &'a Stage,
    load: &'a Load<'a>,
    faults: &'a Faults<'a>,
    watch: &'a Watch<'a>,
}

impl Turns<'_> {
    /// [`SETTLED`]; then half of the time one process, a quarter with a new one in each step, a quarter the
    /// last one.
    fn take(&self, running: &mut Running, length: Duration, steps: usize) -> anyhow::Result<()> {
        // The last variant has the listeners of the first one.
        let mut variant = 1;
        thread::sleep(SETTLED);
        for (part, share) in
            [("one process", length / 2), ("upgrades", length / 4), ("the last process", length / 4)]
        {
            let rounds = self.faults.rounds();
            for step in 0..steps {
                let until = Instant::now() + share / u32::try_from(steps)?;
                self.load.begin_phase(format!("{part}, step {step}"))?;
                if part == "upgrades" {
                    *running = upgraded(self.bed, self.stage, running)?;
                } else {
                    variant += 1;
                    self.stage.write_config(self.bed, variant)?;
                    self.stage.truepeer(&["reload"]).run(self.bed)?;
                }
                self.watch.begin_step(running.pid());
                if step.is_multiple_of(FAULTY_EACH) {
                    self.stands_still(running)?;
                    self.is_not_reloaded(variant)?;
                }
                thread::sleep(until.saturating_duration_since(Instant::now()));
                self.watch.wait_for_looks(self.bed)?;
            }
            // Those begun in this part have ended in it.
            let all_faults = || self.faults.rounds() > rounds + 1 || self.load.has_failed();
            self.bed.wait_for(&format!("all faults in the part {part}"), all_faults)?;
        }
        self.load.begin_phase("the end".to_owned())?;
        self.watch.begin_step(running.pid());
        Ok(())
    }

    fn stands_still(&self, running: &Running) -> anyhow::Result<()> {
        running.signal(Signal::STOP)?;
        thread::sleep(STANDS_STILL);
        running.signal(Signal::CONT)
    }

    /// The reload is refused with the reason, and nothing changes. Then the file has the present variant
    /// again.
    fn is_not_reloaded(&self, variant: usize) -> anyhow::Result<()> {
        self.stage.write_wrong_config(self.bed)?;
        let outcome = self.stage.truepeer(&["reload"]).run(self.bed);
        self.stage.write_config(self.bed, variant)?;
        let said = outcome.err().map_or_else(|| "reloaded".to_owned(), |error| format!("{error:#}"));
        ensure!(said.contains(NOWHERE), "a configuration with an error: {said}");
        Ok(())
    }
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
    /// The step of the load, and the process that serves.
    now: Mutex<(usize, i32)>,
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
            now: Mutex::new((0, pid)),
            is_over: false.into(),
            samples: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    fn begin_step(&self, pid: i32) {
        let mut now = lock(&self.now);
        *now = (now.0 + 1, pid);
    }

    fn look(&self) -> anyhow::Result<Sample> {
        let (step, pid) = *lock(&self.now);
        let sample = self.observer.look(pid, step, self.load.done())?;
        lock(&self.samples).push(sample);
        Ok(sample)
    }

    /// The most in [`CHECKED`]: dnsdist's checks come and go.
    fn idle_look(&self) -> anyhow::Result<Idle> {
        let begun = Instant::now();
        let objects = self.observer.objects()?;
        let mut most = Idle { sockets: 0, flows: 0, descriptors: Descriptors::default(), objects };
        while begun.elapsed() < CHECKED {
            let look = self.look()?;
            most.sockets = most.sockets.max(look.sockets);
            most.flows = most.flows.max(look.flows);
            most.descriptors = most.descriptors.most(&self.descriptors()?);
            thread::sleep(LEAST_PAUSE);
        }
        Ok(most)
    }

    fn descriptors(&self) -> anyhow::Result<Descriptors> {
        self.observer.descriptors(lock(&self.now).1)
    }

    fn look_again_and_again(&self, pause: Duration) {
        while !self.is_over.load(Relaxed) {
            if let Err(error) = self.look() {
                *lock(&self.failure) = Some(error);
            }
            thread::sleep(pause);
        }
    }

    /// Waits for enough looks in this step.
    fn wait_for_looks(&self, bed: &Bed) -> anyhow::Result<()> {
        let step = lock(&self.now).0;
        let of_step = || lock(&self.samples).iter().rev().take_while(|sample| sample.step == step).count();
        bed.wait_for("looks in this step", || of_step() >= LOOKS_OF_A_STEP)
    }

    fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).clone()
    }
}

/// The last process, idle, holds no more of anything than the first one did before the load, and its host has
/// no more TCP sockets and flows, and the same rules, routes and pins. dnsdist's own checks go on.
fn is_given_back(idle: &Idle, bed: &Bed, watch: &Watch<'_>) -> anyhow::Result<()> {
    let mut more = vec!["nothing was looked at".to_owned()];
    let outcome = bed.wait_for("what was taken to be given back", || {
        more = is_more(idle, watch).unwrap_or_else(|error| vec![format!("{error:#}")]);
        more.is_empty()
    });
    outcome.with_context(|| format!("more than before the load: {}", more.join("; ")))
}

fn is_more(idle: &Idle, watch: &Watch<'_>) -> anyhow::Result<Vec<String>> {
    let (now, objects) = (watch.look()?, watch.observer.objects()?);
    let mut more = watch.descriptors()?.more_than(&idle.descriptors, flat::pooled_pipes()?);
    for (name, before, now) in [
        ("TCP sockets", idle.sockets, now.sockets),
        ("UDP flows", idle.flows, now.flows),
        ("sessions in the tables of the BPF programs", 0, now.kernel.spliced),
        ("connections in these tables", 0, now.kernel.keys),
    ] {
        if now > before {
            more.push(format!("{name}: {now} (before: {before})"));
        }
    }
    if objects != idle.objects {
        more.push(format!("{objects:?} (before: {:?})", idle.objects));
    }
    Ok(more)
}
