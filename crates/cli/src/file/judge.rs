//! What a file means, and whether it can be carried out.

use std::io::ErrorKind;
use std::path::Path;

use clap::FromArgMatches as _;
use toml::de::DeTable;

use super::entry::{Entry, Shared};
use super::finding::{Finding, Findings, Span};
use super::keys::in_keys;
use super::syntax;
use super::table::Words;
use super::written::Written;
use truepeer_config::plan::{
    AdminConfig, AttachKey, Beside, CheckedAttach, CheckedProcess, ConfineConfig, EntryConfig, Problem,
    Problems, ProcessConfig,
};
use truepeer_config::spec::{ConfineMode, LogFormat, LogTable, defaults};

/// A file: what it says, what that means, and what is wrong with it.
pub(super) struct Judged {
    pub(super) written: Written,
    pub(super) findings: Findings,
    /// `None`: some finding is an error.
    pub(super) plan: Option<(ProcessConfig, CheckedProcess)>,
}

/// Reads a file, and everything that it names.
pub(super) fn read(path: &Path) -> Judged {
    match text_of(path) {
        Ok(text) => judge(path, text),
        Err(findings) => Judged { written: Written::nothing(), findings, plan: None },
    }
}

/// Reads a file, and what its attachments name.
pub(super) fn attachments(path: &Path) -> Result<Vec<CheckedAttach>, Findings> {
    attachments_in(path, text_of(path)?)
}

/// The attachments of a text that has been read.
pub(super) fn attachments_in(path: &Path, text: String) -> Result<Vec<CheckedAttach>, Findings> {
    let (written, mut findings, is_toml) = tables(path, text);
    let planned = if is_toml { written.config(&mut findings) } else { None };
    let mut attachments = Vec::new();
    if let Some((config, places)) = &planned {
        for (entry, words) in config.entries.iter().zip(places) {
            let EntryConfig::Attach(args) = entry else { continue };
            match CheckedAttach::of(args) {
                Ok(attach) => attachments.push(attach),
                Err(problems) => words.add(problems, &mut findings),
            }
        }
    }
    if findings.have_errors() { Err(findings) } else { Ok(attachments) }
}

fn text_of(path: &Path) -> Result<String, Findings> {
    let problem = match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => return Ok(text),
        Ok(Err(_)) => "expected UTF-8 text".to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!("can't read the file: {error}; name another with -c FILE")
        }
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            format!("it is a directory; name a file in it, such as {}", path.join("truepeer.toml").display())
        }
        Err(error) => format!("can't read the file: {error}"),
    };
    let mut findings = Findings::new(path, String::new());
    findings.add(Finding::of_file(problem));
    Err(findings)
}

/// Judges a text that has been read.
pub(super) fn judge(path: &Path, text: String) -> Judged {
    let (written, mut findings, is_toml) = tables(path, text);
    // A missing key may be in the part that is not TOML, so don't report it.
    let planned = if is_toml { written.config(&mut findings) } else { None };
    let plan = planned.map(|(config, places)| {
        let checked = check(&config, &places, &mut findings);
        (config, checked)
    });
    findings.sort();
    let plan = plan.filter(|_| !findings.have_errors());
    Judged { written, findings, plan }
}

/// What the text says, and whether all of it is TOML.
pub(super) fn tables(path: &Path, text: String) -> (Written, Findings, bool) {
    let mut findings = Findings::new(path, text.clone());
    let dir = path.parent().unwrap_or(Path::new(""));
    let (root, errors) = DeTable::parse_recoverable(&text);
    let is_readable = syntax::add(&errors, &mut findings);
    let syntax_count = findings.len();
    let written = match is_readable {
        true => Written::of(root.get_ref(), dir, &mut findings),
        false => Written::nothing(),
    };
    findings.keep_one_a_line(syntax_count);
    findings.is_json =
        LogTable::from_arg_matches(&written.log).is_ok_and(|log| log.format == Some(LogFormat::Json));
    (written, findings, errors.is_empty())
}

impl Written {
    /// Plans every entry, also if another one is wrong. Returns the words of each as well: they place later
    /// findings.
    fn config(&self, findings: &mut Findings) -> Option<(ProcessConfig, Vec<&Words>)> {
        if self.entries.is_empty() {
            if !findings.have_errors() {
                findings.add(Finding::of_file(
                    "nothing to do: expected at least one [[proxy]], [[https]] or [[attach]]",
                ));
            }
            return None;
        }
        let shared = match Shared::of(self)? {
            Ok(shared) => shared,
            Err(problem) => {
                findings.add(self.acme_words.of_problem(problem, "acme-"));
                return None;
            }
        };
        let (mut places, mut entries) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let spec = entry.matches.as_ref().and_then(|matches| Entry::of(entry.name, matches));
            match spec.map(|spec| spec.plan(&shared)) {
                Some(Ok(planned)) => {
                    places.push(&entry.words);
                    entries.push(planned);
                }
                Some(Err(problems)) => entry.words.add(problems, findings),
                None => {}
            }
        }
        let Shared { process, admin, log, acme } = shared;
        let config = ProcessConfig {
            acme,
            entries,
            workers: process.process.workers,
            max_flows: process.flows.max_flows,
            drain: process.process.drain_timeout.unwrap_or(defaults::DRAIN_TIMEOUT),
            reload_on_change: process.process.reload_on_change,
            // An entry has reported what is wrong with it.
            confine: ConfineConfig::of(&process.process.confine, ConfineMode::default()).unwrap_or_default(),
            admin: AdminConfig::of_file(admin.listen),
            log,
        };
        Some((config, places))
    }
}

/// Checks each entry by itself. Those that can't be carried out are missing in the result, and among the
/// findings.
fn check(process: &ProcessConfig, places: &[&Words], findings: &mut Findings) -> CheckedProcess {
    let mut beside = Beside::of(process.binds());
    let mut entries = Vec::new();
    let mut attached: Vec<(AttachKey, Span)> = Vec::new();
    for (entry, words) in process.entries.iter().zip(places) {
        if let EntryConfig::Attach(args) = entry {
            let key = AttachKey::of(args);
            match attached.iter().find(|(other, _)| *other == key) {
                Some((_, first)) => findings.add(second_attachment(words, first.clone())),
                None => attached.push((key, words.header.clone())),
            }
        }
        match entry.check(&mut beside) {
            Ok(entry) => {
                for warning in entry.warnings() {
                    findings.add(Finding::warning(words.header.clone(), in_keys(&warning)));
                }
                entries.push(entry);
            }
            Err(problems) => words.add(problems, findings),
        }
    }
    CheckedProcess { entries }
}

fn second_attachment(words: &Words, first: Span) -> Finding {
    let text = "a second attachment in the same place; expected one with all ports, or another `pins`";
    words.at("pins", None, text.to_owned()).beside(first, "the first one")
}

impl Words {
    fn add(&self, problems: Problems, findings: &mut Findings) {
        problems.into_iter().for_each(|problem| findings.add(self.of_problem(problem, "")));
    }

    /// Places a problem at the value that it is about. The table's keys lack `start`, which the options have.
    fn of_problem(&self, problem: Problem, start: &str) -> Finding {
        let (key, value) = problem.about();
        let port = match &problem {
            Problem::ListenTwice { listener, is_proxy: true } | Problem::Loop { listener, .. } => {
                Some(listener.port())
            }
            _ => None,
        };
        let text = in_keys(&format!("{:#}", anyhow::Error::new(problem))).replace(start, "");
        let finding = self.at(key.strip_prefix(start).unwrap_or(&key), value.as_deref(), text);
        match port.map(|port| self.on_another(port)) {
            Some(line) if key == "listen" => finding.help(format!("type {line}")),
            Some(line) => finding.help(format!("type where `listen` is: {line}")),
            None => finding,
        }
    }
}
