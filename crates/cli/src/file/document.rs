//! The tables of a file, each as the command line that says the same.

use std::path::Path;

use clap::ArgMatches;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::{ENTRIES, grammar};
use super::finding::{Finding, Findings, Span};
use super::keys::{self, Grammar, nearest};
use super::table::{self, Pair, pairs};
use super::written::{Written, WrittenEntry};
use crate::guess;
use truepeer_config::spec::{AcmeTable, AdminTable, LogTable, ProcessTable};

pub(super) const TABLES: [&str; 3] = ["admin", "log", "acme"];

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
                    let text = format!("`{name}`: expected a table: [{name}]");
                    let typed = reader.findings.typed(&value.span());
                    let help = match value.get_ref().as_str() {
                        Some(_) if name == "admin" => format!("type [admin], and below it listen = {typed}"),
                        _ => format!("type [{name}]"),
                    };
                    reader.findings.add(Finding::error(value.span(), text).help(help));
                }
                (DeValue::Array(entries), Some(entry)) => {
                    written.entries.extend(entries.iter().filter_map(|value| reader.entry(entry, value)));
                }
                (_, Some(entry)) => {
                    // `[proxy]`, or `[proxy.web]` and `[proxy.mail]`
                    let each: Vec<Pair<'_, '_>> = match value.get_ref().as_table() {
                        Some(table) if table.values().all(|value| value.get_ref().is_table()) => pairs(table),
                        _ => vec![(key, value)],
                    };
                    for (key, value) in each {
                        let text = format!("`{name}`: expected [[{name}]]: each entry is a table of its own");
                        reader
                            .findings
                            .add(Finding::error(key.span(), text).help(format!("type [[{name}]]")));
                        if value.get_ref().is_table() {
                            written.entries.extend(reader.entry(entry, value));
                        }
                    }
                }
                (value_of, None) => match first_table(value) {
                    Some((table, as_table)) => {
                        let is_list = value_of.is_array();
                        let (finding, meant) = unknown_table(name, key.span(), as_table, is_list);
                        reader.findings.add(finding);
                        match meant {
                            Meant::Entry(entry) => written.entries.extend(reader.entry(entry, table)),
                            Meant::Top => top.extend(pairs(as_table)),
                            Meant::Other => {}
                        }
                    }
                    None => top.push((key, value)),
                },
            }
        }
        let entries: Vec<&str> = written.entries.iter().map(|entry| entry.name).collect();
        written.top = reader.top(&top, &entries);
        written.entries.sort_by_key(|entry| entry.words.header.start);
        written
    }
}

impl Reader<'_> {
    fn complain(&mut self, span: Span, text: String) {
        self.findings.add(Finding::error(span, text));
    }

    /// `entries`: the names of the file's entries.
    fn top(&mut self, pairs: &[Pair<'_, '_>], entries: &[&str]) -> ArgMatches {
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
            let help = match entries {
                [one] => format!("write this below the line [[{one}]]"),
                _ => format!("write [[{entry}]] in a line before `{}`", first.get_ref()),
            };
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

/// The value if it is a table, or the first table of a list.
fn first_table<'a, 'i>(
    value: &'a Spanned<DeValue<'i>>,
) -> Option<(&'a Spanned<DeValue<'i>>, &'a DeTable<'i>)> {
    let as_table = |value: &'a Spanned<DeValue<'i>>| Some((value, value.get_ref().as_table()?));
    as_table(value).or_else(|| value.get_ref().as_array()?.iter().find_map(as_table))
}

/// The table that the user meant by an unknown one.
enum Meant {
    Entry(&'static str),
    /// The keys before the first table.
    Top,
    Other,
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

fn unknown_table(name: &str, span: Span, table: &DeTable<'_>, is_list: bool) -> (Finding, Meant) {
    let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
    let finding = Finding::error(span, format!("{open}{name}{close}: there is no such table"));
    let keys: Vec<&str> = table.keys().map(|key| key.get_ref().as_ref()).collect();
    let whole = keys::of_table::<ProcessTable>();
    if !keys.is_empty() && keys.iter().all(|key| whole.key(&keys::typed(key)).is_some()) {
        let help = "leave this line out, and write its keys at the top of the file, before the first table";
        return (finding.help(help), Meant::Top);
    }
    let is_backend = ["backend", "upstream", "target", "origin"].contains(&name.trim_end_matches('s'));
    let mut texts = table.values().filter_map(|value| keys::text_of(value.get_ref()));
    if let Some(backend) = texts.find(|text| is_backend && guess::is_address(text))
        && !keys.iter().any(|key| ["listen", "bind"].contains(key))
    {
        let line = keys::in_keys(&guess::to("proxy", backend));
        return (finding.help(format!("leave this table out, and type in [[proxy]]: {line}")), Meant::Other);
    }
    let other = if ["Unit", "Service", "Socket", "Install"].contains(&name) {
        Some(
            "this is a unit of systemd; the file of truepeer has [[proxy]], [[https]] or [[attach]]"
                .to_owned(),
        )
    } else {
        guess::key("table", name, None)
    };
    if let Some(help) = other {
        return (finding.help(help), Meant::Other);
    }
    let meant = nearest(&name.to_lowercase(), ENTRIES.into_iter().chain(TABLES)).or_else(|| likeliest(&keys));
    match meant.map(|meant| (ENTRIES.into_iter().find(|entry| *entry == meant), meant)) {
        Some((Some(entry), _)) => (finding.help(format!("type [[{entry}]]")), Meant::Entry(entry)),
        Some((None, meant)) => (finding.help(format!("type [{meant}]")), Meant::Other),
        None => {
            let all = "expected [[proxy]], [[https]], [[attach]], [admin], [log] or [acme]: truepeer.toml(5)";
            (finding.help(all), Meant::Other)
        }
    }
}
