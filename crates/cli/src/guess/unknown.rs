//! Words that clap refuses: what it expected, and what to type.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

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

const BACKENDS: [&str; 3] = ["ipv4", "ipv6", "origin"];
const NO_UNIX: &str =
    "expected an address, not a Unix socket: let the server listen on 127.0.0.1:PORT, and name that";
const NO_UNIX_HERE: &str = "senders come by TCP, not to a Unix socket: type --listen 127.0.0.1:8443";
const ONE_OF_MANY: &str = " (the load balancer before truepeer spreads the load)";

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
    if let Some(tip) = tip(&error, &command, &examples, argv) {
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
            if let Some(said) = own_command(name, command, &typed) {
                return Some(said);
            }
            // Only clap knows where the program of `run` begins.
            let words: Vec<&str> = [Some(typed.as_str()), next(argv, &typed)].into_iter().flatten().collect();
            if let Some((typed, instead)) = find(name, &words).filter(|(word, _)| *word == typed) {
                return Some(saying(typed, "not a word of this command", &instead));
            }
            let said = undashed(command, &typed, next(argv, &typed));
            let said = said.or_else(|| one_too_many(argv, command, &typed, examples));
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
            let said = own_command(name, command, typed);
            let name = typed.rsplit('/').next().unwrap_or(typed);
            let said = said.or_else(|| undashed(command, typed, next(argv, typed)));
            said.or_else(|| one_too_many(argv, command, typed, examples)).or_else(|| {
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
        });
        let other = with_value.and_then(Arg::get_short).map(|short| format!("; type: -{short} {typed}"));
        let example = examples.iter().find(|line| line.contains(value));
        let other = other.or_else(|| Some(format!("; for example: {}", example?)));
        return Some(format!("{typed}: {value} takes no value{}", other.unwrap_or_default()))
            .filter(|_| switch.get_long().is_some());
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
        let listen = meant(command, name, value).map_or_else(|| value.to_owned(), |words| words.join(" "));
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

/// Advice where no other spelling of the value would be right.
fn in_words(command: &Command, option: &str, name: &str, typed: &str) -> Option<String> {
    let not = typed.strip_prefix(['!', '-']).or_else(|| typed.strip_prefix("not ")).map(str::trim);
    let is_path = typed.starts_with("unix:") || typed.starts_with('/');
    let is_word = typed.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    match name {
        "allow" if not.is_some_and(|prefix| takes(command, name, prefix)) => Some(format!(
            "leave senders out that may not connect; clients: --deny-clients {}",
            not.unwrap_or_default()
        )),
        "allow" if has(command, "--dev") && Path::new("/sys/class/net").join(typed).exists() => {
            Some(format!("expected the senders' addresses; for one device of this host: --dev {typed}"))
        }
        "allow" if is_word && meant(command, name, typed).is_none() => {
            Some(format!("type their addresses, or the path of a list of them: {option} ./{typed}.txt"))
        }
        "header" if ["1", "2", "v1", "v2", "proxy"].contains(&typed) => {
            Some("leave it out: headers of both versions are read".to_owned())
        }
        "listen"
            if typed.split('-').count() == 2 && typed.split('-').all(|port| port.parse::<u16>().is_ok()) =>
        {
            Some(
                "type each port: --listen :8000 --listen :8001; or many by TPROXY: --listen-transparent"
                    .to_owned(),
            )
        }
        "listen" if is_path => Some(NO_UNIX_HERE.to_owned()),
        "ipv4" | "ipv6" | "origin" if is_path && !typed.contains('=') => Some(NO_UNIX.to_owned()),
        _ if ["auto", "default", "unset"].contains(&typed) && option.starts_with('-') => {
            Some(format!("leave {option} out: its default is taken"))
        }
        _ => None,
    }
}

/// A tip below clap's own text.
fn tip(error: &clap::Error, command: &Command, examples: &[String], argv: &[OsString]) -> Option<String> {
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
            if let Some(tip) = in_words(command, option, name, typed) {
                return Some(tip);
            }
            let Some(words) = meant(command, name, typed) else {
                let first = typed.split(',').next().filter(|first| first.len() < typed.len())?;
                let why = if BACKENDS.contains(&name) { ONE_OF_MANY } else { "" };
                let is_list = typed.split(',').all(|part| takes(command, name, part));
                return is_list
                    .then(|| format!("expected one value, not a list; type {option} {first}{why}"));
            };
            let is_option = option.starts_with('-');
            let words =
                words.iter().map(|word| if is_option { format!("{option} {word}") } else { word.clone() });
            // `:53/udp`
            let is_udp = is_option && name != "protocol" && typed.to_lowercase().contains("udp");
            let udp = if is_udp && has(command, "--protocol") { " --protocol udp" } else { "" };
            Some(format!("type {}{udp}", words.collect::<Vec<_>>().join(" ")))
        }
        // Without a value, or missing: an example that has it, or else the first.
        ErrorKind::MissingRequiredArgument | ErrorKind::InvalidValue => {
            let has_it = |line: &&String| line.split(' ').any(|word| word == option);
            if let Some(inner) = argv.get(2).and_then(|word| word.to_str()).filter(|_| option == "--port")
                && command.get_name() == inner
            {
                return Some(format!("for example: truepeer attach {inner} --port 443"));
            }
            // The first of those that have the most of the words that were typed.
            let alike = |line: &&String| {
                argv.iter().filter(|one| line.split(' ').any(|word| word == one.as_os_str())).count()
            };
            let example = examples.iter().filter(has_it).rev().max_by_key(alike);
            match (example, error.kind()) {
                (None, ErrorKind::InvalidValue) => {
                    Some(format!("type {}", text(error, ContextKind::InvalidArg)?))
                }
                (example, _) => Some(format!("for example: {}", example.or(examples.first())?)),
            }
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
