//! The whole line: what was typed with its mistakes mended, where a message names a part of it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, builder::StyledStr};

use super::behind::{quoted, told_behind, unquoted};
use super::named::{has, is_called};
use super::words::find;
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
    let line = mended(&words, &error, MOST).map(without_examples).map(|words| shown(&words));
    let Some(line) = line else {
        return match error {
            UsageError::Options(text) => {
                // The row for pods names an example of each.
                let given = |option, usual| told_behind(argv, option).unwrap_or(usual).to_owned();
                let (ports, allow) = (given("--port", "443"), given("--allow", "10.0.0.7"));
                let text = text.replace("ports=443", &format!("ports={ports}"));
                let text = text.replace("allow=10.0.0.7", &format!("allow={allow}"));
                UsageError::Options(text.replace("LINE", "truepeer COMMAND OPTIONS"))
            }
            other => other,
        };
    };
    match error {
        UsageError::Options(text) if is_elsewhere(&text) => UsageError::Options(
            text.replace("LINE", &line).replace("OPTIONS", line.trim_start_matches("truepeer attach ")),
        ),
        UsageError::Options(text) => UsageError::Options(match told(&text) {
            Some((before, instead)) => format!("{before}{line}{}", parts(instead).1),
            None => format!("{text}; type: {line}"),
        }),
        UsageError::Clap(mut error) => {
            let tip = match error.get(ContextKind::Suggested) {
                Some(ContextValue::StyledStrs(tips)) => tips.first().map(ToString::to_string),
                _ => None,
            };
            let behind = match tip.as_deref().map(|tip| (tip, tip.strip_prefix("type "))) {
                Some((_, Some(instead))) => parts(instead).1.to_owned(),
                Some((tip, _)) if tip.starts_with("leave ") => format!("; {tip}"),
                _ => String::new(),
            };
            let tip = StyledStr::from(format!("type {line}{behind}"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            UsageError::Clap(error)
        }
        other => other,
    }
}

/// Splits a message before the line to type.
fn told(text: &str) -> Option<(&str, &str)> {
    let end = |mark: &str| Some(text.find(mark)? + mark.len());
    Some(text.split_at(end("; type: ").or_else(|| end("; type without quotes: "))?))
}

/// Whether the line, without the word that is wrong, goes into another program's line or file.
fn is_elsewhere(text: &str) -> bool {
    text.contains("LINE") || text.contains("=OPTIONS")
}

/// What to type, and what a message says behind it.
fn parts(instead: &str) -> (&str, &str) {
    let mut is_inside = false;
    let is_end = |(at, c): &(usize, char)| {
        is_inside ^= *c == '\'';
        !is_inside
            && [", ", "; ", " (", " for ", " behind "].iter().any(|end| instead[*at..].starts_with(end))
    };
    let end = instead.char_indices().find(is_end);
    instead.split_at(end.map_or(instead.len(), |(at, _)| at))
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
            // What is not needed.
            if is_elsewhere(rest) || rest.contains("leave it out") {
                return Some(spliced(words, typed, &[]));
            }
            let told = told(rest)?.1;
            // `serve -d -f FILE`: the unit has another file.
            if told.starts_with("systemctl ")
                && words.iter().any(|word| ["-c", "-f", "--config"].contains(word))
            {
                return Some(spliced(words, typed, &[]));
            }
            let is_elsewhere = ["curl ", "echo ", "umask ", "systemctl ", "kubectl "]
                .iter()
                .any(|program| told.starts_with(program));
            if is_elsewhere || words.first() == Some(&typed) && !told.starts_with("truepeer ") {
                return None;
            }
            let instead = unquoted(parts(told).0);
            let instead: Vec<&str> = instead.iter().map(String::as_str).collect();
            Some(match instead.split_first() {
                // `deny 203.0.113.7`: another command with the same words.
                Some((&"truepeer", instead @ [way, own @ ..]))
                    if words.first() == Some(&typed)
                        && (own == &words[1..] || matches!(own, [client] if client.contains(['.', ':']))) =>
                {
                    let same: Vec<&str> = [&[*way], &words[1..]].concat();
                    vec![same.into_iter().map(str::to_owned).collect(), with_own(words, typed, instead)]
                }
                Some((&"truepeer", instead)) if loses(words, typed, instead) => return None,
                Some((&"truepeer", instead)) => vec![with_own(words, typed, instead)],
                _ => spliced(words, typed, &instead),
            })
        }
        UsageError::Clap(error) => {
            let ContextValue::StyledStrs(tips) = error.get(ContextKind::Suggested)? else { return None };
            // What is missing, in an example.
            if let Some(example) = tips.first()?.to_string().strip_prefix("for example: truepeer ") {
                let example: Vec<&str> = example.split(' ').collect();
                return (!loses(words, "", &example)).then(|| vec![with_own(words, "", &example)]);
            }
            let ContextValue::String(typed) = error.get(ContextKind::InvalidValue)? else { return None };
            let tip = tips.first()?.to_string();
            let instead = if tip.starts_with("leave ") { "" } else { parts(tip.strip_prefix("type ")?).0 };
            let instead = unquoted(instead);
            let instead: Vec<&str> = instead.iter().map(String::as_str).collect();
            // An option without its value.
            if let (true, [option, value]) = (typed.is_empty(), &instead[..])
                && !value.starts_with('<')
            {
                let all = command();
                let arg = innermost(&all, words).get_arguments().find(|arg| is_called(arg, option))?;
                let place = words.iter().rposition(|word| is_called(arg, word.trim_end_matches('=')))?;
                let line = [&words[..place], &instead[..], &words[place + 1..]].concat();
                return Some(vec![line.into_iter().map(str::to_owned).collect()]);
            }
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
    // `--alow=10.0.0.7`, and a message with the option alone.
    let with_value = match (instead, words[place].strip_prefix(typed)) {
        (&[option], Some(value)) if typed.starts_with('-') => vec![format!("{option}{value}")],
        _ => instead.iter().map(|&word| word.to_owned()).collect(),
    };
    let instead: &[&str] = &with_value.iter().map(String::as_str).collect::<Vec<_>>();
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
    let is_example = |pair: &&[&str]| is_name(pair.last().unwrap_or(&"")) && is_given(pair[0]);
    let instead = &instead.chunks(2).filter(|pair| !is_example(pair)).collect::<Vec<_>>().concat()[..];
    let is_sign = ["-", "="].contains(&typed);
    let ranges = match begin {
        Some(begin) if !is_option || is_sign => vec![(begin, place + 1 + used)],
        _ if is_option && has_value && (used > 0 || instead.is_empty()) => vec![value, alone],
        _ if is_option && has_value => vec![alone, value],
        _ if !is_option && place > 1 && words[place - 1].starts_with('-') => {
            vec![(place - 1, place + 1), alone]
        }
        _ if !is_option => vec![(place, place + 1 + used), alone],
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

/// Whether the line of a message would lose options that nobody has explained.
fn loses(words: &[&str], typed: &str, instead: &[&str]) -> bool {
    let all = command();
    let way = innermost(&all, instead);
    let is_known = |word: &&str| {
        !word.starts_with('-') || *word == typed || has(way, word) || find(way.get_name(), &[*word]).is_some()
    };
    let is_own = !takes_program(way);
    is_own && !words.iter().take_while(|word| **word != "--").all(is_known)
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
