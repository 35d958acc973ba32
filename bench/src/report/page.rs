//! A suite's page: the measured part stands between two marks and is rewritten. The text around it stays.

use std::fmt::Write;

use super::machine::Machine;
use super::{introduction, text};
use crate::args::Plan;
use crate::rounds::Results;
use crate::suites::{Load, OriginKind, Suite};

/// A measured part of a page. HTTPS has one for each origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) suite: Suite,
    pub(super) origin: OriginKind,
}

/// The marks around a part.
const fn marks(part: Part) -> (&'static str, &'static str) {
    match part.suite {
        Suite::Https if matches!(part.origin, OriginKind::Nginx) => (
            "<!-- measured with the guide's origin: written by make bench -->",
            "<!-- measured with the guide's origin: end -->",
        ),
        Suite::Hosts => {
            ("<!-- measured over hosts: written by make bench -->", "<!-- measured over hosts: end -->")
        }
        Suite::Proxy | Suite::Https => ("<!-- measured: written by make bench -->", "<!-- measured: end -->"),
        Suite::Stacks => {
            ("<!-- measured on two stacks: written by make bench -->", "<!-- measured on two stacks: end -->")
        }
    }
}

/// The file of a suite's page.
pub(super) const fn file_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy | Suite::Hosts => "benchmarks.md",
        Suite::Https | Suite::Stacks => "benchmarks-https.md",
    }
}

/// The name of a load's chart.
pub(super) fn chart_name(part: Part, load: Load) -> String {
    let of_origin =
        if part.suite == Suite::Https && part.origin == OriginKind::Nginx { "-guide" } else { "" };
    format!("benchmark-{}{of_origin}.svg", load.name())
}

/// The start of a new page, or of a part that an old one lacks.
fn introduction(part: Part, is_new: bool) -> &'static str {
    match part.suite {
        Suite::Https if part.origin == OriginKind::Nginx && !is_new => introduction::GUIDES_ORIGIN,
        Suite::Proxy => introduction::PROXY,
        Suite::Hosts => introduction::HOSTS,
        Suite::Https => introduction::HTTPS,
        Suite::Stacks => introduction::STACKS,
    }
}

/// Puts the measured part into the page.
pub(super) fn renew(part: Part, old: Option<&str>, measured: &str) -> String {
    let (begin, end) = marks(part);
    let text = format!("{begin}\n{measured}{end}\n");
    let parts = old.and_then(|old| {
        let (before, rest) = old.split_once(begin)?;
        let (_, after) = rest.split_once(end)?;
        Some((before, after.trim_start_matches('\n')))
    });
    match (parts, old) {
        (Some((before, "")), _) => format!("{before}{text}"),
        (Some((before, after)), _) => format!("{before}{text}\n{after}"),
        (None, Some(old)) => format!("{old}\n{}{text}", introduction(part, false)),
        (None, None) => format!("{}{text}", introduction(part, true)),
    }
}

/// The file of a suite's tables, beside its page.
pub(super) const fn tables_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy => "benchmark-tables.txt",
        Suite::Hosts => "benchmark-tables-hosts.txt",
        Suite::Https => "benchmark-tables-https.txt",
        Suite::Stacks => "benchmark-tables-stacks.txt",
    }
}

/// The ratios to NGINX, and for each load its table and the notes below it.
pub(super) fn tables(plan: &Plan, results: &Results, suite: Suite) -> String {
    let mut all = String::new();
    if let Some(table) = text::against_reference(plan, results, suite) {
        let (heading, explained) = (text::AGAINST_REFERENCE, text::AGAINST_REFERENCE_EXPLAINED);
        let _ = writeln!(all, "{heading}. {explained}.\n\n{table}");
    }
    for load in plan.loads_of(suite) {
        let table = text::of_load(plan, results, load);
        let _ = writeln!(all, "{}: {}.\n\n{table}", heading(load), load.describe(&plan.scale));
        for note in text::notes(plan, results, load) {
            let _ = writeln!(all, "- {note}");
        }
        all.push('\n');
    }
    all
}

/// The measured part: machine, summary, and for each load its chart.
pub(super) fn measured(
    machine: &Machine,
    part: Part,
    plan: &Plan,
    results: &Results,
    charts: &[(Load, String)],
) -> String {
    let (mut page, suite) = (String::new(), part.suite);
    for (label, value) in &machine.facts {
        let _ = writeln!(page, "- **{label}**: {value}");
    }
    if let Some(summary) = text::summary(plan, results, suite) {
        let _ = write!(
            page,
            "\n{} {}\n\n{}; ✗: see the notes below the load's table.\n\n{summary}",
            depth(part),
            text::SUMMARY,
            text::SUMMARY_EXPLAINED
        );
    }
    for load in plan.loads_of(suite) {
        let _ = write!(page, "\n{} {}\n\n{}.\n\n", depth(part), heading(load), load.describe(&plan.scale));
        if let Some((_, chart)) = charts.iter().find(|(own, _)| *own == load) {
            let _ = writeln!(page, "![{}, by contestant]({chart})", heading(load));
        }
    }
    let _ = writeln!(page, "\nEach load's table, and what ✗ stands for: [{0}]({0}).", tables_name(suite));
    page
}

/// The depth of a part's headings: a page's second part is below a heading of its own.
const fn depth(part: Part) -> &'static str {
    match part.suite {
        Suite::Https if matches!(part.origin, OriginKind::Nginx) => "###",
        Suite::Proxy | Suite::Https => "##",
        Suite::Hosts | Suite::Stacks => "###",
    }
}

/// A load's name above its table.
pub(super) fn heading(load: Load) -> &'static str {
    match load {
        Load::Streaming => "Streaming echo",
        Load::PingPong => "Ping-pong",
        Load::PingPongRate => "Ping-pong at a constant rate",
        Load::HostsPingPongRate => "Ping-pong at a constant rate over three hosts",
        Load::HostsPingPong => "Ping-pong over three hosts",
        Load::Connections => "Connections per second",
        Load::HostsConnections => "Connections per second over three hosts",
        Load::BulkUp => "Bulk up",
        Load::HostsBulkUp => "Bulk up over three hosts",
        Load::BulkDown => "Bulk down",
        Load::HostsBulkDown => "Bulk down over three hosts",
        Load::Udp64 => "UDP, 64 bytes",
        Load::Udp1400 => "UDP, 1 400 bytes",
        Load::Idle => "Idle sessions",
        Load::Https10 => "HTTPS, 10 connections",
        Load::Https64 => "HTTPS, 64 connections",
        Load::HttpsRate => "HTTPS at a constant rate",
        Load::HttpsStreams1 => "HTTP/2, one request at a time",
        Load::HttpsStreams10 => "HTTP/2, 10 requests at a time",
        Load::HttpsStreams50 => "HTTP/2, 50 requests at a time",
        Load::Handshakes => "Handshakes per second",
        Load::HttpsIdle => "Idle HTTPS connections",
        Load::HttpsStacks => "HTTPS on two stacks, 12 connections",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(suite: Suite) -> Part {
        Part { suite, origin: OriginKind::Lean }
    }

    #[test]
    fn what_people_wrote_stays() {
        let first = renew(part(Suite::Proxy), None, "one\n");
        assert!(first.starts_with("# Benchmarks") && first.contains("one\n"));
        let noted = first.clone() + "\n## What did not help\n";
        let second = renew(part(Suite::Proxy), Some(&noted), "two\n");
        assert!(second.contains("two\n") && !second.contains("one\n"));
        assert!(second.ends_with("\n\n## What did not help\n"));
        assert_eq!(renew(part(Suite::Proxy), Some(&second), "two\n"), second);
    }

    #[test]
    fn a_page_may_have_several_measured_parts() {
        let https = renew(part(Suite::Https), None, "one\n");
        let both = renew(part(Suite::Stacks), Some(&https), "two\n");
        assert!(
            both.contains("one\n")
                && both.contains("VPP")
                && both.ends_with("two\n<!-- measured on two stacks: end -->\n")
        );
        assert_eq!(renew(part(Suite::Https), Some(&both), "one\n"), both);
        assert_eq!(renew(part(Suite::Stacks), Some(&both), "two\n"), both);
    }

    #[test]
    fn each_origin_has_a_part() {
        let lean = renew(part(Suite::Https), None, "one\n");
        let guides = Part { suite: Suite::Https, origin: OriginKind::Nginx };
        let both = renew(guides, Some(&lean), "two\n");
        assert!(both.contains("one\n") && both.contains("two\n"), "{both}");
        assert_eq!(both.matches("# Benchmarks of HTTPS").count(), 1);
        assert_eq!(renew(guides, Some(&both), "two\n"), both);
        assert_ne!(chart_name(guides, Load::Https10), chart_name(part(Suite::Https), Load::Https10));
    }
}
