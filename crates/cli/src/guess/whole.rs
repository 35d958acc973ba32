//! The whole line: what was typed with its mistakes mended, where a message names a part of it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, builder::StyledStr};

use super::behind::quoted;
use super::named::is_called;
use crate::{UsageError, command, matched};

/// Mistakes that one message mends.
const MOST: usize = 4;
/// Words in a message that stand for a user's own, and a value that is taken for each.
const STANDS_FOR: [(&str, &str); 8] = [
    ("PREFIX", "10.0.0.7"),
    ("COMMAND", "true"),
    ("PROGRAM", "true"),
    ("NAME", "name"),
    ("FILE", "./file"),
    ("PORT", "1"),
    ("HOST:PORT", "127.0.0.1:1"),
    ("NUMBER", "1"),
];

/// The error with the whole line to type, if truepeer takes one.
pub(crate) fn in_a_whole_line(argv: &[OsString], error: UsageError) -> UsageError {
    let Some(words) = argv.iter().skip(1).map(|word| word.to_str()).collect::<Option<Vec<_>>>() else {
        return error;
    };
    let Some(line) = mended(&words, &error, MOST).map(without_examples).map(|words| shown(&words)) else {
        return error;
    };
    match error {
        UsageError::Options(text) => UsageError::Options(match text.split_once("; type: ") {
            Some((before, instead)) => format!("{before}; type: {line}{}", parts(instead).1),
            None => format!("{text}; type: {line}"),
        }),
        UsageError::Clap(mut error) => {
            let tip = StyledStr::from(format!("type {line}"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            UsageError::Clap(error)
        }
        other => other,
    }
}

/// What to type, and what a message says behind it.
fn parts(instead: &str) -> (&str, &str) {
    let end = [", ", "; ", " ("].iter().filter_map(|between| instead.find(between)).min();
    instead.split_at(end.unwrap_or(instead.len()))
}

/// The words of a line that is taken: these with the mistake mended that the error names, and up to `most`
/// more.
fn mended(words: &[&str], error: &UsageError, most: usize) -> Option<Vec<String>> {
    let most = most.checked_sub(1)?;
    let is_whole = |line: &Vec<String>| !line.iter().any(|word| word.contains('…'));
    let taken = candidates(words, error)?.into_iter().filter(is_whole).find_map(|candidate| {
        let refused = is_refused(&candidate);
        let borrowed: Vec<&str> = candidate.iter().map(String::as_str).collect();
        match refused {
            None => Some(candidate),
            Some(error) => mended(&borrowed, &error, most),
        }
    });
    taken.filter(|line| line.iter().map(String::as_str).ne(words.iter().copied()))
}

/// Without `--allow PREFIX` beside the user's own.
fn without_examples(mut words: Vec<String>) -> Vec<String> {
    let is_own = |pair: &[String]| pair[0] == "--allow" && pair[1] != "PREFIX";
    if words.windows(2).any(is_own)
        && let Some(at) = words.windows(2).position(|pair| pair[0] == "--allow" && pair[1] == "PREFIX")
    {
        words.drain(at..at + 2);
    }
    words
}

fn is_refused(words: &[String]) -> Option<UsageError> {
    let valued = words.iter().filter(|word| *word != "&").map(|word| {
        STANDS_FOR.iter().find(|(name, _)| name == word).map_or(word.as_str(), |(_, value)| value).to_owned()
    });
    let argv: Vec<OsString> = std::iter::once("truepeer".to_owned()).chain(valued).map(Into::into).collect();
    matched(&argv).err()
}

/// The lines that the message may mean, the likeliest first.
fn candidates(words: &[&str], error: &UsageError) -> Option<Vec<Vec<String>>> {
    match error {
        UsageError::Options(text) => {
            let (typed, rest) = text.split_once(": ")?;
            if let Some((_, instead)) = rest.split_once("; type: ") {
                let instead: Vec<&str> = parts(instead).0.split(' ').collect();
                return match instead.split_first() {
                    Some((&"truepeer", instead)) => Some(vec![with_own(words, typed, instead)]),
                    _ => Some(spliced(words, typed, &instead)),
                };
            }
            // What is not needed.
            rest.contains("leave it out").then(|| spliced(words, typed, &[]))
        }
        UsageError::Clap(error) => {
            let ContextValue::StyledStrs(tips) = error.get(ContextKind::Suggested)? else { return None };
            // What is missing, in an example.
            if let Some(example) = tips.first()?.to_string().strip_prefix("for example: truepeer ") {
                let example: Vec<&str> = example.split(' ').collect();
                return Some(vec![with_own(words, "", &example)]);
            }
            let ContextValue::String(typed) = error.get(ContextKind::InvalidValue)? else { return None };
            let tip = tips.first()?.to_string();
            let instead: Vec<&str> = parts(tip.strip_prefix("type ")?).0.split(' ').collect();
            Some(spliced(words, typed, &instead))
        }
        _ => None,
    }
}

/// The line with `instead` in the place of what was typed, which may be an option, its value, or both.
fn spliced(words: &[&str], typed: &str, instead: &[&str]) -> Vec<Vec<String>> {
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let is_it = |word: &&&str| {
        let rest = word.strip_prefix(typed).or(word.strip_suffix(typed));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('=') || rest.ends_with('='))
    };
    let Some(place) = words[..end].iter().position(|word| is_it(&word)) else { return Vec::new() };
    let all = command();
    let way = innermost(&all, words);
    // Not the words of a sentence, nor those of a program.
    if instead.first().is_some_and(|first| *first == "--" || takes_program(way) && !first.starts_with('-')) {
        return Vec::new();
    }
    let is_same = |one: &str, other: &str| {
        let name = |word: &str| word.split('=').next().unwrap_or(word).to_owned();
        way.get_arguments().any(|arg| is_called(arg, &name(one)) && is_called(arg, &name(other)))
    };
    // `--port 8000 - 8010`, where the message begins with the option.
    let option = instead.first().copied().unwrap_or_default();
    let begin =
        (1..place).rev().take(3).find(|at| words[*at].starts_with('-') && is_same(words[*at], option));
    let is_used = |word: &str| instead.iter().any(|own| own.ends_with(word.trim_start_matches(':')));
    let used =
        words[place + 1..end].iter().take_while(|word| !word.starts_with('-') && is_used(word)).count();
    let has_value = words[..end].get(place + 1).is_some_and(|next| !next.starts_with('-'));
    let is_option = typed.starts_with('-') || words[place] != typed;
    let (alone, value) = ((place, place + 1), (place, place + 2));
    // `--port PORT` in a message, where a port was typed.
    let is_given = |option: &str| words[..end].iter().any(|word| is_same(word, option));
    let instead = match instead {
        [own @ .., option, name] if is_name(name) && is_given(option) => own,
        all => all,
    };
    let is_sign = ["-", "="].contains(&typed);
    let ranges = match begin {
        Some(begin) if !is_option || is_sign => vec![(begin, place + 1 + used)],
        _ if is_option && has_value && (used > 0 || instead.is_empty()) => vec![value, alone],
        _ if is_option && has_value => vec![alone, value],
        _ if !is_option && place > 1 && words[place - 1].starts_with('-') => {
            vec![(place - 1, place + 1), alone]
        }
        _ => vec![alone],
    };
    let with = |range: (usize, usize)| {
        let line = [&words[..range.0], instead, &words[range.1..]].concat();
        line.into_iter().map(str::to_owned).collect()
    };
    ranges.into_iter().map(with).collect()
}

/// The command that these words begin with.
fn innermost<'a>(all: &'a Command, words: &[&str]) -> &'a Command {
    words
        .iter()
        .map_while({
            let mut command = all;
            move |word| {
                command = command.find_subcommand(word)?;
                Some(command)
            }
        })
        .last()
        .unwrap_or(all)
}

fn takes_program(command: &Command) -> bool {
    ["run", "connect"].contains(&command.get_name())
}

fn is_name(word: &str) -> bool {
    STANDS_FOR.iter().any(|(name, _)| *name == word)
}

/// The line of a message, with the user's values and other options in it.
fn with_own(words: &[&str], typed: &str, instead: &[&str]) -> Vec<String> {
    let all = command();
    let way = innermost(&all, instead);
    let option = |word: &str| {
        let name = word.split('=').next().unwrap_or(word);
        way.get_arguments().find(|arg| word.starts_with('-') && is_called(arg, name))
    };
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let mut line: Vec<&str> = instead.to_vec();
    let mut place = 0;
    while let Some(&word) = words[..end].get(place) {
        place += 1;
        let Some(arg) = option(word).filter(|_| word != typed) else { continue };
        let takes = arg.get_action().takes_values() && !word.contains('=');
        let value = words[..end].get(place).filter(|next| takes && !next.starts_with('-')).copied();
        if value == Some(typed) {
            continue;
        }
        let given = line.iter().position(|word| is_called(arg, word));
        match (given, value) {
            // `--port 443` in a message is an example, `--port 53/udp` for 53 is none.
            (Some(given), Some(value)) if line.get(given + 1).is_some_and(|own| !own.starts_with(value)) => {
                line[given + 1] = value;
            }
            (Some(_), _) => {}
            (None, value) => {
                let at = line.iter().position(|word| *word == "--").unwrap_or(line.len());
                line.splice(at..at, [Some(word), value].into_iter().flatten());
            }
        }
    }
    // Behind the option that was typed stands its value, if the message has it.
    let is_value = |at: usize| match words[at - 1] {
        before if before == typed => instead.contains(&words[at]),
        before => before.starts_with('-'),
    };
    let bare = |at: &usize| !words[*at].starts_with('-') && !is_value(*at);
    let begin = if end < words.len() { Some(end + 1) } else { (2..end).find(bare) };
    let program = begin.and_then(|begin| words.get(begin..)).unwrap_or_default();
    if let Some(at) = line.iter().position(|word| ["COMMAND", "PROGRAM"].contains(word))
        && !program.is_empty()
    {
        line.splice(at..=at, program.iter().copied());
    }
    line.into_iter().map(str::to_owned).collect()
}

/// As a shell takes it.
fn shown(words: &[String]) -> String {
    let quoted = words.iter().map(|word| if word == "&" { word.clone() } else { quoted(word) });
    std::iter::once("truepeer".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}
