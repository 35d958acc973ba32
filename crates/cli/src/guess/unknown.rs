//! Words that clap refuses: what it expected, and what to type.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::super::{UsageError, command, dress};
use super::value::{meant, takes};
use super::words::{find, find_by_part, saying};
use crate::in_keys::{any_of, in_keys};
use crate::table;

/// The commands that may have an option that was typed for another one, the likeliest first.
const LIKELY: [&str; 12] = [
    "attach", "proxy", "run", "https", "connect", // the ways
    "serve", "sessions", "ban", "doctor", "probe", "status", "top",
];

/// Turns an error of clap into one that names what to type. Where clap's own text does, it stays, and gets a
/// tip.
pub(crate) fn explain(argv: &[OsString], mut error: clap::Error) -> UsageError {
    let all = command();
    let named = |command: &Command, place: usize| {
        argv.get(place).and_then(|word| command.find_subcommand(word)).cloned()
    };
    let way = named(&all, 1);
    let examples = way.as_ref().map(dress::example_lines).unwrap_or_default();
    let name = argv.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    let command = way.map(|way| named(&way, 2).unwrap_or(way)).unwrap_or_default();
    if let Some(said) = unknown(&all, (&name, &command), argv, &examples, &mut error) {
        return UsageError::Options(said);
    }
    if let Some(tip) = tip(&error, &command, &examples) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error.into()
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(all)) => all.first().map(String::as_str),
        _ => None,
    }
}

/// `None`: clap's own suggestion says it.
fn unknown(
    all: &Command,
    (name, command): (&str, &Command),
    argv: &[OsString],
    examples: &[String],
    error: &mut clap::Error,
) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = text(error, ContextKind::InvalidArg)?.to_owned();
            // Only clap knows where the program of `run` begins.
            if let Some((typed, instead)) = find(name, &[typed.as_str()]) {
                return Some(saying(typed, "not a word of this command", &instead));
            }
            let said = undashed(command, &typed).or_else(|| one_too_many(argv, command, &typed));
            if let Some(said) =
                said.or_else(|| of_others(all, name, &typed).filter(|_| typed.starts_with("--")))
            {
                return Some(said);
            }
            let suggested =
                text(error, ContextKind::SuggestedArg).and_then(|meant| main_name(command, meant));
            let by_part = find_by_part(name, &typed).filter(|_| typed.starts_with("--"));
            let least = if by_part.is_some() { 0.93 } else { 0.85 };
            if let Some(meant) = suggested.filter(|meant| is_like(&typed, meant, least)) {
                error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{meant}")));
                return None;
            }
            if let Some(instead) = by_part {
                return Some(saying(&typed, "not a word of this command", &instead));
            }
            let more = format!("more: truepeer {name} --help");
            let expected = match (related(command, &typed), usual(command)) {
                (Some(some), _) if typed.starts_with('-') => format!("did you mean {some}?"),
                (_, usual) if usual.is_empty() => {
                    format!("for example: {};", examples.first().map(String::as_str).unwrap_or_default())
                }
                (_, usual) => format!("expected {usual};"),
            };
            Some(match typed.starts_with('-') {
                true => format!("{typed}: not a word of this command; {expected} {more}"),
                false => format!("{typed}: expected an option before it; {expected} {more}"),
            })
        }
        ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict if name == "attach" => {
            let typed = text(error, ContextKind::InvalidSubcommand)?;
            let name = typed.rsplit('/').next().unwrap_or(typed);
            undashed(command, typed).or_else(|| one_too_many(argv, command, typed)).or_else(|| {
                Some(format!(
                    "{typed}: expected an option before it; type: truepeer attach --port 443 --allow PREFIX; \
                 for a container with --container {name}, for a unit of systemd with --unit {name}"
                ))
            })
        }
        ErrorKind::InvalidSubcommand => {
            let typed = text(error, ContextKind::InvalidSubcommand)?;
            if text(error, ContextKind::SuggestedSubcommand).is_some_and(|meant| is_like(typed, meant, 0.85))
            {
                return None;
            }
            Some(format!(
                "{typed}: no command of truepeer; expected attach (for a server that runs), run (to start \
                 one), proxy, https, connect, serve (what a file says), check, reload, upgrade, doctor, \
                 status, sessions, top, probe, ban, unban, bans or routes; more: truepeer --help"
            ))
        }
        _ => None,
    }
}

/// An option without its dashes, or in the other case.
fn undashed(command: &Command, typed: &str) -> Option<String> {
    let name = typed.split('=').next().unwrap_or(typed);
    if !typed.starts_with('-') {
        let value = typed.strip_prefix(name).unwrap_or_default();
        return main_name(command, name)
            .map(|name| format!("{typed}: expected an option; type: --{name}{value}"));
    }
    let flip = |c: char| if c.is_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() };
    let other: String = name.chars().map(flip).collect();
    if name.len() == 2 && has(command, &other) {
        return Some(format!("{typed}: not a word of this command; did you mean {other}?"));
    }
    let letter = name.strip_prefix('-')?.to_lowercase();
    let longs = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_hide_short_help_set());
    let starting: Vec<_> = longs
        .filter_map(Arg::get_long)
        .filter(|long| letter.len() == 1 && long.starts_with(&letter))
        .map(|long| format!("--{long}"))
        .collect();
    (!starting.is_empty())
        .then(|| format!("{typed}: not a word of this command; did you mean {}?", any_of(&starting)))
}

/// A word behind the value of an option, which takes one: `--port 80 443`, `-4 HOST PORT`.
fn one_too_many(argv: &[OsString], command: &Command, typed: &str) -> Option<String> {
    let place = argv.iter().position(|word| word == typed).filter(|_| !typed.starts_with('-'))?;
    let before = |count: usize| argv.get(place.checked_sub(count)?)?.to_str();
    let value = before(1)?;
    let called = |word: &str| command.get_arguments().find(|arg| is_called(arg, word));
    if let Some(switch) = called(value).filter(|arg| !arg.get_action().takes_values()) {
        let with_value = command.get_arguments().find(|arg| {
            arg.get_action().takes_values()
                && arg.get_short().is_some()
                && arg.get_short() == value.trim_start_matches('-').chars().next()
        });
        let other = with_value.and_then(Arg::get_short).map(|short| format!("; type: -{short} {typed}"));
        return Some(format!("{typed}: {value} takes no value{}", other.unwrap_or_default()))
            .filter(|_| switch.get_long().is_some());
    }
    let option = before(2)?;
    let arg = called(option)?;
    let name = arg.get_long().filter(|_| arg.get_action().takes_values() && !value.starts_with('-'))?;
    let joined = [",", ":", " "].map(|between| format!("{value}{between}{typed}"));
    // A path may have any character.
    let is_free = takes(command, name, "?,?");
    let in_one = |word: &String| {
        let is_it = !is_free && takes(command, name, word);
        if is_it { Some(word.clone()) } else { meant(command, name, word)?.into_iter().next() }
    };
    if let Some(word) = joined.iter().find_map(in_one).filter(|word| !is_free && word.len() > value.len()) {
        return Some(format!("{typed}: expected in one word; type: {option} {word}"));
    }
    let again =
        matches!(arg.get_action(), ArgAction::Append).then(|| format!("; several: {option} A {option} B"));
    Some(format!("{typed}: a word too many, {option} takes one{}", again.unwrap_or_default()))
}

/// An option of other commands.
fn of_others(all: &Command, name: &str, typed: &str) -> Option<String> {
    let is_way = LIKELY[..5].contains(&name);
    let having = LIKELY[..if is_way { 5 } else { LIKELY.len() }].iter().filter(|other| **other != name);
    let having = having.filter(|other| all.find_subcommand(other).is_some_and(|other| has(other, typed)));
    let having: Vec<&str> = having.copied().collect();
    let first = having.first()?;
    let key = in_keys(typed);
    let rows = match *first {
        "proxy" => Some(table::PROXY),
        "https" => Some(table::HTTPS),
        "attach" => Some(table::ATTACH),
        _ => None,
    };
    let has_file = matches!(name, "serve" | "check" | "reload" | "upgrade");
    let is_of_file = has_file && rows.is_some_and(|rows| table::find(rows, &key).is_some());
    let in_file = is_of_file.then(|| format!("in the file write it as the key {key} below [[{first}]]; "));
    Some(format!(
        "{typed}: no option of {name}, but of {}; {}type: truepeer {first} {typed} …",
        having.join(", "),
        in_file.unwrap_or_default()
    ))
}

/// The command that has the most of these options.
pub(super) fn with_most(all: &Command, words: &[&str]) -> Option<&'static str> {
    let count = |name: &str| {
        let command = all.find_subcommand(name);
        words.iter().filter(|word| command.is_some_and(|command| has(command, word))).count()
    };
    let most = LIKELY.iter().rev().max_by_key(|name| count(name))?;
    (count(most) > 0).then_some(*most)
}

pub(super) fn has(command: &Command, typed: &str) -> bool {
    let typed = typed.split('=').next().unwrap_or(typed);
    command.get_arguments().any(|arg| is_called(arg, typed))
}

/// Whether an option is called so, with its dashes.
fn is_called(arg: &Arg, typed: &str) -> bool {
    match typed.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        None => arg
            .get_short()
            .is_some_and(|short| typed.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    }
}

/// The long name of an option that is called by this name or another one of its own.
fn main_name<'a>(command: &'a Command, typed: &str) -> Option<&'a str> {
    let typed = format!("--{}", typed.trim_start_matches('-'));
    command.get_arguments().find(|arg| is_called(arg, &typed)).and_then(Arg::get_long)
}

/// The options of a command that most users need; all, if it has few.
fn usual(command: &Command) -> String {
    let named = || command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set());
    let is_long = named().count() > 8;
    let usual = named().filter(|arg| !(is_long && arg.is_hide_short_help_set()));
    let usual = usual.filter_map(Arg::get_long).filter(|name| !matches!(*name, "help" | "version"));
    usual.map(|name| format!("--{name}")).collect::<Vec<_>>().join(", ")
}

/// Options that have a word in common with what was typed.
fn related(command: &Command, typed: &str) -> Option<String> {
    let names = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    let some: Vec<String> = sharing_a_word(typed, names).iter().map(|name| format!("--{name}")).collect();
    (!some.is_empty()).then(|| any_of(&some))
}

/// The first five names that have a word of four letters or more in common with `typed`.
pub(crate) fn sharing_a_word<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let words = typed.split(['-', '_', '.']).filter(|word| word.len() > 3 && *word != "proxy");
    let words: Vec<&str> = words.collect();
    let shares =
        |name: &&str| name.split('-').any(|part| words.iter().any(|word| word.eq_ignore_ascii_case(part)));
    names.filter(shares).take(5).collect()
}

/// A tip below clap's own text.
fn tip(error: &clap::Error, command: &Command, examples: &[String]) -> Option<String> {
    let option = text(error, ContextKind::InvalidArg)?.split(' ').next()?;
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
            if text(error, ContextKind::InvalidValue).is_some_and(|typed| !typed.is_empty()) =>
        {
            let typed = text(error, ContextKind::InvalidValue)?;
            let positional = || command.get_positionals().next().map(|arg| arg.get_id().as_str());
            let name = option.strip_prefix("--").or_else(positional)?;
            if !option.starts_with('-') && main_name(command, typed).is_some() {
                return Some(format!("the option is --{typed}"));
            }
            let Some(words) = meant(command, name, typed) else {
                let is_list = typed.contains(',') && typed.split(',').all(|part| takes(command, name, part));
                return is_list.then(|| "expected one value, not a list".to_owned());
            };
            let is_option = option.starts_with('-');
            let words =
                words.iter().map(|word| if is_option { format!("{option} {word}") } else { word.clone() });
            Some(format!("type {}", words.collect::<Vec<_>>().join(" ")))
        }
        // Without a value, or missing: an example that has it, or else the first.
        ErrorKind::MissingRequiredArgument | ErrorKind::InvalidValue => {
            let has_it = |line: &&String| line.split(' ').any(|word| word == option);
            let example = examples.iter().find(has_it).or(examples.first())?;
            Some(format!("for example: {example}"))
        }
        ErrorKind::ArgumentConflict => {
            let prior = text(error, ContextKind::PriorArg)?.split(' ').next()?;
            let tip = match prior == option {
                true if !["--ipv4", "--ipv6"].contains(&option) => "give it once",
                true => "give it once; listeners with other settings are entries of a file: truepeer serve",
                false => "leave one of the two out",
            };
            Some(tip.to_owned())
        }
        _ => None,
    }
}

/// Whether one is a part of the other, or they are alike: at least so, from 0 to 1.
fn is_like(typed: &str, meant: &str, least: f64) -> bool {
    let (typed, meant) = (typed.trim_start_matches('-'), meant.trim_start_matches('-'));
    meant.contains(typed) || typed.contains(meant) || strsim::jaro_winkler(typed, meant) > least
}
