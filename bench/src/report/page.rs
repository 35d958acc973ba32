//! A suite's page: what is measured stands between two marks and is written anew; what people write around
//! them stays.

use std::fmt::Write;

use super::{introduction, text};
use crate::args::Plan;
use crate::load::{Load, Suite};
use crate::measure::machine::Machine;
use crate::rounds::Results;

const BEGIN: &str = "<!-- measured: written by make bench -->";
const END: &str = "<!-- measured: end -->";

/// The file that a suite's page lies in.
pub(super) const fn file_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy => "benchmarks.md",
        Suite::Https => "benchmarks-https.md",
    }
}

/// A page's beginning, as long as nobody has written a better one.
pub(super) const fn introduction(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy => introduction::PROXY,
        Suite::Https => introduction::HTTPS,
    }
}

/// Puts the measured part into the page.
pub(super) fn renew(old: Option<&str>, introduction: &str, measured: &str) -> String {
    let part = format!("{BEGIN}\n{measured}{END}\n");
    let parts = old.and_then(|old| {
        let (before, rest) = old.split_once(BEGIN)?;
        let (_, after) = rest.split_once(END)?;
        Some((before, after.trim_start_matches('\n')))
    });
    match (parts, old) {
        (Some((before, "")), _) => format!("{before}{part}"),
        (Some((before, after)), _) => format!("{before}{part}\n{after}"),
        (None, Some(old)) => format!("{old}\n{part}"),
        (None, None) => format!("{introduction}{part}"),
    }
}

/// The measured part: machine, summary, and for each load its chart and its table.
pub(super) fn measured(
    machine: &Machine,
    suite: Suite,
    plan: &Plan,
    results: &Results,
    charts: &[(Load, String)],
) -> String {
    let mut page = String::new();
    for (label, value) in &machine.facts {
        let _ = writeln!(page, "- **{label}**: {value}");
    }
    if let Some(summary) = text::summary(plan, results, suite) {
        let _ = write!(
            page,
            "\n## {}\n\n{}; ✗: see the notes below the load's table.\n\n{summary}",
            text::SUMMARY,
            text::SUMMARY_EXPLAINED
        );
    }
    for load in plan.loads_of(suite) {
        let _ = write!(page, "\n## {}\n\n{}.\n\n", heading(load), load.describe(&plan.scale));
        if let Some((_, chart)) = charts.iter().find(|(own, _)| *own == load) {
            let _ = write!(page, "![{}, by contestant]({chart})\n\n", heading(load));
        }
        page += &text::of_load(plan, results, load);
        let notes = text::notes(plan, results, load);
        if !notes.is_empty() {
            page += "\n";
        }
        for note in notes {
            let _ = writeln!(page, "- {note}");
        }
    }
    page
}

/// What a load is called above its table.
pub(super) fn heading(load: Load) -> &'static str {
    match load {
        Load::Streaming => "Streaming echo",
        Load::PingPong => "Ping-pong",
        Load::Connections => "Connections per second",
        Load::BulkUp => "Bulk up",
        Load::BulkDown => "Bulk down",
        Load::Udp64 => "UDP, 64 bytes",
        Load::Udp1400 => "UDP, 1 400 bytes",
        Load::Idle => "Idle sessions",
        Load::Https10 => "HTTPS, 10 connections",
        Load::Https64 => "HTTPS, 64 connections",
        Load::HttpsRate => "HTTPS at a constant rate",
        Load::Handshakes => "Handshakes per second",
        Load::HttpsIdle => "Idle HTTPS connections",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_stays() {
        let first = renew(None, introduction(Suite::Proxy), "one\n");
        assert!(first.starts_with("# Benchmarks") && first.contains("one\n"));
        let noted = first.clone() + "\n## What did not help\n";
        let second = renew(Some(&noted), "", "two\n");
        assert!(second.contains("two\n") && !second.contains("one\n"));
        assert!(second.ends_with("\n\n## What did not help\n"));
        assert_eq!(renew(Some(&second), "", "two\n"), second);
    }
}
