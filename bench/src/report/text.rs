//! The tables' contents.

use super::table::Table;
use crate::args::Plan;
use crate::contestant::{NO_PROXY, TRUEPEER};
use crate::load::Load;
use crate::measure::machine::Machine;
use crate::metric::Metric;
use crate::rounds::{Results, Spread};

/// What is measured on what.
pub(crate) fn preface(machine: &Machine, plan: &Plan) -> String {
    let facts = machine.facts.iter().map(|(label, value)| format!("{label}: {value}\n"));
    let loads = plan.loads.iter().map(|load| format!("{}: {}\n", load.name(), load.describe(&plan.scale)));
    facts.chain(loads).collect()
}

/// The summary, and a table for each load.
pub(crate) fn tables(plan: &Plan, results: &Results) -> String {
    let mut text = String::new();
    if let Some(summary) = summary(plan, results) {
        text += &format!("\nRatios to no proxy: median of the rounds' ratios [lowest–highest]\n\n{summary}");
    }
    for &load in &plan.loads {
        text +=
            &format!("\n{}: {}\n\n{}", load.name(), load.describe(&plan.scale), of_load(plan, results, load));
        for note in notes(plan, results, load) {
            text += &format!("{note}\n");
        }
    }
    text
}

/// All loads against all contestants, and truepeer against the best of the others.
pub(super) fn summary(plan: &Plan, results: &Results) -> Option<String> {
    let peers: Vec<usize> =
        (0..plan.contestants.len()).filter(|&who| plan.contestants[who].name != NO_PROXY).collect();
    let headings = peers.iter().map(|&who| plan.contestants[who].label.clone());
    let mut table = Table::with_heading(
        [String::new()].into_iter().chain(headings).chain(["truepeer / best other".to_owned()]),
    );
    let mut any = false;
    for &load in plan.loads.iter().filter(|load| load.headline().is_some()) {
        any = true;
        let mut row = vec![load.name().to_owned()];
        row.extend(peers.iter().map(|&who| ratio(plan, results, load, who)));
        row.push(against_best(plan, results, load).unwrap_or_else(|| "–".to_owned()));
        table.push(row);
    }
    (any && !peers.is_empty()).then(|| table.render())
}

fn ratio(plan: &Plan, results: &Results, load: Load, who: usize) -> String {
    if !plan.contestants[who].carries(load) {
        return "–".to_owned();
    }
    let mark = if results.complaints(plan, load, who).is_empty() { "" } else { " ✗" };
    results
        .ratio_to_no_proxy(plan, load, who)
        .map_or("failed".to_owned(), |spread| write_ratio(spread) + mark)
}

fn write_ratio(spread: Spread) -> String {
    format!("{:.2} [{:.2}–{:.2}]", spread.median, spread.low, spread.high)
}

/// The best other is the one with the highest median, whether its bytes were right or not.
fn against_best(plan: &Plan, results: &Results, load: Load) -> Option<String> {
    let own = plan.contestants.iter().position(|who| who.name == TRUEPEER)?;
    let is_other = |who: &usize| {
        let name = &plan.contestants[*who].name;
        name != NO_PROXY && !name.starts_with(TRUEPEER)
    };
    let medians = (0..plan.contestants.len())
        .filter(is_other)
        .filter_map(|who| Some((who, results.ratio_to_no_proxy(plan, load, who)?.median)));
    let (best, _) = medians.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let spread = results.ratio(plan, load, own, best)?;
    Some(format!("{} ({})", write_ratio(spread), plan.contestants[best].label))
}

/// One load's own table.
pub(super) fn of_load(plan: &Plan, results: &Results, load: Load) -> String {
    let ratio_heading = load.headline().map(|metric| format!("{} / no proxy", metric.title()));
    let metrics = load.metrics().iter().map(|metric| metric.title().to_owned());
    let mut table = Table::with_heading([String::new()].into_iter().chain(ratio_heading).chain(metrics));
    for (number, who) in plan.contestants.iter().enumerate().filter(|(_, who)| who.carries(load)) {
        let mut row = vec![who.label.clone()];
        if load.headline().is_some() {
            row.push(ratio(plan, results, load, number));
        }
        let is_proxy = who.name != NO_PROXY;
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

/// What was wrong.
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
