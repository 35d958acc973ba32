//! The options of a command by their names.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, Command};

use super::UsageError;
use super::behind::quoted;
use super::words::saying;
use crate::in_keys::any_of;

/// The commands that may have an option that was typed for another one, the likeliest first.
pub(super) const LIKELY: [&str; 12] = [
    "attach", "proxy", "run", "https", "connect", // the ways
    "serve", "sessions", "ban", "doctor", "probe", "status", "top",
];

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

/// Whether the command has an option of this name with a value.
pub(super) fn takes_value(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| is_called(arg, name) && arg.get_action().takes_values())
}

/// Whether an option is called so, with its dashes.
pub(super) fn is_called(arg: &Arg, typed: &str) -> bool {
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
pub(super) fn main_name<'a>(command: &'a Command, typed: &str) -> Option<&'a str> {
    let typed = format!("--{}", typed.trim_start_matches('-'));
    command.get_arguments().find(|arg| is_called(arg, &typed)).and_then(Arg::get_long)
}

/// The options of a command that most users need; all, if it has few.
pub(super) fn usual(command: &Command) -> String {
    let named = || command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set());
    let is_long = named().count() > 8;
    let usual = named().filter(|arg| !(is_long && arg.is_hide_short_help_set()));
    let usual = usual.filter_map(Arg::get_long).filter(|name| !matches!(*name, "help" | "version"));
    usual.map(|name| format!("--{name}")).collect::<Vec<_>>().join(", ")
}

/// Options that have a word in common with what was typed.
pub(super) fn related(command: &Command, typed: &str) -> Option<String> {
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

/// Whether one is a part of the other, or they are alike: at least so, from 0 to 1.
pub(super) fn is_like(typed: &str, meant: &str, least: f64) -> bool {
    let (typed, meant) = (typed.trim_start_matches('-'), meant.trim_start_matches('-'));
    meant.contains(typed) || typed.contains(meant) || strsim::jaro_winkler(typed, meant) > least
}

/// The most similar name, if one is similar.
pub(crate) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    alike.filter(|(likeness, _)| *likeness > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `-allowed-subnet`: a long option as Go has it, which clap takes for a short one with a value.
pub(crate) fn misspelt(argv: &[OsString], command: &Command) -> Option<UsageError> {
    let words: Vec<&str> = argv.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let meant = |word: &&str| {
        let name = word.strip_prefix('-').filter(|name| name.len() > 4 && !name.starts_with('-'))?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let near = nearest(name, command.get_arguments().filter_map(Arg::get_long))?;
        (is_name && !has(command, &format!("--{name}")) && is_like(name, near, 0.93))
            .then(|| format!("-{near}"))
    };
    let (place, near) = (1..end).find_map(|place| Some((place, meant(&words[place])?)))?;
    let program = Path::new(words[0]).file_name().and_then(|name| name.to_str()).unwrap_or(words[0]);
    let line = [&[program], &words[1..place], &[near.as_str()], &words[place + 1..]].concat();
    let line: Vec<String> = line.into_iter().map(quoted).collect();
    Some(UsageError::Options(saying(words[place], "not a word of this command", &line.join(" "))))
}
