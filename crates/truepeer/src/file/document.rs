//! The whole file: its tables, what each means, and what all need.

use std::path::Path;

use clap::FromArgMatches as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Findings, Span};
use super::keys::{self, Grammar, in_keys, nearest};
use super::table::{self, Words, pairs};
use crate::plan::{
    AdminConfig, AttachKey, Beside, CheckedProcess, Config, Defaults, EntryConfig, LogConfig, Problem,
    ProcessConfig,
};
use crate::spec::{
    AdminSpec, AdminTable, AttachArgs, HttpsSpec, LogSpec, LogTable, ProcessSpec, ProcessTable, ProxySpec,
    StackArgs, defaults,
};

const ENTRIES: [&str; 3] = ["proxy", "https", "attach"];
const TABLES: [&str; 2] = ["admin", "log"];

/// Reads and checks a file. `None`: some finding is an error.
pub(super) fn read(path: &Path) -> (Option<(ProcessConfig, CheckedProcess)>, Findings) {
    let text = match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => text,
        Ok(Err(_)) => return (None, alone(path, "expected UTF-8 text".to_owned())),
        Err(error) => return (None, alone(path, format!("can't read the file: {error}"))),
    };
    understand(path, text)
}

fn alone(path: &Path, text: String) -> Findings {
    let mut findings = Findings::new(path, String::new());
    findings.add(Finding::of_file(text));
    findings
}

/// The same for a text that is known.
pub(super) fn understand(path: &Path, text: String) -> (Option<(ProcessConfig, CheckedProcess)>, Findings) {
    let mut findings = Findings::new(path, text.clone());
    let dir = path.parent().unwrap_or(Path::new(""));
    let (root, errors) = DeTable::parse_recoverable(&text);
    for error in &errors {
        let span = error.span().unwrap_or_default();
        findings.add(Finding::error(span, error.message().replace('\n', "; ")));
    }
    let written = Written::of(root.get_ref(), dir, &mut findings);
    // What lacks may be in the part that is no TOML.
    let read = if errors.is_empty() { written.plan(&mut findings) } else { None };
    findings.sort();
    (read.filter(|_| !findings.have_errors()), findings)
}

/// What the file says.
struct Written {
    process: ProcessTable,
    admin: AdminTable,
    log: LogTable,
    entries: Vec<(Words, Option<Entry>)>,
}

/// What an entry says.
enum Entry {
    Proxy(Box<ProxySpec>),
    Https(Box<HttpsSpec>),
    Attach(Box<AttachArgs>),
}

impl Written {
    fn of(root: &DeTable<'_>, dir: &Path, findings: &mut Findings) -> Self {
        let mut written = Self {
            process: ProcessTable::default(),
            admin: AdminTable::default(),
            log: LogTable::default(),
            entries: Vec::new(),
        };
        let mut top = Vec::new();
        for (key, value) in pairs(root) {
            let name: &str = key.get_ref();
            match value.get_ref() {
                DeValue::Table(table) if TABLES.contains(&name) => {
                    written.named(name, key.span(), table, dir, findings)
                }
                _ if TABLES.contains(&name) => {
                    findings
                        .add(Finding::error(value.span(), format!("`{name}`: expected a table: [{name}]")));
                }
                DeValue::Array(entries) if ENTRIES.contains(&name) => {
                    entries.iter().for_each(|entry| written.entry(name, entry, dir, findings));
                }
                _ if ENTRIES.contains(&name) => findings.add(
                    Finding::error(
                        key.span(),
                        format!("`{name}`: expected [[{name}]]: each entry is a table of its own"),
                    )
                    .help(format!("type [[{name}]]")),
                ),
                DeValue::Table(_) => findings.add(unknown_table(name, key.span(), false)),
                DeValue::Array(values)
                    if values.iter().any(|value| matches!(value.get_ref(), DeValue::Table(_))) =>
                {
                    findings.add(unknown_table(name, key.span(), true));
                }
                _ => top.push((key, value)),
            }
        }
        let grammar = keys::of_table::<ProcessTable>();
        let (_, matches) = table::parse(&grammar, 0..0, &top, dir, findings);
        if let Some(matches) = matches {
            written.process = ProcessTable::from_arg_matches(&matches).unwrap_or_default();
        }
        written.entries.sort_by_key(|(words, _)| words.header.start);
        written
    }

    fn named(&mut self, name: &str, header: Span, table: &DeTable<'_>, dir: &Path, findings: &mut Findings) {
        let mut parse =
            |grammar: &Grammar| table::parse(grammar, header.clone(), &pairs(table), dir, findings).1;
        if name == "admin" {
            let matches = parse(&keys::of_table::<AdminTable>());
            self.admin =
                matches.and_then(|matches| AdminTable::from_arg_matches(&matches).ok()).unwrap_or_default();
        } else {
            let matches = parse(&keys::of_table::<LogTable>());
            self.log =
                matches.and_then(|matches| LogTable::from_arg_matches(&matches).ok()).unwrap_or_default();
        }
    }

    fn entry(&mut self, name: &str, value: &Spanned<DeValue<'_>>, dir: &Path, findings: &mut Findings) {
        let DeValue::Table(table) = value.get_ref() else {
            findings.add(Finding::error(value.span(), format!("`{name}`: expected a table: [[{name}]]")));
            return;
        };
        let (words, matches) = table::parse(&grammar(name), value.span(), &pairs(table), dir, findings);
        let entry = matches.and_then(|matches| {
            Some(match name {
                "proxy" => Entry::Proxy(Box::new(ProxySpec::from_arg_matches(&matches).ok()?)),
                "https" => Entry::Https(Box::new(HttpsSpec::from_arg_matches(&matches).ok()?)),
                _ => Entry::Attach(Box::new(AttachArgs::from_arg_matches(&matches).ok()?)),
            })
        });
        self.entries.push((words, entry));
    }

    /// What it means. Every entry is judged, also where another one is wrong.
    fn plan(self, findings: &mut Findings) -> Option<(ProcessConfig, CheckedProcess)> {
        if self.entries.is_empty() && findings.have_errors() {
            return None;
        }
        if self.entries.is_empty() {
            findings.add(Finding::of_file(
                "nothing to do: expected at least one [[proxy]], [[https]] or [[attach]]",
            ));
            return None;
        }
        let admin = AdminConfig { listen: self.admin.listen };
        let log = LogConfig { verbosity: self.log.level.unwrap_or_default(), format: self.log.format };
        let mut places = Vec::new();
        let mut planned = Vec::new();
        for (words, entry) in self.entries {
            match entry.map(|entry| entry.plan(&self.process, log)) {
                Some(Ok(entry)) => {
                    places.push(words);
                    planned.push(entry);
                }
                Some(Err(problem)) => findings.add(words.of_problem(problem)),
                None => {}
            }
        }
        let process = ProcessConfig {
            workers: self.process.process.workers,
            max_flows: self.process.flows.max_flows,
            drain: self.process.process.drain_timeout.unwrap_or(defaults::DRAIN_TIMEOUT),
            admin,
            log,
            entries: planned,
        };
        let checked = check(&process, &places, findings);
        Some((process, checked))
    }
}

/// Checks each entry by itself. Those that can't be carried out are missing in the result, and among the findings.
fn check(process: &ProcessConfig, places: &[Words], findings: &mut Findings) -> CheckedProcess {
    let mut beside = Beside::of(process.binds());
    let mut entries = Vec::new();
    let mut attached: Vec<(AttachKey, Span)> = Vec::new();
    for (entry, words) in process.entries.iter().zip(places) {
        if let EntryConfig::Attach(args) = entry {
            let key = AttachKey::of(args);
            match attached.iter().find(|(other, _)| *other == key) {
                Some((_, first)) => findings.add(
                    words
                        .at("pins", None, "a second attachment in the same place; expected one with all ports, or another `pins`".to_owned())
                        .beside(first.clone(), "the first one"),
                ),
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
            Err(problem) => findings.add(words.of_problem(problem)),
        }
    }
    CheckedProcess { entries }
}

impl Entry {
    fn plan(self, process: &ProcessTable, log: LogConfig) -> Result<EntryConfig, Problem> {
        Ok(match self {
            Self::Proxy(mut spec) => {
                (spec.process, spec.flows) = (process.process.clone(), process.flows.clone());
                let config = Config::of_proxy(&spec, &Defaults::default())?;
                EntryConfig::Proxy(Box::new(Config { log, ..config }))
            }
            Self::Https(mut spec) => {
                spec.process = process.process.clone();
                EntryConfig::Https(Box::new(Config { log, ..Config::of_https(&spec)? }))
            }
            Self::Attach(args) => EntryConfig::Attach(args),
        })
    }
}

impl Words {
    /// A problem at the value that it is about.
    fn of_problem(&self, problem: Problem) -> Finding {
        let (key, value) = problem.about();
        let text = in_keys(&format!("{:#}", anyhow::Error::new(problem)));
        self.at(&key, value.as_deref(), text)
    }
}

/// The keys of an entry.
pub(super) fn grammar(entry: &str) -> Grammar {
    match entry {
        "proxy" => keys::of_entry::<ProxySpec>(&[
            keys::group::<ProcessTable>,
            keys::group::<AdminSpec>,
            keys::group::<LogSpec>,
        ]),
        "https" => keys::of_entry::<HttpsSpec>(&[
            keys::group::<ProcessSpec>,
            keys::group::<AdminSpec>,
            keys::group::<LogSpec>,
            keys::group::<StackArgs>,
        ]),
        _ => keys::of_entry::<AttachArgs>(&[]),
    }
}

fn unknown_table(name: &str, span: Span, is_list: bool) -> Finding {
    let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
    let finding = Finding::error(span, format!("{open}{name}{close}: there is no such table"));
    let shown =
        |name: &str| if ENTRIES.contains(&name) { format!("[[{name}]]") } else { format!("[{name}]") };
    match nearest(name, ENTRIES.into_iter().chain(TABLES)) {
        Some(meant) => finding.help(format!("did you mean {}?", shown(meant))),
        None => finding.help("expected [[proxy]], [[https]], [[attach]], [admin] or [log]"),
    }
}
