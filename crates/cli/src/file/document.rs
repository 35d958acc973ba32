//! The tables of a file, each as the command line that says the same.

use std::path::Path;

use clap::ArgMatches;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::entry::{ENTRIES, grammar};
use super::finding::{Finding, Findings, Span};
use super::keys::{self, Grammar, nearest};
use super::table::{self, Pair, pairs};
use super::written::{Written, WrittenEntry};
use crate::guess;
use truepeer_config::spec::{AcmeTable, AdminTable, LogTable, ProcessTable};

const TABLES: [&str; 3] = ["admin", "log", "acme"];

/// Reads the tables of one file.
struct Reader<'a> {
    dir: &'a Path,
    findings: &'a mut Findings,
}

impl Written {
    /// Relative paths begin at `dir`.
    pub(super) fn of(root: &DeTable<'_>, dir: &Path, findings: &mut Findings) -> Self {
        let mut reader = Reader { dir, findings };
        let mut written = Self::nothing();
        let mut top = Vec::new();
        for (key, value) in pairs(root) {
            let name: &str = key.get_ref();
            let entry = ENTRIES.into_iter().find(|entry| *entry == name);
            match (value.get_ref(), entry) {
                (DeValue::Table(table), None) if TABLES.contains(&name) => {
                    let (of_table, matches) = match name {
                        "admin" => (keys::of_table::<AdminTable>(), &mut written.admin),
                        "acme" => (keys::of_table::<AcmeTable>(), &mut written.acme),
                        _ => (keys::of_table::<LogTable>(), &mut written.log),
                    };
                    let of_table = Grammar { name: name.to_owned(), ..of_table };
                    let (words, read) =
                        table::parse(&of_table, key.span(), &pairs(table), reader.dir, reader.findings);
                    *matches = read.unwrap_or_else(|| of_table.nothing());
                    if name == "acme" {
                        written.acme_words = words;
                    }
                }
                (_, None) if TABLES.contains(&name) => {
                    reader.complain(value.span(), format!("`{name}`: expected a table: [{name}]"));
                }
                (DeValue::Array(entries), Some(entry)) => {
                    written.entries.extend(entries.iter().filter_map(|value| reader.entry(entry, value)));
                }
                (_, Some(_)) => {
                    let text = format!("`{name}`: expected [[{name}]]: each entry is a table of its own");
                    reader.findings.add(Finding::error(key.span(), text).help(format!("type [[{name}]]")));
                }
                (DeValue::Table(table), None) => {
                    reader.findings.add(unknown_table(name, key.span(), table, false));
                }
                (value_of, None) => match value_of.as_array().and_then(first_table) {
                    Some(table) => reader.findings.add(unknown_table(name, key.span(), table, true)),
                    None => top.push((key, value)),
                },
            }
        }
        written.top = reader.top(&top);
        written.entries.sort_by_key(|entry| entry.words.header.start);
        written
    }
}

impl Reader<'_> {
    fn complain(&mut self, span: Span, text: String) {
        self.findings.add(Finding::error(span, text));
    }

    fn top(&mut self, pairs: &[Pair<'_, '_>]) -> ArgMatches {
        let grammar = keys::of_table::<ProcessTable>();
        let is_misplaced = |&&(key, _): &&Pair<'_, '_>| {
            let name: &str = key.get_ref();
            grammar.key(name).is_none()
                && ENTRIES.iter().any(|entry| self::grammar(entry).key(name).is_some())
        };
        let misplaced: Vec<_> = pairs.iter().filter(is_misplaced).collect();
        if let Some((first, _)) = misplaced.first() {
            let names: Vec<&str> = misplaced.iter().map(|(key, _)| key.get_ref().as_ref()).collect();
            let entry = likeliest(&names).unwrap_or(ENTRIES[0]);
            let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let text = format!("{}: no key of the whole process", quoted.join(", "));
            let help = format!("write [[{entry}]] in a line before `{}`", first.get_ref());
            self.findings.add(Finding::error(first.span(), text).help(help));
        }
        let own: Vec<_> = pairs.iter().filter(|pair| !is_misplaced(pair)).copied().collect();
        let matches = table::parse(&grammar, 0..0, &own, self.dir, self.findings).1;
        matches.unwrap_or_else(|| grammar.nothing())
    }

    fn entry(&mut self, name: &'static str, value: &Spanned<DeValue<'_>>) -> Option<WrittenEntry> {
        let DeValue::Table(table) = value.get_ref() else {
            self.complain(value.span(), format!("`{name}`: expected a table: [[{name}]]"));
            return None;
        };
        let (words, matches) =
            table::parse(&grammar(name), value.span(), &pairs(table), self.dir, self.findings);
        Some(WrittenEntry { name, words, matches })
    }
}

fn first_table<'a, 'i>(values: &'a DeArray<'i>) -> Option<&'a DeTable<'i>> {
    values.iter().find_map(|value| value.get_ref().as_table())
}

/// The entry that has the most of these keys, the first of several.
fn likeliest(keys: &[&str]) -> Option<&'static str> {
    let count = |entry: &str| {
        let grammar = grammar(entry);
        let is_its = |key: &&&str| grammar.key(key).is_some() || guess::key(entry, key, None).is_some();
        keys.iter().filter(is_its).count()
    };
    ENTRIES.into_iter().rev().max_by_key(|entry| count(entry)).filter(|entry| count(entry) > 0)
}

fn unknown_table(name: &str, span: Span, table: &DeTable<'_>, is_list: bool) -> Finding {
    let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
    let finding = Finding::error(span, format!("{open}{name}{close}: there is no such table"));
    let keys: Vec<&str> = table.keys().map(|key| key.get_ref().as_ref()).collect();
    let whole = keys::of_table::<ProcessTable>();
    if !keys.is_empty() && keys.iter().all(|key| whole.key(key).is_some()) {
        return finding.help("write these keys at the top of the file, before the first table");
    }
    if ["Unit", "Service", "Socket", "Install"].contains(&name) {
        return finding
            .help("this is a unit of systemd; the file of truepeer has [[proxy]], [[https]] or [[attach]]");
    }
    if let Some(help) = guess::key("table", name, None) {
        return finding.help(help);
    }
    let meant = nearest(name, ENTRIES.into_iter().chain(TABLES)).or_else(|| likeliest(&keys));
    match meant {
        Some(meant) if ENTRIES.contains(&meant) => finding.help(format!("did you mean [[{meant}]]?")),
        Some(meant) => finding.help(format!("did you mean [{meant}]?")),
        None => finding
            .help("expected [[proxy]], [[https]], [[attach]], [admin], [log] or [acme]: truepeer.toml(5)"),
    }
}
