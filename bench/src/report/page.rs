//! A suite's page: the measured part stands between two marks and is rewritten. The text around it stays.

use std::fmt::Write;

use super::machine::Machine;
use super::{introduction, text};
use crate::args::Plan;
use crate::rounds::Results;
use crate::suites::{Load, Suite};

/// The marks around a suite's measured part. A page may have several parts.
const fn marks(suite: Suite) -> (&'static str, &'static str) {
    match suite {
        Suite::Proxy | Suite::Https => ("<!-- measured: written by make bench -->", "<!-- measured: end -->"),
        Suite::Stacks => {
            ("<!-- measured on two stacks: written by make bench -->", "<!-- measured on two stacks: end -->")
        }
    }
}

/// The file of a suite's page.
pub(super) const fn file_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy => "benchmarks.md",
        Suite::Https | Suite::Stacks => "benchmarks-https.md",
    }
}

/// The start of a new page.
pub(super) const fn introduction(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy => introduction::PROXY,
        Suite::Https => introduction::HTTPS,
        Suite::Stacks => introduction::STACKS,
    }
}

/// Puts the measured part into the page.
pub(super) fn renew(suite: Suite, old: Option<&str>, measured: &str) -> String {
    let (begin, end) = marks(suite);
    let part = format!("{begin}\n{measured}{end}\n");
    let parts = old.and_then(|old| {
        let (before, rest) = old.split_once(begin)?;
        let (_, after) = rest.split_once(end)?;
        Some((before, after.trim_start_matches('\n')))
    });
    match (parts, old) {
        (Some((before, "")), _) => format!("{before}{part}"),
        (Some((before, after)), _) => format!("{before}{part}\n{after}"),
        (None, Some(old)) => format!("{old}\n{}{part}", introduction(suite)),
        (None, None) => format!("{}{part}", introduction(suite)),
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
            "\n{} {}\n\n{}; ✗: see the notes below the load's table.\n\n{summary}",
            depth(suite),
            text::SUMMARY,
            text::SUMMARY_EXPLAINED
        );
    }
    for load in plan.loads_of(suite) {
        let _ = write!(page, "\n{} {}\n\n{}.\n\n", depth(suite), heading(load), load.describe(&plan.scale));
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

/// The depth of a suite's headings: the two stacks' part is below another heading.
const fn depth(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy | Suite::Https => "##",
        Suite::Stacks => "###",
    }
}

/// A load's name above its table.
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
        Load::HttpsStacks => "HTTPS on two stacks, 12 connections",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_stays() {
        let first = renew(Suite::Proxy, None, "one\n");
        assert!(first.starts_with("# Benchmarks") && first.contains("one\n"));
        let noted = first.clone() + "\n## What did not help\n";
        let second = renew(Suite::Proxy, Some(&noted), "two\n");
        assert!(second.contains("two\n") && !second.contains("one\n"));
        assert!(second.ends_with("\n\n## What did not help\n"));
        assert_eq!(renew(Suite::Proxy, Some(&second), "two\n"), second);
    }

    #[test]
    fn a_page_may_have_several_measured_parts() {
        let https = renew(Suite::Https, None, "one\n");
        let both = renew(Suite::Stacks, Some(&https), "two\n");
        assert!(
            both.contains("one\n")
                && both.contains("VPP")
                && both.ends_with("two\n<!-- measured on two stacks: end -->\n")
        );
        assert_eq!(renew(Suite::Https, Some(&both), "one\n"), both);
        assert_eq!(renew(Suite::Stacks, Some(&both), "two\n"), both);
    }
}
