//! `truepeer status`.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context as _;

use crate::admin::client::Client;
use crate::admin::status::{ListenerDoc, SpliceDoc, StatusDoc};
use crate::reasons::{self, Told, folded};
use crate::units::{Bytes, Count};
use truepeer_config::spec::StatusArgs;

/// Prints what the running truepeer does.
pub fn status(args: &StatusArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer = Client::of(&args.ask)?.ask("GET", "/status")?;
    if args.json {
        return Ok(writeln!(out, "{}", answer.trim_end())?);
    }
    let status = serde_json::from_str(&answer).context("the answer is not of this version of truepeer")?;
    write(&status, width(), out)
}

/// The terminal's width. `None`: it is a pipe or a file, whose lines are read by programs.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

fn write(status: &StatusDoc, width: Option<usize>, out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "truepeer {}, process {}: {}", status.version, status.pid, status.state)?;
    match &status.reason {
        Some(reason) => writeln!(out, ": {reason}")?,
        None => writeln!(out)?,
    }
    for listener in &status.listeners {
        write_listener(listener, width, out)?;
    }
    for listener in &status.missing {
        writeln!(out, "not open, although it should be: {listener}")?;
    }
    if let Some(obstacle) = status.splice.as_ref().and_then(SpliceDoc::obstacle) {
        writeln!(out, "all sessions stay in user space: {obstacle}")?;
    }
    for place in &status.attachments {
        let netns = if place.netns.is_empty() { String::new() } else { format!(" in {}", place.netns) };
        match place.attached {
            Some(true) => {}
            Some(false) => writeln!(out, "attach{netns}: not attached")?,
            None => writeln!(out, "attach{netns}: unknown")?,
        }
        if !place.uncovered.is_empty() {
            writeln!(out, "attach{netns}: {}", place.warning())?;
        }
        for port in &place.ports {
            let draining = if port.draining { ", detached, draining" } else { "" };
            writeln!(
                out,
                "attach {}/{}{netns}: {} open{draining}",
                port.port,
                port.protocol.name(),
                port.open
            )?;
        }
    }
    Ok(())
}

fn write_listener(listener: &ListenerDoc, width: Option<usize>, out: &mut dyn Write) -> anyhow::Result<()> {
    let closed = if listener.listening { "" } else { ", closed" };
    let taken = match listener.site {
        Some(_) => format!("{} requests", Count(listener.count("requests"))),
        None => format!("{} accepted", Count(listener.taken())),
    };
    writeln!(
        out,
        "{} {} {}: {} open{}{taken}, {} up, {} down{closed}",
        listener.entry,
        listener.protocol.name(),
        listener.name(),
        Count(listener.open as u64),
        if listener.site.is_some() { ", " } else { " of " },
        Bytes(listener.count("bytes_up")),
        Bytes(listener.count("bytes_down")),
    )?;
    write_reasons(&listener.refusals, reasons::refusal, width, out)?;
    let spliced = listener.count("sessions_spliced");
    if spliced > 0 || !listener.not_spliced.is_empty() {
        let others = if listener.not_spliced.is_empty() { "" } else { "; others stayed:" };
        writeln!(out, "  {} sessions left user space{others}", Count(spliced))?;
        write_reasons(&listener.not_spliced, reasons::stay, width, out)?;
    }
    Ok(())
}

/// The columns before a reason: its number.
const BEFORE: usize = 14;

fn write_reasons(
    reasons: &BTreeMap<String, u64>,
    tell: fn(&str) -> Told<'_>,
    width: Option<usize>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|(reason, times)| (std::cmp::Reverse(**times), (*reason).clone()));
    for (reason, times) in reasons {
        let told = folded(&tell(reason).to_string(), BEFORE, width);
        writeln!(out, "  {:>10}  {told}", Count(*times))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_few_lines() {
        let json = r#"{"version":"0.1.0","pid":7,"state":"serving","listeners":[{"entry":"proxy","protocol":"tcp",
            "addresses":["127.0.0.1:8443"],"listening":true,"open":2,"counters":{"connections_accepted":1234,"bytes_up":2048,"sessions_spliced":5},
            "refusals":{"a":1,"sender_not_allowed":12},"not_spliced":{"segment_sizes":3}}],
            "attachments":[{"netns":"","attached":true,"uncovered":["plug0"],"ports":[
            {"port":443,"protocol":"tcp","draining":false,"open":3,"counters":{}}]}]}"#;
        let mut text = Vec::new();
        write(&serde_json::from_str(json).unwrap(), None, &mut text).unwrap();
        let expected = "\
truepeer 0.1.0, process 7: serving
proxy tcp 127.0.0.1:8443: 2 open of 1,234 accepted, 2.0 KiB up, 0 B down
          12  the sender is not on the allow-list; if it is your load balancer, \
add it to `allow` (sender_not_allowed)
           1  a
  5 sessions left user space; others stayed:
           3  segments of one side don't fit through the other's path (segment_sizes)
attach: not covered: plug0; connections that come in there are refused (refused_unjudged)
attach 443/tcp: 3 open
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn on_a_terminal_a_reason_is_folded_under_its_beginning() {
        let mut text = Vec::new();
        let reasons = [("v1_port".to_owned(), 3)].into();
        write_reasons(&reasons, reasons::refusal, Some(80), &mut text).unwrap();
        let expected = "\
\x20          3  version 1: a port is not a number from 0 to 65535; mend the
              sender: decimal, without leading zeros (v1_port)
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn the_reason_why_all_sessions_stay_is_told() {
        let written = |splice: &str| {
            let json = format!(
                r#"{{"version":"0.1.0","pid":7,"state":"serving","attachments":[],"listeners":[]{splice}}}"#
            );
            let mut text = Vec::new();
            write(&serde_json::from_str(&json).unwrap(), None, &mut text).unwrap();
            String::from_utf8(text).unwrap().lines().nth(1).map(str::to_owned)
        };
        assert_eq!(written(""), None);
        assert_eq!(written(r#","splice":{}"#), None);
        let said = written(r#","splice":{"reason":"no_privileges","found":"missing: CAP_BPF"}"#);
        assert_eq!(
            said.as_deref(),
            Some(
                "all sessions stay in user space: truepeer started without the privileges to load the programs \
                 (no_privileges): missing: CAP_BPF"
            )
        );
    }

    #[test]
    fn where_no_session_stayed_no_list_begins() {
        let written = |counters: &str, not_spliced: &str| {
            let json = format!(
                r#"{{"version":"0.1.0","pid":7,"state":"serving","attachments":[],"listeners":[{{"entry":"proxy","protocol":"tcp",
                "addresses":["127.0.0.1:8443"],"listening":true,"open":0,"counters":{counters},"refusals":{{}},"not_spliced":{not_spliced}}}]}}"#
            );
            let mut text = Vec::new();
            write(&serde_json::from_str(&json).unwrap(), None, &mut text).unwrap();
            String::from_utf8(text)
                .unwrap()
                .lines()
                .skip(2)
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        assert_eq!(written("{}", "{}"), "");
        assert_eq!(written(r#"{"sessions_spliced":5}"#, "{}"), "  5 sessions left user space\n");
        let stayed = written("{}", r#"{"sack":2}"#);
        assert_eq!(
            stayed,
            "  0 sessions left user space; others stayed:\n\
             \x20          2  one connection has it, the other has not (sack)\n"
        );
    }
}
