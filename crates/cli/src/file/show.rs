//! A configuration as the text of a file: that of a command line, or a whole one with every default.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, FromArgMatches as _};

use super::entry::{Entry, Shared, grammar, meaning, rows};
use super::keys::{self, Grammar, in_keys, quoted};
use super::value;
use super::written::Written;
use crate::table::{self, Commands, Default};
use truepeer_config::plan::{LogConfig, Problem, Problems};
use truepeer_config::spec::values::LEVELS;
use truepeer_config::spec::{
    AcmeSpec, AcmeTable, AdminSpec, AdminTable, LogFormat, LogSpec, LogTable, ProcessTable, StackArgs,
};

/// A key's words. None at all: a switch that is on.
type Words = Vec<String>;

/// `truepeer NAME …` as a file.
pub(crate) fn of_command(name: &str, matches: &ArgMatches, dir: &Path) -> Result<String, Problems> {
    if keys::group::<StackArgs>().get_arguments().any(|arg| is_given(arg, matches)) {
        let stack = "VPP's stack takes a process of its own: a file can't have it";
        return Err(Problem::at("stack", stack).into());
    }
    // `attach` has no log.
    let has_log = matches.try_contains_id("log_format").is_ok();
    let log = if has_log { LogSpec::from_arg_matches(matches).ok() } else { None };
    let log = log.map_or(Ok(LogConfig::default()), |log| LogConfig::of(&log))?;
    if let Some(entry) = Entry::of(name, matches) {
        entry.plan(&Shared::default())?;
    }
    let grammar = grammar(name);
    let mut text = String::new();
    for (arg, words) in given(&keys::of_table::<ProcessTable>(), matches, dir) {
        let _ = writeln!(text, "{}", line(arg, &words));
    }
    for arg in keys::group::<AdminSpec>().get_arguments().filter(|arg| is_given(arg, matches)) {
        let addresses: Vec<_> = words(arg, matches, dir).iter().map(|address| quoted(address)).collect();
        let _ = write!(text, "\n[admin]\nlisten = [{}]\n", addresses.join(", "));
    }
    let of_acme: Vec<_> = keys::group::<AcmeSpec>()
        .get_arguments()
        .filter(|arg| is_given(arg, matches))
        .map(|arg| line(arg, &words(arg, matches, dir)))
        .collect();
    if !of_acme.is_empty() {
        text.push_str("\n[acme]\n");
        // The keys of the table are the options without the table's name.
        of_acme.iter().for_each(|line| _ = writeln!(text, "{}", line.trim_start_matches("acme-")));
    }
    if log != LogConfig::default() {
        text.push_str("\n[log]\n");
        let level = LEVELS.iter().find(|(_, level)| *level == log.verbosity).map_or("info", |(name, _)| name);
        let _ = writeln!(text, "level = \"{level}\"");
        if let Some(format) = log.format {
            let _ =
                writeln!(text, "format = \"{}\"", if format == LogFormat::Json { "json" } else { "text" });
        }
    }
    let _ = writeln!(text, "\n[[{name}]]");
    for (arg, words) in given(&grammar, matches, dir) {
        let _ = writeln!(text, "{}", line(arg, &words));
    }
    Ok(text.trim_start().to_owned())
}

/// The file with every default: it means the same.
pub(super) fn whole(written: &Written, dir: &Path) -> String {
    let mut text = String::new();
    let mut simple = |title: &str, grammar: &Grammar, matches: &ArgMatches, rows: Commands| {
        text.push_str(title);
        Table { grammar, matches, rows, dir }.write(&mut text, |_| true);
    };
    simple("", &keys::of_table::<ProcessTable>(), &written.top, table::PROXY);
    simple("\n[admin]\n", &keys::of_table::<AdminTable>(), &written.admin, table::ADMIN_TABLE);
    simple("\n[acme]\n", &keys::of_table::<AcmeTable>(), &written.acme, table::ACME_TABLE);
    simple("\n[log]\n", &keys::of_table::<LogTable>(), &written.log, table::LOG_TABLE);
    for entry in &written.entries {
        let Some(matches) = &entry.matches else { continue };
        let (name, grammar) = (entry.name, grammar(entry.name));
        let _ = write!(text, "\n[[{name}]]\n");
        let means = |matches: &ArgMatches| {
            let planned = Entry::of(name, matches)?.plan(&Shared::default());
            meaning(&planned.ok()?).ok()
        };
        let usual = means(matches);
        Table { grammar: &grammar, matches, rows: rows(name), dir }.write(&mut text, |words| {
            let parsed = grammar.command.clone().try_get_matches_from(words);
            parsed.is_ok_and(|matches| means(&matches) == usual)
        });
    }
    text
}

/// A table to be written with its defaults.
struct Table<'a> {
    grammar: &'a Grammar,
    matches: &'a ArgMatches,
    rows: Commands,
    dir: &'a Path,
}

impl Table<'_> {
    /// `is_same`: whether the table means the same with these words. A default that depends on other keys,
    /// such as that of TLS without a certificate, becomes a comment.
    fn write(&self, text: &mut String, is_same: impl Fn(&[String]) -> bool) {
        let given = given(self.grammar, self.matches, self.dir);
        let typed: Vec<_> = given.iter().flat_map(|(arg, words)| arguments(arg, words)).collect();
        let mut keys: Vec<_> = self.grammar.keys().collect();
        keys.sort_by_key(|arg| table::find(self.rows, name(arg)).map(|(place, _)| place));
        for key in keys {
            if let Some((_, words)) = given.iter().find(|(arg, _)| arg.get_id() == key.get_id()) {
                let _ = writeln!(text, "{}", line(key, words));
                continue;
            }
            let Some((_, row)) = table::find(self.rows, name(key)) else { continue };
            let written = match row.default {
                Default::Nothing if !key.get_action().takes_values() => format!("{} = false", name(key)),
                Default::Nothing => format!("# {}: none", name(key)),
                Default::Words(words) => format!("# {}: {}", name(key), in_keys(words)),
                Default::Value(value) => {
                    let words = vec![value()];
                    let with = [&typed[..], &arguments(key, &words)].concat();
                    let comment = if is_same(&with) { "" } else { "# " };
                    format!("{comment}{}", line(key, &words))
                }
            };
            let _ = writeln!(text, "{written}");
        }
    }
}

fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// The keys that were written, and their words.
fn given<'a>(grammar: &'a Grammar, matches: &ArgMatches, dir: &Path) -> Vec<(&'a Arg, Words)> {
    let keys = grammar.keys().filter(|arg| is_given(arg, matches));
    keys.map(|arg| (arg, words(arg, matches, dir))).collect()
}

fn is_given(arg: &Arg, matches: &ArgMatches) -> bool {
    let id = arg.get_id().as_str();
    let is_there = matches.try_contains_id(id).unwrap_or(false);
    is_there && matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine)
}

fn words(arg: &Arg, matches: &ArgMatches, dir: &Path) -> Words {
    if !arg.get_action().takes_values() {
        return Vec::new();
    }
    let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    raw.map(|word| value::absolute(arg, word.to_string_lossy().into_owned(), dir)).collect()
}

fn arguments(arg: &Arg, words: &[String]) -> Vec<String> {
    if words.is_empty() {
        return vec![format!("--{}", name(arg))];
    }
    words.iter().map(|word| format!("--{}={word}", name(arg))).collect()
}

/// `key = value`.
fn line(arg: &Arg, words: &[String]) -> String {
    let values: Vec<_> = words.iter().map(|word| value::written(arg, word)).collect();
    let value = match (arg.get_action(), &values[..]) {
        (_, []) => "true".to_owned(),
        (ArgAction::Append, values) => format!("[{}]", values.join(", ")),
        (_, values) => values.join(" "),
    };
    format!("{} = {value}", name(arg))
}
