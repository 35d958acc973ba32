//! The report: one line for each check, or JSON.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use super::needed::Needed;
use truepeer_privilege::confine::needs::{self, KERNELS, Need};
use truepeer_privilege::confine::{self, Capability};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The requirement is met.
    Ok,
    /// The requirement is not met.
    Fail,
    /// Not required for the job, but worth knowing.
    Note,
    /// The check could not run.
    Skip,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// A stable name, for machines.
    pub(crate) name: &'static str,
    /// The check in words.
    pub(crate) tried: String,
    pub(crate) verdict: Verdict,
    /// What was found instead, or a remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<String>,
    /// The one command that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mend: Option<String>,
}

impl Check {
    /// A check that passed.
    pub(crate) fn ok(name: &'static str, tried: impl Into<String>) -> Self {
        Self { name, tried: tried.into(), verdict: Verdict::Ok, found: None, mend: None }
    }

    /// A check that failed.
    pub(crate) fn fail(name: &'static str, tried: impl Into<String>, found: impl Into<String>) -> Self {
        Self { found: Some(found.into()), verdict: Verdict::Fail, ..Self::ok(name, tried) }
    }

    /// A check that found something worth knowing.
    pub(crate) fn note(name: &'static str, tried: impl Into<String>, found: impl Into<String>) -> Self {
        Self { found: Some(found.into()), verdict: Verdict::Note, ..Self::ok(name, tried) }
    }

    /// A check that could not run.
    pub(crate) fn skip(name: &'static str, tried: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { found: Some(reason.into()), verdict: Verdict::Skip, ..Self::ok(name, tried) }
    }

    /// Adds what was found although the check passed.
    pub(crate) fn found(self, found: impl Into<String>) -> Self {
        Self { found: Some(found.into()), ..self }
    }

    /// Adds the command that fixes it.
    pub(crate) fn mend(self, command: impl Into<String>) -> Self {
        Self { mend: Some(command.into()), ..self }
    }

    fn line(&self) -> String {
        let word = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Fail => "FAIL",
            Verdict::Note => "note",
            Verdict::Skip => "skip",
        };
        let mut line = format!("{word}  {}", self.tried);
        if let Some(found) = &self.found {
            line = format!("{line}: {found}");
        }
        if let Some(mend) = &self.mend {
            line = format!("{line}; type: {mend}");
        }
        line
    }
}

/// All checks, in order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    checks: Vec<Check>,
    needs: Vec<Needed>,
}

#[derive(Serialize)]
struct Json<'a> {
    ok: bool,
    checks: &'a [Check],
    needs: &'a [Needed],
    kernels: Vec<Kernel>,
}

/// The oldest kernel of a way, and whether this one is new enough.
#[derive(Serialize)]
struct Kernel {
    of: &'static str,
    since: String,
    held: bool,
    why: &'static str,
}

fn kernels() -> impl Iterator<Item = Kernel> {
    KERNELS.iter().map(|&(of, since, why)| Kernel {
        of,
        since: format!("{}.{}", since.0, since.1),
        held: needs::kernel() >= since,
        why,
    })
}

impl Report {
    /// Adds a check.
    pub(crate) fn add(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Sets the list of needs at the end.
    pub(crate) fn set_needs(&mut self, needs: &[Need]) {
        self.needs = needs.iter().map(Needed::of).collect();
    }

    /// Whether no required check failed.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.verdict != Verdict::Fail)
    }

    /// The first failure with one of these names.
    pub(crate) fn failure(&self, names: &[&str]) -> Option<&Check> {
        self.checks.iter().find(|check| check.verdict == Verdict::Fail && names.contains(&check.name))
    }

    /// Writes the report.
    pub(crate) fn write(&self, json: bool, out: &mut dyn Write) -> Result<()> {
        if json {
            serde_json::to_writer_pretty(
                &mut *out,
                &Json {
                    ok: self.holds(),
                    checks: &self.checks,
                    needs: &self.needs,
                    kernels: kernels().collect(),
                },
            )?;
            writeln!(out)?;
            return Ok(());
        }
        for check in &self.checks {
            writeln!(out, "{}", check.line())?;
        }
        if self.needs.is_empty() { Ok(()) } else { self.write_needs(out) }
    }

    fn write_needs(&self, out: &mut dyn Write) -> Result<()> {
        let held = Capability::names_in(confine::held());
        writeln!(out, "\nWhat each way needs (this process has: {held}):")?;
        for needed in &self.needs {
            writeln!(out, "{}", needed.line)?;
        }
        for Kernel { of, since, held, why } in kernels() {
            let word = if held { "have" } else { "lack" };
            writeln!(out, "{word}  Linux {since}, for {}: {why}", of.replace('`', ""))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(report: &Report, json: bool) -> String {
        let mut out = Vec::new();
        report.write(json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_says_what_was_tried_what_was_found_and_what_to_type() {
        let mut report = Report::default();
        report.add(Check::ok("a", "the sun rises"));
        report.add(Check::note("b", "the moon", "is new"));
        assert!(report.holds());
        report.add(Check::fail("c", "the tide", "is out").mend("wait"));
        assert!(!report.holds());
        assert_eq!(
            written(&report, false),
            "ok    the sun rises\nnote  the moon: is new\nFAIL  the tide: is out; type: wait\n"
        );
    }

    #[test]
    fn json_has_the_same_checks() {
        let mut report = Report::default();
        report.add(Check::fail("c", "the tide", "is out").mend("wait"));
        let json: serde_json::Value = serde_json::from_str(&written(&report, true)).unwrap();
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][0]["verdict"], "fail");
        assert_eq!(json["checks"][0]["mend"], "wait");
    }
}
