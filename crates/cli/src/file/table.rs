//! One table of the file, parsed as the command line that has the same words.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::finding::{Finding, Findings, Span};
use super::keys::{self, Grammar};
use super::value;
use crate::guess::{meant, takes};
use truepeer_policy::above_255;

/// The words of a table.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The table's header; of the first keys, the file's start.
    pub(super) header: Span,
    words: Vec<Word>,
}

/// A word, and the places of its key and value.
#[derive(Debug)]
struct Word {
    key: String,
    at_key: Span,
    at_value: Span,
    /// `None`: a switch that is on.
    text: Option<String>,
    /// As it stands in the file.
    typed: String,
}

impl Word {
    fn argument(&self) -> String {
        match &self.text {
            Some(text) => format!("--{}={text}", self.key),
            None => format!("--{}", self.key),
        }
    }
}

pub(super) type Pair<'a, 'i> = (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>);

/// The keys and values of a table, in the order of the file.
pub(super) fn pairs<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Pair<'a, 'i>> {
    let mut pairs: Vec<_> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    pairs
}

/// Parses a table. `None`: something is wrong, which is among the findings.
pub(super) fn parse(
    grammar: &Grammar,
    header: Span,
    pairs: &[Pair<'_, '_>],
    dir: &Path,
    findings: &mut Findings,
) -> (Words, Option<ArgMatches>) {
    let mut words = Words { header, words: Vec::new() };
    let (mut is_whole, mut unknown) = (true, Vec::new());
    for (key, value) in pairs {
        let Some(arg) = grammar.key(key.get_ref()) else {
            unknown.push((*key, *value));
            is_whole = false;
            continue;
        };
        match value::words(arg, value, dir) {
            Ok(found) => words.words.extend(found.into_iter().map(|(at_value, text)| Word {
                key: key.get_ref().to_string(),
                at_key: key.span(),
                typed: findings.typed(&at_value),
                at_value,
                text,
            })),
            Err(finding) => {
                findings.add(finding);
                is_whole = false;
            }
        }
    }
    words.add_unknown(grammar, &unknown, findings);
    let parsed = parse_words(&grammar.command, &words.words);
    let matches = match parsed {
        Ok(matches) => Some(matches),
        Err(error) => {
            let wrong = words.wrong_values(&grammar.command);
            // Without a wrong value, the error is about several words. With one, don't report a missing word:
            // it may be the one that was wrong.
            if wrong.is_empty() && is_whole {
                findings.add(words.of_all(&error));
            }
            wrong.into_iter().for_each(|finding| findings.add(finding));
            None
        }
    };
    (words, matches.filter(|_| is_whole))
}

fn parse_words(command: &Command, words: &[Word]) -> Result<ArgMatches, clap::Error> {
    command.clone().try_get_matches_from(words.iter().map(Word::argument))
}

impl Words {
    /// Every word that is wrong by itself.
    fn wrong_values(&self, command: &Command) -> Vec<Finding> {
        let mut alone = command.clone().mut_args(|arg| arg.required(false)).args_override_self(true);
        let mut wrong = Vec::new();
        for word in &self.words {
            if let Err(error) = alone.try_get_matches_from_mut([word.argument()]) {
                let text = format!("{} = {}: {}", word.key, word.typed, keys::in_keys(&reason(&error)));
                let finding = Finding::error(word.at_value.clone(), text);
                let typed = word.text.as_deref().unwrap_or_default();
                let help = meant(command, &word.key, typed)
                    .map(|_| format!("type {}", keys::assigned(&word.key, &self.mended(command, &word.key))));
                let other = match typed {
                    "auto" | "default" => Some(format!("leave {} out: its default is taken", word.key)),
                    _ if typed.contains('$') => Some("write the value: no variable is replaced".to_owned()),
                    _ => above_255(typed),
                };
                wrong.push(match help.or(other) {
                    Some(help) => finding.help(help),
                    None => finding,
                });
            }
        }
        wrong
    }

    /// The values of a key as they are written in the file, those that are wrong mended.
    fn mended(&self, command: &Command, key: &str) -> Vec<String> {
        let of_key = self.words.iter().filter(|word| word.key == key);
        let values = of_key.map(|word| match meant(command, key, word.text.as_deref().unwrap_or_default()) {
            Some(words) if !takes(command, key, word.text.as_deref().unwrap_or_default()) => {
                words.iter().map(|word| keys::quoted(word)).collect()
            }
            _ => vec![word.typed.clone()],
        });
        values.flatten().collect()
    }

    /// Keys that are not there. Several that mean one key get one line for it, with all their values.
    fn add_unknown(&self, grammar: &Grammar, unknown: &[Pair<'_, '_>], findings: &mut Findings) {
        let found: Vec<_> = unknown
            .iter()
            .map(|(key, value)| grammar.unknown(key.get_ref(), key.span(), value.get_ref()))
            .collect();
        let named = |finding: &Finding| finding.to_type().map(|(name, _)| name.to_owned());
        let mut told = Vec::new();
        for finding in found.iter().cloned() {
            let Some(name) = named(&finding) else {
                findings.add(finding);
                continue;
            };
            let is_list = grammar.key(&name).is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append));
            // Another listener or port is none that was there already.
            let is_other = ["listen", "port"].contains(&name.as_str()) && grammar.name != "admin";
            let given = self.mended(&grammar.command, &name);
            let is_given = !given.is_empty();
            let same = found.iter().filter(|other| named(other).as_ref() == Some(&name));
            let others = same.filter_map(Finding::to_type).flat_map(|(_, written)| elements(written));
            let mut values: Vec<String> = Vec::new();
            for value in given.into_iter().filter(|_| !is_other).chain(others) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            // `protocol = "udp"`, whose port is an example
            if is_other && values.iter().any(|value| value == "\"53/udp\"") {
                let own = self.mended(&grammar.command, &name);
                let (examples, others): (Vec<_>, Vec<_>) =
                    values.iter().cloned().partition(|value| value.starts_with("\"53"));
                let each = |port: &String| {
                    let port = port.trim_matches('"').to_owned();
                    examples.iter().map(move |value| value.replace("53", &port))
                };
                let ports: Vec<String> = own.iter().chain(&others).flat_map(each).collect();
                values = if ports.is_empty() { values } else { ports };
            }
            // `localIP` and `localPort`
            let bare = |value: Option<&String>| value.map_or("", |value| value.trim_matches('"')).to_owned();
            let (host, last) = (bare(values.first()), bare(values.last()));
            let joined = format!("{host}:{}", last.rsplit(':').next().unwrap_or_default());
            let is_one = values.len() > 1 && takes(&grammar.command, &name, &joined);
            let longest = || values.iter().max_by_key(|value| value.len()).cloned();
            let one = || is_one.then(|| keys::quoted(&joined)).or_else(longest).into_iter().collect();
            let line = keys::assigned(&name, &if is_list { values } else { one() });
            findings.add(match (is_given, told.contains(&name)) {
                (true, _) => finding.help(format!("leave this line out, and type where `{name}` is: {line}")),
                (_, true) => finding.help(format!("leave this line out: `{name}` has it")),
                _ => finding.typing(&line),
            });
            told.push(name);
        }
    }

    /// `listen` without the addresses that it has twice, or else on another port than this one.
    pub(super) fn on_another(&self, port: u16) -> String {
        let mut values = self.mended(&Command::new("entry"), "listen");
        let count = values.len();
        let mut known = std::collections::HashSet::new();
        values.retain(|value| known.insert(value.clone()));
        if values.len() == count {
            let (this, next) = (format!(":{port}\""), format!(":{}\"", port.wrapping_add(1)));
            values.iter_mut().for_each(|value| *value = value.replace(&this, &next));
        }
        keys::assigned("listen", &values)
    }

    /// An error about several words: one is missing, or two contradict each other.
    fn of_all(&self, error: &clap::Error) -> Finding {
        let names = |kind| {
            let names: Vec<String> = match error.get(kind) {
                Some(ContextValue::String(one)) => vec![one.clone()],
                Some(ContextValue::Strings(several)) => several.clone(),
                _ => Vec::new(),
            };
            names.iter().map(|name| keys::in_keys(name)).collect::<Vec<_>>()
        };
        let given = names(ContextKind::InvalidArg);
        match error.kind() {
            ErrorKind::MissingRequiredArgument => {
                Finding::error(self.header.clone(), format!("expected {} here", given.join(" and ")))
            }
            ErrorKind::ArgumentConflict => {
                let (first, second) = (given.join(""), names(ContextKind::PriorArg).join(" and "));
                let name = first.split(' ').next().unwrap_or_default();
                self.at(name, None, format!("`{name}`: expected no {second} with it"))
            }
            _ => Finding::error(self.header.clone(), keys::in_keys(&reason(error))),
        }
    }

    /// A finding at the key's value, or at the table's header.
    pub(super) fn at(&self, key: &str, value: Option<&str>, text: String) -> Finding {
        Finding::error(self.span(key, value), text)
    }

    /// The place of this value of the key, or of the key if it has no such value.
    pub(super) fn span(&self, key: &str, value: Option<&str>) -> Span {
        let mut of_key = self.words.iter().filter(|word| word.key == key);
        let same = of_key.clone().find(|word| value.is_some() && word.text.as_deref() == value);
        match (same, of_key.next(), of_key.next()) {
            (Some(word), ..) | (None, Some(word), None) => word.at_value.clone(),
            (None, Some(word), Some(_)) => word.at_key.clone(),
            (None, None, _) => self.header.clone(),
        }
    }
}

/// What the option's own parser says; what clap says otherwise.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) {
        return format!("expected {}", keys::any_of(valid));
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

/// The elements of a list as it is written, or the one value.
pub(super) fn elements(written: &str) -> Vec<String> {
    let inner = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(inner) => {
            inner.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
        }
        None => vec![written.to_owned()],
    }
}
