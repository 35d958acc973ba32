//! Words that clap refuses: what it expected, and what to type.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::super::{UsageError, command, dress};
use super::behind::quoted;
use super::named::{LIKELY, has, is_called, is_like, main_name, related, usual};
use super::tip::{text, tip};
use super::value::{meant, takes};
use super::words::{find, find_by_part, saying};
use crate::in_keys::{any_of, in_keys};
use crate::table;

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
    if let Some(said) = unknown(&all, (&name, &command), argv, &examples, &error) {
        return UsageError::Options(said);
    }
    if let Some(tip) = tip(&error, &command, &examples, argv) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error.into()
}

/// `None`: clap's own suggestion says it.
fn unknown(
    all: &Command,
    (name, command): (&str, &Command),
    argv: &[OsString],
    examples: &[String],
    error: &clap::Error,
) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = text(error, ContextKind::InvalidArg)?.to_owned();
            if let Some(said) = own_command(name, command, &typed) {
                return Some(said);
            }
            // Only clap knows where the program of `run` begins.
            let words: Vec<&str> = [Some(typed.as_str()), next(argv, &typed)].into_iter().flatten().collect();
            if let Some((typed, instead)) = find(name, &words).filter(|(word, _)| *word == typed) {
                return Some(saying(typed, "not a word of this command", &instead));
            }
            let said = undashed(command, &typed, next(argv, &typed));
            let said = said.or_else(|| named_bare(name, &typed, next(argv, &typed)));
            let said = said.or_else(|| one_too_many(argv, command, &typed, examples));
            if let Some(said) =
                said.or_else(|| of_others(all, name, &typed).filter(|_| typed.starts_with("--")))
            {
                return Some(said);
            }
            let suggested =
                text(error, ContextKind::SuggestedArg).and_then(|meant| main_name(command, meant));
            let by_part = find_by_part(name, &typed, next(argv, &typed)).filter(|_| typed.starts_with("--"));
            let least = if by_part.is_some() { 0.93 } else { 0.85 };
            if let Some(meant) = suggested.filter(|meant| is_like(&typed, meant, least)) {
                return Some(saying(&typed, "not a word of this command", &format!("--{meant}")));
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
            let said = own_command(name, command, typed);
            let name = typed.rsplit('/').next().unwrap_or(typed);
            // `web:8080`
            let (name, port) = name.rsplit_once(':').unwrap_or((name, "443"));
            let said = said.or_else(|| undashed(command, typed, next(argv, typed)));
            let said = said.or_else(|| named_bare("attach", typed, next(argv, typed)));
            said.or_else(|| one_too_many(argv, command, typed, examples)).or_else(|| {
                Some(format!(
                    "{typed}: expected an option before it; type: truepeer attach --port {port} --allow PREFIX; \
                 for a container with --container {name}, for a unit of systemd with --unit {name}"
                ))
            })
        }
        ErrorKind::InvalidSubcommand => {
            let typed = text(error, ContextKind::InvalidSubcommand)?;
            if let Some(meant) = text(error, ContextKind::SuggestedSubcommand)
                && is_like(typed, meant, 0.85)
            {
                let rest = argv[2..].iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>();
                let instead = format!("truepeer {meant} {}", rest.join(" "));
                return Some(saying(typed, "no command of truepeer", instead.trim_end()));
            }
            let rest: Vec<&str> = argv[2..].iter().filter_map(|word| word.to_str()).collect();
            let suits = |way: &&&str| {
                let way = all.find_subcommand(**way)?;
                let is_its = |word: &&&str| {
                    word.starts_with('-') && (has(way, word) || find(way.get_name(), &[**word]).is_some())
                };
                let is_web = way.get_name() == "https" && rest.iter().any(|word| word.contains("://"));
                Some(rest.iter().filter(is_its).count() + usize::from(is_web)).filter(|count| *count > 0)
            };
            if let Some(way) = LIKELY.iter().rev().filter(|way| suits(way).is_some()).max_by_key(suits) {
                let instead = format!(
                    "truepeer {way} {}",
                    rest.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
                );
                return Some(saying(typed, "no command of truepeer", &instead));
            }
            Some(format!(
                "{typed}: no command of truepeer; expected attach (for a server that runs), run (to start \
                 one), proxy, https, connect, serve (what a file says), check, reload, upgrade, doctor, \
                 status, sessions, whois, top, probe, ban, unban, bans or routes; more: truepeer --help"
            ))
        }
        _ => None,
    }
}

/// `--port 443 status`
fn own_command(name: &str, command: &Command, typed: &str) -> Option<String> {
    command.find_subcommand(typed)?;
    Some(format!("{typed}: expected right behind the command; type: truepeer {name} {typed}"))
}

/// The word behind this one.
fn next<'a>(argv: &'a [OsString], typed: &str) -> Option<&'a str> {
    argv.get(argv.iter().position(|word| word == typed)? + 1)?.to_str()
}

/// An option without its dashes, or in the other case.
fn undashed(command: &Command, typed: &str, next: Option<&str>) -> Option<String> {
    let name = typed.split('=').next().unwrap_or(typed);
    if !typed.starts_with('-') {
        let value = typed.strip_prefix(name).unwrap_or_default();
        let arg = command.get_arguments().find(|arg| is_called(arg, &format!("--{name}")))?;
        let has_value = !value.is_empty() || next.is_some_and(|next| !next.starts_with('-'));
        let names = arg.get_value_names().filter(|_| !has_value && arg.get_action().takes_values());
        let missing = names.and_then(|names| Some(format!(" <{}>", names.first()?))).unwrap_or_default();
        let name = arg.get_long()?;
        return Some(format!("{typed}: expected an option; type: --{name}{value}{missing}"));
    }
    let flip = |c: char| if c.is_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() };
    let other: String = name.chars().map(flip).collect();
    if name.len() == 2 && has(command, &other) {
        return Some(saying(typed, "not a word of this command", &other));
    }
    let letter = name.strip_prefix('-')?.to_lowercase();
    let longs = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_hide_short_help_set());
    let starting: Vec<_> = longs
        .filter_map(Arg::get_long)
        .filter(|long| letter.len() == 1 && long.starts_with(&letter))
        .map(|long| format!("--{long}"))
        .collect();
    match &starting[..] {
        [] => None,
        [one] => Some(saying(typed, "not a word of this command", one)),
        some => Some(format!("{typed}: not a word of this command; did you mean {}?", any_of(some))),
    }
}

/// `from 10.0.0.7`: another program's option, without its dashes.
fn named_bare(name: &str, typed: &str, next: Option<&str>) -> Option<String> {
    let option = format!("--{typed}");
    let words = [option.as_str(), next?];
    let (_, instead) = find(name, &words).filter(|_| !typed.starts_with('-'))?;
    (!instead.starts_with("nothing")).then(|| saying(typed, "expected an option", &instead))
}

/// A word behind the value of an option, which takes one: `--port 80 443`, `-4 HOST PORT`.
fn one_too_many(argv: &[OsString], command: &Command, typed: &str, examples: &[String]) -> Option<String> {
    let place = argv.iter().position(|word| word == typed).filter(|_| !typed.starts_with('-'))?;
    let before = |count: usize| argv.get(place.checked_sub(count)?)?.to_str();
    // `--port=80 443`, `--port 80 443`
    let joined = before(1)?.split_once('=').filter(|(option, _)| option.starts_with("--"));
    let (option, value) = joined.map_or((before(2), before(1)?), |(option, value)| (Some(option), value));
    let called = |word: &str| command.get_arguments().find(|arg| is_called(arg, word));
    if let Some(switch) = called(value).filter(|arg| !arg.get_action().takes_values()) {
        let with_value = command.get_arguments().find(|arg| {
            arg.get_action().takes_values()
                && arg.get_short().is_some()
                && arg.get_short() == value.trim_start_matches('-').chars().next()
                && takes(command, arg.get_id().as_str(), typed)
        });
        let other = with_value.and_then(Arg::get_short).map(|short| format!("; type: -{short} {typed}"));
        let example = examples.iter().find(|line| line.contains(value));
        let other = other.or_else(|| Some(format!("; for example: {}", example?)));
        return Some(format!("{typed}: {value} takes no value{}", other.unwrap_or_default()))
            .filter(|_| switch.get_long().is_some());
    }
    // `whois 203.0.113.7 5000`
    let positional = command.get_positionals().next().map(|arg| arg.get_id().as_str());
    let in_one_word = format!("{value}:{typed}");
    if typed.parse::<u16>().is_ok() && positional.is_some_and(|name| takes(command, name, &in_one_word)) {
        return Some(saying(
            typed,
            "expected in one word",
            &format!("truepeer {} {in_one_word}", command.get_name()),
        ));
    }
    let option = option?;
    let arg = called(option)?;
    let name = arg.get_long().filter(|_| arg.get_action().takes_values() && !value.starts_with('-'))?;
    let first = if ["origin", "header"].contains(&name) { "=" } else { "," };
    let in_one_word = [first, ":", " "].map(|between| format!("{value}{between}{typed}"));
    // A path may have any character.
    let is_free = takes(command, name, "?,?");
    let in_one = |word: &String| {
        let is_it = !is_free && takes(command, name, word);
        if is_it { Some(word.clone()) } else { meant(command, name, word)?.into_iter().next() }
    };
    if let Some(word) =
        in_one_word.iter().find_map(in_one).filter(|word| !is_free && word.len() > value.len())
    {
        return Some(format!("{typed}: expected in one word; type: {option} {word}"));
    }
    let way = argv.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    // `-l 8443 127.0.0.1 443`
    if name == "listen" && ["proxy", "https"].contains(&way) && typed.contains(['.', ':']) {
        let port = argv.get(place + 1).and_then(|port| port.to_str()?.parse::<u16>().ok());
        let port = port.map_or("PORT".to_owned(), |port| port.to_string());
        let backend = match typed.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            Ok(ip) => format!("{ip}:{port}"),
            Err(_) => typed.to_owned(),
        };
        let other = meant(command, name, value).filter(|_| !takes(command, name, value));
        let listen = other.map_or_else(|| value.to_owned(), |words| words.join(" "));
        let backend = super::to(way, &backend);
        return Some(format!("{typed}: expected an option before it; type: {option} {listen} {backend}"));
    }
    let is_port = typed.parse::<u16>().is_ok();
    if name != "listen" && (is_port || super::is_address(typed)) && ["proxy", "https"].contains(&way) {
        let backend = if is_port { format!("127.0.0.1:{typed}") } else { typed.to_owned() };
        return Some(format!("{typed}: expected an option before it; type: {}", super::to(way, &backend)));
    }
    if way == "https" && typed.contains("://") {
        return Some(format!("{typed}: expected an option before it; type: --origin {typed}"));
    }
    // `ssl` behind an address, as HAProxy has it.
    if let Some((_, instead)) = find(way, &[&format!("--{typed}")]) {
        return Some(saying(typed, "expected an option before it", &instead));
    }
    let again =
        matches!(arg.get_action(), ArgAction::Append).then(|| format!("; several: {option} A {option} B"));
    Some(format!("{typed}: a word too many, {option} takes one: leave it out{}", again.unwrap_or_default()))
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
