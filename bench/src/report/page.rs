//! The page `benchmarks.md`: what is measured stands between two marks and is written anew; what people write around
//! them stays.

use std::fmt::Write;

use super::text;
use crate::args::Plan;
use crate::load::Load;
use crate::measure::machine::Machine;
use crate::rounds::Results;

const BEGIN: &str = "<!-- measured: written by make bench -->";
const END: &str = "<!-- measured: end -->";

/// The page's beginning, as long as nobody has written a better one.
const INTRODUCTION: &str = "\
# Benchmarks

truepeer beside its peers. `make bench` repeats all of it on your machine and rewrites the measured part of this page;
`make bench BENCH=\"--rounds 11 --peer 'mine=/opt/mine -l {listen} -4 {backend}'\"` passes options on (`bench --help`).

How it is measured:

- Load, contestant and backend share one machine and its loopback, as in every benchmark of this field: absolute values
  say little, so what counts is the ratio to *no proxy* (the load talks to the backend directly, without a header) in the
  same round. A round puts each load on all contestants one after the other; each round begins with another one.
- Every measurement has a network namespace of its own, with freshly started programs: nobody inherits routes, grown
  buffers, or connections in TIME_WAIT. The load closes short connections first, so TIME_WAIT lies with the load and on
  the contestant's upstream side; no pair of addresses comes twice, and the kernel need not cut any short.
- Every byte is checked where it ends up, and at the end every stream is half-closed and read to its end. A contestant that
  loses or changes bytes is marked ✗; its speed is reported all the same.
- Backends check that they see the claimed client, or the contestant is marked ✗, too.
- ↓ is what came back to the load, ↑ what it wrote; packets are estimated as tcpkali does (1 460 bytes), so that ⇅, ↓, ↑
  and pkt/s are the columns of go-mmproxy's, mmproxy-rs' and libproxyproto's tables.
- CPU is that of the contestant's processes in the measured window. Work that the kernel does for them in others' time is
  not in it; that holds for all alike.

";

/// Puts the measured part into the page.
pub(super) fn renew(old: Option<&str>, measured: &str) -> String {
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
        (None, None) => format!("{INTRODUCTION}{part}"),
    }
}

/// The measured part: machine, summary, and for each load its chart and its table.
pub(super) fn measured(
    machine: &Machine,
    plan: &Plan,
    results: &Results,
    charts: &[(Load, String)],
) -> String {
    let mut page = String::new();
    for (label, value) in &machine.facts {
        let _ = writeln!(page, "- **{label}**: {value}");
    }
    if let Some(summary) = text::summary(plan, results) {
        let _ = write!(
            page,
            "\n## Ratios to no proxy\n\nMedian of the rounds' ratios [lowest–highest]; ✗: see the notes below the load's table.\n\n{summary}"
        );
    }
    for &load in &plan.loads {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_stays() {
        let first = renew(None, "one\n");
        assert!(first.starts_with("# Benchmarks") && first.contains("one\n"));
        let noted = first.clone() + "\n## What did not help\n";
        let second = renew(Some(&noted), "two\n");
        assert!(second.contains("two\n") && !second.contains("one\n"));
        assert!(second.ends_with("\n\n## What did not help\n"));
        assert_eq!(renew(Some(&second), "two\n"), second);
    }
}
