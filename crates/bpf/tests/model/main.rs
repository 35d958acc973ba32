//! The TCP programs against a model of them, over generated histories: adversarial segments, damage, loss,
//! and any answers of a kernel. After each step both must agree on the packet, to the last byte; on its
//! damage; on the tables; and on the counters.
//!
//! `MODEL_SEGMENTS=N` runs this many segments, `MODEL_FROM=N` begins with another history, `MODEL_SEED=N`
//! runs only one. A failing history is printed without the steps that it doesn't need.

mod expect;
mod header;
mod history;
mod segment;
mod tcp;

use std::fs;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Place;
use truepeer_bpf::test::tcp::{Made, Programs, Tuple};
use truepeer_policy::{Claims, HeaderRule, PrefixSet};
use truepeer_testbed::{Bed, Test, skip};

use crate::history::{Maker, PORT, Step};
use crate::segment::Segment;
use crate::tcp::{Fate, Model, Rules};

const HEADER_MAX: usize = 500;
const TIMEOUT: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(700);
const STEPS: usize = 40;
/// More connections than a history has, so that no table forgets one.
const MANY: NonZeroU32 = NonZeroU32::MIN.saturating_add((1 << 20) - 1);

fn main() -> ExitCode {
    let segments = || std::env::var("MODEL_SEGMENTS").ok().and_then(|count| count.parse().ok());
    let test = |name: &str, is_optional: bool| {
        let count = segments().unwrap_or(500_000);
        Test::new(name, move |bed| agree(bed, is_optional, count))
            .time_limit(Duration::from_secs(110 + count / 5000))
    };
    truepeer_testbed::main(vec![
        test("programs_and_model_agree_where_a_header_is_required", false),
        test("programs_and_model_agree_where_a_header_is_optional", true),
    ])
}

fn agree(bed: &Bed, is_optional: bool, count: u64) -> Result<()> {
    let mut stand = Stand::make(bed, is_optional)?;
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let only = number("MODEL_SEED");
    let mut seed = only.unwrap_or(number("MODEL_FROM").unwrap_or(0) | u64::from(is_optional) << 40);
    let mut segments = 0;
    let mut seen = std::collections::BTreeMap::new();
    while segments < count {
        let (steps, outcome) = stand.live(seed)?;
        if let Err(problem) = outcome {
            let (steps, problem) = stand.shrink(seed, steps, problem)?;
            let lines: Vec<String> = steps.iter().map(show).collect();
            anyhow::bail!("MODEL_SEED={seed}: {problem:#}\n{}", lines.join("\n"));
        }
        segments += steps.iter().filter(|step| matches!(step, Step::In(_) | Step::Out(_))).count() as u64;
        for (name, times) in &stand.model.counters {
            *seen.entry(*name).or_insert(0) += times;
        }
        seed += 1;
        if only.is_some() {
            return Ok(());
        }
    }
    println!("{segments} segments, {seen:?}");
    // All paths were taken. Otherwise the histories prove little.
    for name in [
        "connections",
        "header_v1",
        "header_v2",
        "guessed_right",
        "translated",
        "header_split",
        "named_itself",
        "client_not_showable",
        "acks_held",
        "early_segments",
        "refused_no_header",
        "refused_malformed",
        "refused_too_long",
        "refused_timeout",
        "refused_claim",
        "refused_split_under_syn_cookies",
        "refused_redirected",
        "refused_stray",
        "refused_damaged",
        "not_taken",
        "begun_again",
        "refused_after_wait",
    ] {
        let never = match name {
            "refused_too_long" => is_optional,
            "refused_after_wait" => !is_optional,
            _ => false,
        };
        ensure!(
            count < 100_000 || never || seen.get(name).is_some_and(|times| *times > 10),
            "{name} is not tried: {seen:?}"
        );
    }
    Ok(())
}

struct Stand {
    programs: Programs,
    rules: Rules,
    model: Model,
    counted: Vec<(&'static str, u64)>,
}

impl Stand {
    fn make(bed: &Bed, is_optional: bool) -> Result<Stand> {
        if !truepeer_bpf::are_built_in() {
            return skip("built without clang: apt-get install clang libbpf-dev");
        }
        if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
            return skip("needs CAP_BPF in the initial user namespace: run as root");
        }
        let pins = bed.dir().join("bpf");
        fs::create_dir_all(&pins)?;
        rustix::mount::mount("bpf", &pins, "bpf", rustix::mount::MountFlags::empty(), None)?;
        let senders = PrefixSet::from_iter(["0.0.0.0/0".parse::<ipnet::IpNet>()?, "::/0".parse()?]);
        let rules = truepeer_bpf::Rules {
            tcp_ranges: Vec::new(),
            udp_ranges: Vec::new(),
            tcp_ports: [PORT].into(),
            udp_ports: Default::default(),
            senders,
            header: if is_optional { HeaderRule::Optional } else { HeaderRule::Require },
            exceptions: Default::default(),
            required_tlvs: Vec::new(),
            claims: Claims::default(),
            header_timeout: TIMEOUT,
            header_wait: WAIT,
            header_max: HEADER_MAX,
            refuse_unshowable: false,
            shows_destination: false,
            udp_silence: Duration::from_secs(60),
            own_addresses: Default::default(),
            max_flows: MANY,
            max_udp_flows: MANY,
        };
        let programs = Programs::load(&Place::here(&pins.join("truepeer"))?, &rules)?;
        let counted = programs.counters()?;
        let rules = Rules {
            is_optional,
            header_max: HEADER_MAX,
            header_timeout_ns: u64::try_from(TIMEOUT.as_nanos())?,
            header_wait_ns: u64::try_from(WAIT.as_nanos())?,
        };
        Ok(Stand { programs, rules, model: Model::new(rules), counted })
    }

    fn begin(&mut self, maker: &Maker) -> Result<()> {
        self.programs.forget(&maker.tuple())?;
        self.programs.answer(maker.kernel)?;
        self.model = Model::new(self.rules);
        self.counted = self.programs.counters()?;
        Ok(())
    }

    /// Generates a history and runs it. The outer error is the test's own.
    fn live(&mut self, seed: u64) -> Result<(Vec<Step>, Result<()>)> {
        let mut maker = Maker::new(seed);
        self.begin(&maker)?;
        let (tuple, mut kernel, mut steps) = (maker.tuple(), maker.kernel, Vec::new());
        for _ in 0..STEPS {
            let step = maker.next(&self.model);
            steps.push(step.clone());
            if let Err(problem) = self.step(&step, &tuple, &mut kernel, Some(&mut maker)) {
                return Ok((steps, Err(problem)));
            }
        }
        let outcome = self.counts_agree(&tuple);
        Ok((steps, outcome))
    }

    /// Replays generated steps.
    fn play(&mut self, seed: u64, steps: &[Step]) -> Result<Result<()>> {
        let maker = Maker::new(seed);
        self.begin(&maker)?;
        let (tuple, mut kernel) = (maker.tuple(), maker.kernel);
        for step in steps {
            if let Err(problem) = self.step(step, &tuple, &mut kernel, None) {
                return Ok(Err(problem));
            }
        }
        Ok(self.counts_agree(&tuple))
    }

    /// Leaves out steps that the failure doesn't need.
    fn shrink(
        &mut self,
        seed: u64,
        mut steps: Vec<Step>,
        mut problem: anyhow::Error,
    ) -> Result<(Vec<Step>, anyhow::Error)> {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.remove(at);
            match self.play(seed, &fewer)? {
                Err(still) => (steps, problem) = (fewer, still),
                Ok(()) => at += 1,
            }
        }
        Ok((steps, problem))
    }

    fn step(
        &mut self,
        step: &Step,
        tuple: &Tuple,
        kernel: &mut truepeer_bpf::test::tcp::Answers,
        maker: Option<&mut Maker>,
    ) -> Result<()> {
        match step {
            Step::Kernel(answers) => {
                *kernel = *answers;
                self.programs.answer(*answers)?;
            }
            Step::In(frame) => {
                let made = self.programs.comes_in(frame)?;
                let read = Segment::read(frame);
                let fate = read
                    .as_ref()
                    .map_or(Fate::Pass { by: 0 }, |segment| self.model.comes_in(segment, kernel));
                if let (Some(maker), Fate::LastAck { .. }, Some(_)) = (maker, fate, &made.sent) {
                    maker.copy = Some(frame.clone());
                }
                expect::comes_in(frame, &made, fate).with_context(|| format!("{fate:?}"))?;
            }
            Step::Out(frame) => {
                let made: Made = self.programs.goes_out(frame)?;
                let fate = Segment::read(frame)
                    .map_or(Fate::Pass { by: 0 }, |segment| self.model.goes_out(&segment, kernel));
                expect::goes_out(frame, &made, fate).with_context(|| format!("{fate:?}"))?;
            }
            Step::AnswerWasCookie => {
                self.programs.answer_was_a_cookie(tuple)?;
                self.model.answer_was_a_cookie();
            }
            Step::AnswerWasOurs => {
                self.programs.answer_was_ours(tuple)?;
                self.model.answer_was_ours();
            }
            Step::SocketMade => {
                self.programs.socket_made(tuple)?;
                self.model.socket_made();
            }
            Step::SocketEnded => {
                self.programs.socket_ended(tuple)?;
                self.model.socket_ended();
            }
        }
        self.tables_agree(tuple)
    }

    fn tables_agree(&self, tuple: &Tuple) -> Result<()> {
        let model = &self.model;
        let pending = self.programs.pending(tuple)?;
        ensure!(pending == model.pending, "the table has {pending:?},\nthe model {:?}", model.pending);
        let flow = self.programs.flow(tuple)?;
        ensure!(flow == model.flow, "the table has {flow:?},\nthe model {:?}", model.flow);
        let ended = self.programs.ended(tuple)?;
        ensure!(
            ended == model.ended,
            "the table of what has ended has {ended:?},\nthe model {:?}",
            model.ended
        );
        Ok(())
    }

    fn counts_agree(&self, tuple: &Tuple) -> Result<()> {
        let guess = self.programs.guess(tuple.sender)?;
        ensure!(guess == self.model.guess, "guess {guess:?}, not {:?}", self.model.guess);
        for ((name, now), (_, before)) in self.programs.counters()?.iter().zip(&self.counted) {
            let expected = self.model.counters.get(name).copied().unwrap_or_default();
            ensure!(now - before == expected, "{name} has gone up by {}, not {expected}", now - before);
        }
        Ok(())
    }
}

fn show(step: &Step) -> String {
    let (way, frame) = match step {
        Step::In(frame) => ("in ", frame),
        Step::Out(frame) => ("out", frame),
        other => return format!("{other:?}"),
    };
    match Segment::read(frame) {
        Some(segment) => format!("{way} {segment:?}"),
        None => format!("{way} unreadable {frame:02x?}"),
    }
}
