//! The contents of the tables.

use super::machine::Machine;
use super::table::Table;
use crate::args::Plan;
use crate::contestant::{REFERENCE, baseline_of, is_baseline, own_of};
use crate::metric::Metric;
use crate::rounds::{Results, Spread};
use crate::suites::{Load, Suite};

/// The load and the machine.
pub(crate) fn preface(machines: &[(Suite, Machine)], plan: &Plan) -> String {
    let mut text = String::new();
    for (suite, machine) in machines {
        let facts = machine.facts.iter().map(|(label, value)| format!("{label}: {value}\n"));
        let loads = plan.loads_of(*suite);
        let loads = loads.map(|load| format!("{}: {}\n", load.name(), load.describe(&plan.scale)));
        text.extend([format!("[{}]\n", suite.name())].into_iter().chain(facts).chain(loads));
    }
    text
}

/// The heading of the summary, and the meaning of its numbers.
pub(super) const SUMMARY: &str = "Ratios to no proxy";
pub(super) const SUMMARY_EXPLAINED: &str =
    "Median of the rounds' ratios [lowest–highest]; of what a proxy alone has, the values";

/// The summary of each suite, and a table for each load.
pub(crate) fn tables(plan: &Plan, results: &Results) -> String {
    let mut text = String::new();
    for suite in plan.suites() {
        if let Some(summary) = summary(plan, results, suite) {
            text += &format!("\n{SUMMARY}. {SUMMARY_EXPLAINED}\n\n{summary}");
        }
        if let Some(table) = against_reference(plan, results, suite) {
            text += &format!("\n{AGAINST_REFERENCE}. {AGAINST_REFERENCE_EXPLAINED}\n\n{table}");
        }
        for load in plan.loads_of(suite) {
            text += &format!(
                "\n{}: {}\n\n{}",
                load.name(),
                load.describe(&plan.scale),
                of_load(plan, results, load)
            );
            for note in notes(plan, results, load) {
                text += &format!("{note}\n");
            }
        }
    }
    text
}

/// A suite's loads against its contestants, and truepeer against the best of the other relays: of all, and of
/// those that lost nothing.
pub(super) fn summary(plan: &Plan, results: &Results, suite: Suite) -> Option<String> {
    let mut peers = plan.contestants_of(suite);
    peers.retain(|&who| plan.contestants[who].name != baseline_of(suite));
    let own = plan.contestants.iter().position(|who| who.name == own_of(suite));
    let headings = peers.iter().map(|&who| plan.contestants[who].label.clone());
    let against = own
        .map(|own| [format!("{} / best other", plan.contestants[own].label), "/ best without ✗".to_owned()]);
    let mut table =
        Table::with_heading([String::new()].into_iter().chain(headings).chain(against.into_iter().flatten()));
    let mut any = false;
    for load in plan.loads_of(suite) {
        any = true;
        let mut row = vec![name_with_direction(load)];
        row.extend(peers.iter().map(|&who| standing(plan, results, load, who)));
        for is_welcome in [|_: bool| true, |is_right: bool| is_right] {
            row.extend(own.map(|own| {
                let best = against_best_relay(plan, results, load, own, is_welcome);
                best.unwrap_or_else(|| "–".to_owned())
            }));
        }
        table.push(row);
    }
    (any && !peers.is_empty()).then(|| table.render())
}

/// The heading of [`against_reference`].
pub(super) const AGAINST_REFERENCE: &str = "Ratios to NGINX";
/// How to read [`against_reference`].
pub(super) const AGAINST_REFERENCE_EXPLAINED: &str = "Of the same round, median [lowest–highest]; more is better in each line (CPU, p99 and memory: NGINX / contestant)";

/// The contestants of the HTTPS loads against NGINX, round by round. `None`: it did not take part.
pub(super) fn against_reference(plan: &Plan, results: &Results, suite: Suite) -> Option<String> {
    let mut others = plan.contestants_of(suite);
    let reference = others.iter().copied().find(|&who| plan.contestants[who].name == REFERENCE)?;
    others.retain(|&who| who != reference && !is_baseline(&plan.contestants[who].name));
    let labels = others.iter().map(|&who| plan.contestants[who].label.clone());
    let mut table = Table::with_heading([String::new()].into_iter().chain(labels));
    for load in plan.loads_of(suite) {
        let of_cpu = (load != Load::HttpsRate).then_some(Metric::CpuPerOne);
        let metrics = [Some(load.headline()), of_cpu.filter(|metric| load.metrics().contains(metric))];
        for metric in metrics.into_iter().flatten() {
            let ratio = |&who: &usize| {
                let (one, other) = if metric.is_better_low() { (reference, who) } else { (who, reference) };
                results.ratio_of(plan, load, metric, one, other).map_or("failed".to_owned(), write_ratio)
            };
            let name = format!("{}: {}", load.name(), metric.title());
            table.push([name].into_iter().chain(others.iter().map(ratio)).collect());
        }
    }
    (!others.is_empty()).then(|| table.render())
}

/// The load, and its metric if that isn't a speed.
fn name_with_direction(load: Load) -> String {
    let metric = load.headline();
    if metric.is_better_low() {
        format!("{}: {} (less is better)", load.name(), metric.title())
    } else {
        load.name().to_owned()
    }
}

/// The ratio to no proxy, or the value if no proxy has none.
fn standing(plan: &Plan, results: &Results, load: Load, who: usize) -> String {
    if !plan.contestants[who].carries(load) {
        return "–".to_owned();
    }
    let metric = load.headline();
    let text = if metric.is_contestants_own() {
        results.spread(load, who, metric).map(|spread| write_spread(spread, |value| metric.write(value)))
    } else {
        results.ratio_to_no_proxy(plan, load, who).map(write_ratio)
    };
    let mark = if results.complaints(plan, load, who).is_empty() { "" } else { " ✗" };
    text.map_or("failed".to_owned(), |text| text + mark)
}

fn write_ratio(spread: Spread) -> String {
    write_spread(spread, |ratio| format!("{ratio:.2}"))
}

fn write_spread(spread: Spread, write: impl Fn(f64) -> String) -> String {
    format!("{} [{}–{}]", write(spread.median), write(spread.low), write(spread.high))
}

/// The one with the best median. A contestant without a hop is compared with `truepeer run`, not here.
fn against_best_relay(
    plan: &Plan,
    results: &Results,
    load: Load,
    own: usize,
    is_welcome: impl Fn(bool) -> bool,
) -> Option<String> {
    let metric = load.headline();
    let is_right = |who: usize| results.complaints(plan, load, who).is_empty();
    let strength = |who: usize| {
        let median = results.spread(load, who, metric)?.median;
        Some((who, if metric.is_better_low() { -median } else { median }))
    };
    let others = (0..plan.contestants.len())
        .filter(|&who| {
            let contestant = &plan.contestants[who];
            !contestant.is_truepeer() && contestant.is_relay() && is_welcome(is_right(who))
        })
        .filter_map(strength);
    let (best, _) = others.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let spread = results.ratio(plan, load, own, best)?;
    let mark = if is_right(best) { "" } else { " ✗" };
    Some(format!("{} ({}{mark})", write_ratio(spread), plan.contestants[best].label))
}

/// The table of one load.
pub(super) fn of_load(plan: &Plan, results: &Results, load: Load) -> String {
    let headline = load.headline();
    let has_ratio = !headline.is_contestants_own();
    let ratio_heading = has_ratio.then(|| format!("{} / no proxy", headline.title()));
    let metrics = load.metrics().iter().map(|metric| metric.title().to_owned());
    let mut table = Table::with_heading([String::new()].into_iter().chain(ratio_heading).chain(metrics));
    for (number, who) in plan.contestants.iter().enumerate().filter(|(_, who)| who.carries(load)) {
        let mut row = vec![who.label.clone()];
        if has_ratio {
            row.push(standing(plan, results, load, number));
        }
        let is_proxy = who.is_between();
        row.extend(load.metrics().iter().map(|&metric| value(results, load, number, metric, is_proxy)));
        table.push(row);
    }
    table.render()
}

fn value(results: &Results, load: Load, who: usize, metric: Metric, is_proxy: bool) -> String {
    if metric.is_contestants_own() && !is_proxy {
        return String::new();
    }
    results.spread(load, who, metric).map_or("–".to_owned(), |spread| metric.write(spread.median))
}

/// The faults.
pub(super) fn notes(plan: &Plan, results: &Results, load: Load) -> Vec<String> {
    let of = |who: usize| {
        let label = &plan.contestants[who].label;
        results
            .complaints(plan, load, who)
            .into_iter()
            .map(move |complaint| format!("✗ {label}: {complaint}"))
    };
    (0..plan.contestants.len()).flat_map(of).collect()
}
