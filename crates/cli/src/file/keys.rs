//! The keys of a table: which ones there are, which one was meant, and messages about options in their words.

use clap::{Arg, ArgMatches, Args, Command};
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Span};
use crate::guess;
pub(crate) use crate::in_keys::{any_of, in_keys, quoted};
use crate::table::{self, Commands};
use truepeer_config::spec::{AcmeSpec, AdminSpec, LogSpec, ProcessTable, StackArgs};

/// The keys of one kind of table: the options of a command.
pub(super) struct Grammar {
    pub(super) command: Command,
    /// The table's name; "top" for the keys before the first table.
    pub(super) name: String,
    /// Options of the command that are no keys of the table.
    pub(super) excluded: Vec<String>,
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
    (
        |key| key == "timeout",
        "expected header-timeout, connect-timeout or idle-timeout; https has more: truepeer.toml(5)",
    ),
    (|key| key == "log-format", "write it as `format` in the table [log]"),
    (has::<AdminSpec>, "write it as `listen` in the table [admin]"),
    (has::<AcmeSpec>, "write it without `acme-` in the table [acme]"),
    (|key| ["email", "directory"].contains(&key), "write it in the table [acme]"),
    (
        |key| has::<LogSpec>(key) || ["log-level", "loglevel", "verbosity"].contains(&key),
        "write `level` in the table [log]",
    ),
    (has::<StackArgs>, "VPP's stack takes a process of its own: truepeer https --stack vpp"),
];

/// Options that make a command print something instead of its usual work.
const ACTIONS: [&str; 5] = ["dry-run", "netns-inode", "print-config", "replace", "watch"];

/// The keys of an entry: the command's options but those of [`ELSEWHERE`], which are its groups.
pub(super) fn of_entry<T: Args>(name: &str, rows: Commands, groups: &[fn() -> Command]) -> Grammar {
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
    Grammar { command: bare(command), name: name.to_owned(), excluded }
}

/// The keys of a table that is no command.
pub(super) fn of_table<T: Args>() -> Grammar {
    Grammar { command: group::<T>(), name: "top".to_owned(), excluded: Vec::new() }
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
    pub(super) fn unknown(&self, key: &str, span: Span, value: &DeValue<'_>) -> Finding {
        let finding = Finding::error(span, format!("`{key}`: there is no such key here"));
        let tables =
            value.as_array().into_iter().flat_map(|values| values.iter().map(|value| value.get_ref()));
        let table = std::iter::once(value).chain(tables).find_map(DeValue::as_table);
        if let Some(keys) = table.and_then(|table| self.flattened(key, table)) {
            let name = &self.name;
            return finding
                .help(format!("[[{name}]] has no tables of its own: write {keys} directly below it"));
        }
        if ["admin", "log", "acme"].contains(&key) && table.is_some() {
            return finding.help(format!("write [{key}] in a line of its own: it is for the whole process"));
        }
        let elsewhere = || {
            let (_, text) = ELSEWHERE.iter().find(|(has, _)| has(&typed(key)))?;
            Some((*text).to_owned())
        };
        let is_excluded = self.excluded.iter().any(|name| name == key);
        let meant = || self.meant(key).map(|meant| format!("did you mean `{meant}`?"));
        let other = || {
            let help = guess::key(&self.name, key, first_text(value))?;
            Some(self.with_all(&help, value).unwrap_or(help))
        };
        let near = || {
            let near = nearest(&typed(key), self.names())?;
            Some(format!("did you mean `{near}`?"))
        };
        let related = || {
            let some: Vec<_> =
                guess::sharing_a_word(key, self.names()).iter().map(|name| format!("`{name}`")).collect();
            (!some.is_empty()).then(|| format!("did you mean {}?", any_of(&some)))
        };
        let help = elsewhere().filter(|_| is_excluded).or_else(meant).or_else(elsewhere).or_else(other);
        let help = help.or_else(near).or_else(related);
        finding.help(
            help.unwrap_or_else(|| format!("the keys here: {}", self.names().collect::<Vec<_>>().join(", "))),
        )
    }

    /// The keys that a table in this one stands for: `[proxy.tls]` with `cert` for `tls-cert`.
    fn flattened(&self, name: &str, table: &DeTable<'_>) -> Option<String> {
        let keys = table.keys().map(|key| {
            let (key, one) = (key.get_ref(), name.strip_suffix('s').unwrap_or(name));
            [format!("{name}-{key}"), format!("{key}-{one}"), key.to_string()]
                .into_iter()
                .map(|key| typed(&key))
                .find(|key| self.key(key).is_some())
        });
        let keys: Vec<String> = keys.flatten().map(|key| format!("`{key}`")).collect();
        (!keys.is_empty()).then(|| keys.join(", "))
    }

    /// `type port = "25"` with all values of a list.
    fn with_all(&self, help: &str, value: &DeValue<'_>) -> Option<String> {
        let (name, _) = help.strip_prefix("type ")?.split_once(" = ")?;
        let is_list = matches!(self.key(name)?.get_action(), clap::ArgAction::Append);
        let texts = value.as_array().filter(|values| is_list && values.len() > 1)?.iter();
        let texts = texts.map(|value| text_of(value.get_ref()).map(quoted)).collect::<Option<Vec<_>>>()?;
        Some(format!("type {name} = [{}]", texts.join(", ")))
    }

    /// The names of all keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.keys().filter_map(Arg::get_long)
    }

    /// By an option's short or other name, or in another spelling.
    fn meant(&self, key: &str) -> Option<&str> {
        let typed = typed(key);
        let also = |arg: &&Arg| {
            let is_short =
                arg.get_short().is_some_and(|short| key.trim_start_matches('-') == short.to_string());
            let is_alias = arg.get_all_aliases().is_some_and(|all| all.contains(&typed.as_str()));
            is_short || is_alias
        };
        let named = self.keys().find(also).and_then(Arg::get_long);
        named.or_else(|| self.names().find(|long| *long == typed))
    }
}

/// A string or a number.
pub(super) fn text_of<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    value.as_str().or_else(|| Some(value.as_integer()?.as_str()))
}

/// A string or a number, or the first one of a list.
fn first_text<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    let first = value.as_array().and_then(|values| Some(values.iter().next()?.get_ref()));
    text_of(first.unwrap_or(value))
}

/// A key as options are written.
fn typed(key: &str) -> String {
    key.trim_start_matches('-').to_lowercase().replace('_', "-")
}

/// The most similar name, if one is similar.
pub(super) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    alike.filter(|(likeness, _)| *likeness > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
