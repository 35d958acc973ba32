//! The keys of a table: which ones there are, which one was meant, and messages about options in their words.

use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Args, Command};

use super::finding::{Finding, Span};
use crate::table::{self, Commands};
use truepeer_config::spec::{AcmeSpec, AdminSpec, LogSpec, ProcessTable, StackArgs};

/// The keys of one kind of table: the options of a command.
pub(super) struct Grammar {
    pub(super) command: Command,
    /// Options of the command that are no keys of the table.
    excluded: Vec<String>,
}

/// Whether a key is one of these, and what to do with it.
type Elsewhere = (fn(&str) -> bool, &'static str);

/// What to do with an option that is not a key of this table.
const ELSEWHERE: [Elsewhere; 9] = [
    (
        has::<ProcessTable>,
        "it is for the whole process: write it at the top of the file, before the first table",
    ),
    (
        |key| ["file", "logfile", "log-file", "output"].contains(&key),
        "the log goes to standard error: under systemd `journalctl -u truepeer` shows it",
    ),
    (|key| key == "port", "write it behind the address, as in \"127.0.0.1:443\""),
    (
        |key| key == "timeout",
        "expected header-timeout, connect-timeout or idle-timeout; https has more: truepeer.toml(5)",
    ),
    (|key| key == "log-format", "write it as `format` in the table [log]"),
    (has::<AdminSpec>, "write it as `listen` in the table [admin]"),
    (has::<AcmeSpec>, "write it without `acme-` in the table [acme]"),
    (has::<LogSpec>, "write `level` in the table [log]"),
    (has::<StackArgs>, "VPP's stack takes a process of its own: truepeer https --stack vpp"),
];

/// Options that make a command print something instead of its usual work.
const ACTIONS: [&str; 5] = ["dry-run", "netns-inode", "print-config", "replace", "watch"];

/// The keys of an entry: the command's options but those of [`ELSEWHERE`], which are its groups.
pub(super) fn of_entry<T: Args>(rows: Commands, groups: &[fn() -> Command]) -> Grammar {
    let groups = groups.iter().map(|group| group());
    let excluded = groups.flat_map(|group| names(&group).collect::<Vec<_>>());
    let command = T::augment_args(Command::new("entry")).mut_args(|arg| {
        let row = arg.get_long().and_then(|name| table::find(rows, name));
        match row.filter(|_| arg.get_action().takes_values()) {
            Some((_, row)) => arg.value_name(row.value),
            None => arg,
        }
    });
    let excluded = excluded.chain(ACTIONS.map(str::to_owned)).collect();
    Grammar { command: bare(command), excluded }
}

/// The keys of a table that is no command.
pub(super) fn of_table<T: Args>() -> Grammar {
    Grammar { command: group::<T>(), excluded: Vec::new() }
}

/// A group of options as a command of its own.
pub(super) fn group<T: Args>() -> Command {
    bare(T::augment_args(Command::new("table")))
}

fn bare(command: Command) -> Command {
    command.no_binary_name(true).disable_help_flag(true).disable_version_flag(true)
}

fn names(command: &Command) -> impl Iterator<Item = String> {
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned))
}

fn has<T: Args>(key: &str) -> bool {
    names(&group::<T>()).any(|name| name == key)
}

impl Grammar {
    /// The matches of a table without any key; empty if a key is required.
    pub(super) fn nothing(&self) -> ArgMatches {
        let none: [&str; 0] = [];
        self.command.clone().try_get_matches_from(none).unwrap_or_default()
    }

    /// The option of this name.
    pub(super) fn key(&self, key: &str) -> Option<&Arg> {
        self.keys().find(|arg| arg.get_long() == Some(key))
    }

    /// All keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Arg> {
        self.command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some_and(|long| !self.excluded.iter().any(|name| name == long)))
    }

    /// What is known about a key that is not there.
    pub(super) fn unknown(&self, key: &str, span: Span) -> Finding {
        let finding = Finding::error(span, format!("`{key}`: there is no such key here"));
        let elsewhere = ELSEWHERE.iter().find(|(has, _)| has(key));
        if let Some((_, text)) = elsewhere.filter(|_| self.excluded.iter().any(|name| name == key)) {
            return finding.help(*text);
        }
        match (self.meant(key), elsewhere) {
            (Some(meant), _) => finding.help(format!("did you mean `{meant}`?")),
            (None, Some((_, text))) => finding.help(*text),
            (None, None) => finding.help(format!("the keys here: {}", self.listed())),
        }
    }

    fn listed(&self) -> String {
        self.keys().filter_map(Arg::get_long).collect::<Vec<_>>().join(", ")
    }

    /// By an option's short or other name, or by the nearest spelling.
    fn meant(&self, key: &str) -> Option<&str> {
        let typed = key.trim_start_matches('-').to_lowercase().replace('_', "-");
        let also = |arg: &&Arg| {
            let is_short =
                arg.get_short().is_some_and(|short| key.trim_start_matches('-') == short.to_string());
            let is_alias = arg.get_all_aliases().is_some_and(|all| all.contains(&typed.as_str()));
            is_short || is_alias
        };
        let named = self.keys().find(also).and_then(Arg::get_long);
        let exactly = || self.keys().filter_map(Arg::get_long).find(|long| *long == typed);
        named.or_else(exactly).or_else(|| nearest(&typed, self.keys().filter_map(Arg::get_long)))
    }
}

/// The most similar name, if one is similar.
pub(super) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    alike.filter(|(likeness, _)| *likeness > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `a, b or c`.
pub(super) fn any_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [some @ .., last] => format!("{} or {last}", some.join(", ")),
    }
}

/// A string as it is written in the file.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A message about options, in keys: `--allow PREFIX` becomes `allow = "PREFIX"`, `-4` becomes `ipv4`.
pub(crate) fn in_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next_option(rest) {
        out.push_str(before);
        match value_after(after) {
            Some((value, behind)) => {
                let _ = write!(out, "{name} = {}", quoted(value));
                rest = behind;
            }
            None => {
                out.push_str(name);
                rest = after;
            }
        }
    }
    out + rest
}

/// The text before an option, its long name, and the text behind it.
fn next_option(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('-')?;
        let is_start = text[..at].chars().next_back().is_none_or(|c| " (`;:,[".contains(c));
        let behind = &text[at..];
        if is_start {
            for (short, long) in [("-4", "ipv4"), ("-6", "ipv6")] {
                if let Some(after) = behind.strip_prefix(short)
                    && !after.starts_with(|c: char| c.is_ascii_alphanumeric())
                {
                    return Some((&text[..at], long, after));
                }
            }
            if let Some(name) = behind.strip_prefix("--")
                && name.starts_with(|c: char| c.is_ascii_lowercase())
            {
                let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(name.len());
                return Some((&text[..at], &name[..end], &name[end..]));
            }
        }
        from = at + 1;
    }
}

/// The value that follows an option: a placeholder, an address, a path, or a word in brackets `<…>`.
fn value_after(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix([' ', '='])?;
    if let Some(inner) = rest.strip_prefix('<') {
        return inner.split_once('>');
    }
    let word = rest.split(' ').next()?.trim_end_matches([',', ';', ':', ')', '`', '?']);
    let is_value = word
        .starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "[/.:".contains(c))
        || word.contains(['.', ':', '/', '='])
        || VALUES.contains(&word);
    is_value.then(|| (word, &rest[word.len()..]))
}

/// Words that are values where they follow an option.
const VALUES: [&str; 28] = [
    "any",
    "auto",
    "aws-nlb",
    "dnsdist",
    "edgeone",
    "ephemeral",
    "every",
    "first",
    "forbid",
    "frp",
    "haproxy",
    "loopback",
    "manual",
    "nginx",
    "none",
    "optional",
    "private",
    "proxy",
    "refuse",
    "require",
    "self",
    "spectrum",
    "spp",
    "standalone",
    "tcp",
    "udp",
    "v1",
    "v2",
];
