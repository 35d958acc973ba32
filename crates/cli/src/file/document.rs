//! The tables of a file, each as the command line that says the same.

use std::path::Path;

use clap::ArgMatches;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::{ENTRIES, grammar};
use super::finding::{Finding, Findings, Span};
use super::keys::{self, nearest};
use super::table::{self, Pair, pairs};
use super::written::{Written, WrittenEntry};
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
                (DeValue::Table(_), None) => reader.findings.add(unknown_table(name, key.span(), false)),
                (DeValue::Array(values), None) if values.iter().any(|value| value.get_ref().is_table()) => {
                    reader.findings.add(unknown_table(name, key.span(), true));
                }
                (_, None) => top.push((key, value)),
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
        let entry_of = |key: &str| ENTRIES.into_iter().find(|entry| self::grammar(entry).key(key).is_some());
        let mut own = Vec::new();
        for &(key, value) in pairs {
            let name: &str = key.get_ref();
            match entry_of(name).filter(|_| grammar.key(name).is_none()) {
                Some(entry) => {
                    let text = format!("`{name}`: there is no such key here");
                    let help = format!("it belongs to an entry: write [[{entry}]] in a line before it");
                    self.findings.add(Finding::error(key.span(), text).help(help));
                }
                None => own.push((key, value)),
            }
        }
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

fn unknown_table(name: &str, span: Span, is_list: bool) -> Finding {
    let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
    let finding = Finding::error(span, format!("{open}{name}{close}: there is no such table"));
    let shown =
        |name: &str| if ENTRIES.contains(&name) { format!("[[{name}]]") } else { format!("[{name}]") };
    match nearest(name, ENTRIES.into_iter().chain(TABLES)) {
        Some(meant) => finding.help(format!("did you mean {}?", shown(meant))),
        None => finding.help("expected [[proxy]], [[https]], [[attach]], [admin], [log] or [acme]"),
    }
}
