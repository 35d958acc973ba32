//! The order of measurements, and their evaluation. Within a round each load runs on all contestants in turn,
//! so that compared values are seconds apart. Each round starts with another contestant.

use truepeer_testbed::Bed;

use crate::args::Plan;
use crate::contestant::{self, Contestant, REFERENCE, baseline_of};
use crate::load;
use crate::metric::{Metric, Sample};
use crate::place::Place;
use crate::progress::Progress;
use crate::suites::{Load, Scale};

/// How much of an error is shown.
const COMPLAINT_CHARS: usize = 300;

/// One measurement.
struct Cell {
    round: usize,
    load: Load,
    contestant: usize,
    outcome: Result<Sample, String>,
}

/// All measurements.
pub(crate) struct Results {
    cells: Vec<Cell>,
}

/// The median of several rounds, with the lowest and the highest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Measures everything in `plan`.
pub(crate) fn run(bed: &Bed, plan: &Plan) -> anyhow::Result<Results> {
    let mut results = Results { cells: Vec::new() };
    let mut progress = Progress::new(count(plan));
    for round in 0..plan.rounds {
        for &load in &plan.loads {
            let scale = Scale { rate: results.constant_rate(bed, plan, round, load), ..plan.scale };
            for place in 0..plan.contestants.len() {
                let contestant = (place + round) % plan.contestants.len();
                let who = &plan.contestants[contestant];
                if who.carries(load) {
                    progress.step(&format!(
                        "round {}/{} {} {}",
                        round + 1,
                        plan.rounds,
                        load.name(),
                        who.label
                    ));
                    let outcome = try_to_measure(bed, plan, &scale, load, who);
                    results.cells.push(Cell { round, load, contestant, outcome });
                }
            }
        }
    }
    progress.end();
    Ok(results)
}

fn count(plan: &Plan) -> usize {
    let of_load = |load: &Load| plan.contestants.iter().filter(|who| who.carries(*load)).count();
    plan.rounds * plan.loads.iter().map(of_load).sum::<usize>()
}

fn try_to_measure(
    bed: &Bed,
    plan: &Plan,
    scale: &Scale,
    load: Load,
    who: &Contestant,
) -> Result<Sample, String> {
    let mut outcome = measure(bed, plan, scale, load, who);
    for number in 2..=plan.attempts {
        outcome = outcome.or_else(|error| {
            eprintln!("bench: {} with {}: {error:#}: attempt {number}", load.name(), who.label);
            measure(bed, plan, scale, load, who)
        });
    }
    outcome.map_err(|error| on_one_line(&error))
}

fn measure(bed: &Bed, plan: &Plan, scale: &Scale, load: Load, who: &Contestant) -> anyhow::Result<Sample> {
    if let Some(case) = who.on_a_stack() {
        return case.measure(bed, plan.keys, scale);
    }
    let place = Place::make(load, plan.congestion.as_deref())?;
    place.run(|| {
        plan.pin.for_others()?;
        let stand = who.stand_up(bed, plan.common(&place), load)?;
        let mut outcome = load::run(load, &stand, scale);
        // If the contestant has died, that explains other errors.
        if let Some(words) = stand.last_words() {
            match &mut outcome {
                Ok(sample) => sample.flaw(format!("it has ended: {words}")),
                Err(_) => anyhow::bail!("it has ended: {words}"),
            }
        }
        outcome
    })
}

impl Spread {
    /// Needs at least one value.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (&low, &high) = (values.first()?, values.last()?);
        let (left, right) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(left, right), low, high })
    }
}

impl Results {
    /// The rate for a load that has one: a share of the reference's rate in the same round. The reference is
    /// measured just for this if it doesn't take part; 0 if it can't be.
    fn constant_rate(&self, bed: &Bed, plan: &Plan, round: usize, load: Load) -> f64 {
        if load != Load::HttpsRate {
            return 0.0;
        }
        let metric = Load::REFERENCE.headline();
        let known = plan.contestants.iter().position(|who| who.name == REFERENCE);
        let known = known.and_then(|who| self.value(round, Load::REFERENCE, who, metric));
        let reached = known.or_else(|| {
            let sample = measure(bed, plan, &plan.scale, Load::REFERENCE, &contestant::reference()).ok()?;
            sample.value(metric)
        });
        reached.unwrap_or(0.0) * plan.scale.rate_share
    }

    fn of(&self, load: Load, contestant: usize) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.load == load && cell.contestant == contestant)
    }

    fn value(&self, round: usize, load: Load, contestant: usize, metric: Metric) -> Option<f64> {
        let cell = self.of(load, contestant).find(|cell| cell.round == round)?;
        cell.outcome.as_ref().ok()?.value(metric)
    }

    /// A metric over the rounds.
    pub(crate) fn spread(&self, load: Load, contestant: usize, metric: Metric) -> Option<Spread> {
        let samples = self.of(load, contestant).filter_map(|cell| cell.outcome.as_ref().ok());
        Spread::of(samples.filter_map(|sample| sample.value(metric)).collect())
    }

    /// One contestant's headline metric divided by another's, round by round.
    pub(crate) fn ratio(&self, plan: &Plan, load: Load, one: usize, other: usize) -> Option<Spread> {
        self.ratio_of(plan, load, load.headline(), one, other)
    }

    /// The same for any metric.
    pub(crate) fn ratio_of(
        &self,
        plan: &Plan,
        load: Load,
        metric: Metric,
        one: usize,
        other: usize,
    ) -> Option<Spread> {
        let rounds = 0..plan.rounds;
        let ratio =
            |round| Some(self.value(round, load, one, metric)? / self.value(round, load, other, metric)?);
        Spread::of(rounds.filter_map(ratio).collect())
    }

    /// One contestant's headline metric divided by that of "no proxy".
    pub(crate) fn ratio_to_no_proxy(&self, plan: &Plan, load: Load, contestant: usize) -> Option<Spread> {
        let baseline = baseline_of(load.suite());
        self.ratio(plan, load, contestant, plan.contestants.iter().position(|who| who.name == baseline)?)
    }

    /// The faults of a contestant under a load, each once, with the number of rounds that had it if not all
    /// did.
    pub(crate) fn complaints(&self, plan: &Plan, load: Load, contestant: usize) -> Vec<String> {
        let mut complaints: Vec<(String, usize)> = Vec::new();
        for cell in self.of(load, contestant) {
            let own: Vec<String> = match &cell.outcome {
                Ok(sample) => sample.flaws.clone(),
                Err(failure) => vec![format!("failed: {failure}")],
            };
            for complaint in own {
                let kind = kind_of(&complaint);
                match complaints.iter_mut().find(|(text, _)| kind_of(text) == kind) {
                    Some((_, rounds)) => *rounds += 1,
                    None => complaints.push((complaint, 1)),
                }
            }
        }
        let rounds = |(text, rounds)| {
            if rounds == plan.rounds {
                text
            } else {
                format!("{text} (in {rounds} of {} rounds)", plan.rounds)
            }
        };
        complaints.into_iter().map(rounds).collect()
    }

    /// Expected numbers that are missing.
    pub(crate) fn missing(&self, plan: &Plan) -> Vec<String> {
        let mut complaints = Vec::new();
        for cell in &self.cells {
            let who = &plan.contestants[cell.contestant];
            let place = format!("{} with {}", cell.load.name(), who.label);
            match &cell.outcome {
                Err(failure) => complaints.push(format!("{place}: {failure}")),
                Ok(sample) => {
                    let lacks = |metric: &&Metric| !sample.value(**metric).is_some_and(f64::is_finite);
                    let wanted = cell.load.metrics().iter();
                    let wanted = wanted.filter(|metric| who.is_between() || !metric.is_contestants_own());
                    let lacking: Vec<&str> = wanted.filter(lacks).map(|metric| metric.title()).collect();
                    if !lacking.is_empty() {
                        complaints.push(format!("{place}: no {}", lacking.join(", ")));
                    }
                }
            }
        }
        complaints
    }
}

/// An error, often with a program's last output, for a table's note.
fn on_one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(COMPLAINT_CHARS).collect()
}

/// A fault without its numbers, which differ from round to round.
fn kind_of(complaint: &str) -> String {
    complaint.chars().filter(|character| !character.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_lies_between() {
        let spread = Spread::of(vec![4.0, 1.0, f64::NAN, 2.0, 3.0]);
        assert_eq!(spread, Some(Spread { median: 2.5, low: 1.0, high: 4.0 }));
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn complaints_that_differ_in_numbers_are_one() {
        assert_eq!(kind_of("truncates: 3 of 50"), kind_of("truncates: 17 of 50"));
    }
}
