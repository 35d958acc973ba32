//! What was found, for people and for machines.

use std::fmt;
use std::net::IpAddr;

use serde_json::{Value, json};
use truepeer_proto::vectors::{self, Level, Rule};

use crate::app::App;
use crate::case::{Case, Plain};
use crate::seen::Seen;
use crate::verdict::{Verdict, Want};

/// One header or one rule, and how the other side stands to it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) name: String,
    pub(crate) rule: &'static Rule,
    /// `None`: nothing was sent, or nothing certain is wanted.
    pub(crate) want: Option<Want>,
    pub(crate) verdict: Verdict,
    /// What was seen.
    pub(crate) said: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) believed: Vec<IpAddr>,
}

impl Finding {
    pub(crate) fn of_case(case: &Case, verdict: Verdict, said: String, believed: Vec<IpAddr>) -> Self {
        let bytes = case.header.clone();
        // An application that begins early, or is given a part of a header, breaks this rule.
        let is_early = case.want == Want::Nothing && verdict == Verdict::Broken;
        let rule = if is_early || said.starts_with("leaked") { vectors::rule("complete") } else { None };
        Self {
            name: case.name.clone(),
            rule: rule.unwrap_or(case.rule),
            want: Some(case.want),
            verdict,
            said,
            bytes,
            believed,
        }
    }

    pub(crate) fn of_rule(
        name: &str,
        rule: &str,
        want: Option<Want>,
        verdict: Verdict,
        said: String,
    ) -> Self {
        let rule = vectors::rule(rule).unwrap_or(&NO_RULE);
        Self { name: name.to_owned(), rule, want, verdict, said, bytes: Vec::new(), believed: Vec::new() }
    }

    pub(crate) fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes = bytes.to_vec();
        self
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "rule": self.rule.id, "section": self.rule.section, "quote": self.rule.quote,
            "level": level(self.rule.level), "want": self.want.map(|want| want.to_string()),
            "verdict": self.verdict.as_str(), "seen": self.said, "bytes": hex(&self.bytes),
            "log": self.believed,
        })
    }
}

/// For a name without a rule. Tests fail where a finding has it.
static NO_RULE: Rule = Rule { id: "", section: "", level: Level::May, quote: String::new() };

/// Which headers a receiver takes at all.
#[derive(Debug)]
pub(crate) struct Takes {
    /// A request without a header.
    pub(crate) bare: Seen,
    pub(crate) versions: [(Plain, Seen); 2],
}

/// All that was found out about one other side.
#[derive(Debug)]
pub struct Report {
    target: String,
    app: App,
    pub(crate) takes: Option<Takes>,
    /// UDP: the application answers a bare datagram, and takes none with a header.
    pub(crate) serves_bare_datagrams: bool,
    pub(crate) findings: Vec<Finding>,
    /// Further facts, a line each.
    pub(crate) notes: Vec<String>,
}

/// How many of each verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// As the rules say.
    pub holds: usize,
    /// Against a MUST.
    pub broken: usize,
    /// Against a SHOULD.
    pub advised: usize,
    /// Other choices that the text leaves open.
    pub permitted: usize,
    /// Not seen.
    pub unknown: usize,
}

impl Report {
    pub(crate) fn new(target: String, app: App, takes: Option<Takes>) -> Self {
        let (findings, notes) = (Vec::new(), Vec::new());
        Self { target, app, takes, serves_bare_datagrams: false, findings, notes }
    }

    /// What a sender wrote, for those findings that are about it.
    pub(crate) fn with_sent(mut self, bytes: &[u8]) -> Self {
        let start = &bytes[..bytes.len().min(300)];
        self.findings.iter_mut().for_each(|finding| finding.bytes = start.to_vec());
        self
    }

    /// The versions that the receiver takes.
    pub(crate) fn taken(&self) -> Vec<Plain> {
        let versions = self.takes.iter().flat_map(|takes| &takes.versions);
        versions.filter(|(_, seen)| *seen == Seen::Taken).map(|(plain, _)| *plain).collect()
    }

    /// The count of each verdict.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        Totals {
            holds: count(Verdict::Holds),
            broken: count(Verdict::Broken),
            advised: count(Verdict::Advised),
            permitted: count(Verdict::Permitted),
            unknown: count(Verdict::Unknown),
        }
    }

    /// Whether anything can be said: 0 nothing is broken, 1 a MUST is, 3 nothing shows.
    #[must_use]
    pub fn status(&self) -> u8 {
        let totals = self.totals();
        let knows = totals.holds + totals.advised + totals.permitted > 0 || self.refuses_headers();
        match (totals.broken > 0, knows) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => 3,
        }
    }

    /// Headers are known to be refused: the application answers without one.
    fn refuses_headers(&self) -> bool {
        let refuses = |takes: &Takes| {
            takes.bare == Seen::Taken
                && takes.versions.iter().all(|(_, seen)| !matches!(seen, Seen::Taken | Seen::Silent))
        };
        self.serves_bare_datagrams || self.takes.as_ref().is_some_and(refuses)
    }

    /// The whole as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let totals = self.totals();
        let takes = self.takes.as_ref().map(|takes| {
            let [v1, v2] = takes.versions.each_ref().map(|(_, seen)| seen.to_string());
            json!({ "without_header": takes.bare.to_string(), "v1": v1, "v2": v2 })
        });
        json!({
            "format": 1, "target": self.target, "as": self.app.to_string(), "takes": takes,
            "notes": self.notes,
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "totals": {
                "holds": totals.holds, "broken": totals.broken, "advised": totals.advised,
                "permitted": totals.permitted, "unknown": totals.unknown,
            },
            "status": self.status(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (as {})", self.target, self.app)?;
        if let Some(takes) = &self.takes {
            writeln!(f, "  without a header  {}", takes.bare)?;
            for (plain, seen) in &takes.versions {
                writeln!(f, "  a header, {}  {seen}", plain.name())?;
            }
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        let kinds = [
            (Verdict::Broken, "BROKEN"),
            (Verdict::Advised, "against advice"),
            (Verdict::Permitted, "permitted"),
            (Verdict::Unknown, "can't tell"),
        ];
        for (verdict, word) in kinds {
            for finding in self.findings.iter().filter(|finding| finding.verdict == verdict) {
                writeln!(f, "\n{word}: {}", finding.name)?;
                let want = finding.want.map(|want| format!("; expected: {want}")).unwrap_or_default();
                writeln!(f, "  {}{want}", finding.said)?;
                if matches!(verdict, Verdict::Broken | Verdict::Advised) {
                    writeln!(f, "  PROXY {}: \"{}\"", finding.rule.section, finding.rule.quote)?;
                    if !finding.bytes.is_empty() {
                        writeln!(f, "  sent: {}", shown(&finding.bytes))?;
                    }
                }
            }
        }
        let totals = self.totals();
        let what = match (self.findings.is_empty(), self.refuses_headers()) {
            (true, true) => "takes no headers".to_owned(),
            (true, false) => "can't tell: no request was answered, with or without a header".to_owned(),
            (false, _) => format!(
                "{} hold, {} broken, {} against advice, {} other permitted choices, {} can't be told",
                totals.holds, totals.broken, totals.advised, totals.permitted, totals.unknown
            ),
        };
        writeln!(f, "\n{what}")
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Must => "must",
        Level::Should => "should",
        Level::May => "may",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(300).map(|byte| format!("{byte:02x}")).collect()
}

/// Text as text, with escapes.
fn shown(bytes: &[u8]) -> String {
    if bytes.starts_with(b"\r\n") { hex(bytes) } else { bytes.escape_ascii().to_string() }
}
