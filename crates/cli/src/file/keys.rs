//! The keys of a table: which ones there are, which one was meant, and messages about options in their words.

use clap::{Arg, ArgMatches, Args, Command};
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Span};
use crate::guess;
pub(super) use crate::guess::nearest;
pub(crate) use crate::in_keys::{any_of, assigned, in_keys, quoted};
use crate::table::{self, Commands};
use truepeer_config::spec::{AcmeSpec, AdminSpec, LogSpec, LogTable, ProcessTable, StackArgs};

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
const ELSEWHERE: [Elsewhere; 8] = [
    (
        has::<ProcessTable>,
        "it is for the whole process: write it at the top of the file, before the first table",
    ),
    (
        |key| ["file", "logfile", "log-file", "log", "output"].contains(&key),
        "leave it out: the log goes to standard error; under systemd `journalctl -u truepeer` shows it",
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
            Some((_, row)) => arg.value_name(row.value).help(row.text()),
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
        if let Some(line) = self.origins(value) {
            return finding.help(line);
        }
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
            Some(match value.as_str().filter(|_| text.ends_with("table [log]")) {
                Some(word) => format!("leave this line out, and below [log] type {}", of_log(text, word)),
                None => (*text).to_owned(),
            })
        };
        let is_excluded = self.excluded.iter().any(|name| name == key);
        let line = |name: &str| self.line(name, value).unwrap_or_else(|| format!("did you mean `{name}`?"));
        let meant = || self.meant(key).map(line);
        let other = || {
            let help = guess::key(&self.name, key, first_text(value))?;
            let is_udp = help.starts_with("type port = \"53/udp\"");
            match value.as_str() {
                // `backend = "web"`, which names a table elsewhere
                Some(name) if help == format!("type ipv4 = {}", quoted(name)) && is_name(name) => {
                    return Some(format!(
                        "type ipv4 = \"127.0.0.1:443\", the address of the server `{name}`"
                    ));
                }
                _ if help.starts_with("type port = \"PORT\"") => {
                    let why = "`port` names a server of this host; one elsewhere is a [[proxy]]";
                    return Some(format!("leave it out: {why}"));
                }
                Some("tcp") if is_udp => return Some("leave it out: a port is one of TCP".to_owned()),
                Some("both") if is_udp => return Some("type port = [\"53\", \"53/udp\"]".to_owned()),
                _ => {}
            }
            let is_backend =
                help.starts_with("type ipv") && value.as_array().is_some_and(|all| all.len() > 1);
            let why = if is_backend { "; the load balancer before truepeer spreads the load" } else { "" };
            Some(self.with_all(&help, value).unwrap_or(help + why))
        };
        let near = || {
            let near = nearest(&typed(key), self.names())?;
            Some(line(near))
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
        let lines = table.iter().filter_map(|(key, value)| {
            let (key, one) = (key.get_ref(), name.strip_suffix('s').unwrap_or(name));
            let key = [format!("{name}-{key}"), format!("{key}-{one}"), key.to_string()]
                .into_iter()
                .map(|key| typed(&key))
                .find(|key| self.key(key).is_some())?;
            let line = self.line(&key, value.get_ref());
            Some(
                line.and_then(|line| Some(line.strip_prefix("type ")?.to_owned()))
                    .unwrap_or(format!("`{key}`")),
            )
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// `[[https.origins]]` with a URL in each, and perhaps a host or a path.
    fn origins(&self, value: &DeValue<'_>) -> Option<String> {
        let origin = |value: &DeValue<'_>| {
            let texts: Vec<&str> =
                value.as_table()?.values().filter_map(|value| value.get_ref().as_str()).collect();
            let url = texts.iter().find(|text| text.contains("://"))?;
            let serves = texts.iter().find(|text| *text != url).map(|text| format!("{text}="));
            Some(quoted(&format!("{}{url}", serves.unwrap_or_default())))
        };
        self.key("origin")?;
        let values = value.as_array()?.iter().map(|value| origin(value.get_ref()));
        Some(format!("type {}", assigned("origin", &values.collect::<Option<Vec<_>>>()?)))
    }

    /// The line to type, if the value shows that the user meant the key `name`.
    fn line(&self, name: &str, value: &DeValue<'_>) -> Option<String> {
        let is_prefix = |value: &DeValue<'_>| {
            value.as_str().is_some_and(|text| guess::takes(&self.command, "allow", text))
        };
        // It takes files alone.
        let name = if name == "allowed-subnets" && is_prefix(value) { "allow" } else { name };
        let arg = self.key(name)?;
        if let (Some(is_on), false) = (value.as_bool(), arg.get_action().takes_values()) {
            return Some(format!("type {name} = {is_on}"));
        }
        let values: Vec<_> = match value.as_array() {
            Some(values) => values.iter().map(|value| value.get_ref()).collect(),
            None => vec![value],
        };
        let words = values.into_iter().map(|value| {
            let text =
                text_of(value).or(value.as_bool().map(|is_on| if is_on { "true" } else { "false" }))?;
            match guess::takes(&self.command, name, text) {
                true if value.is_integer() => Some(vec![text.to_owned()]),
                true => Some(vec![quoted(text)]),
                false => {
                    Some(guess::meant(&self.command, name, text)?.iter().map(|word| quoted(word)).collect())
                }
            }
        });
        let words: Vec<String> = words.collect::<Option<Vec<_>>>()?.concat();
        (!words.is_empty()).then(|| format!("type {}", assigned(name, &words)))
    }

    /// `type port = "25"` with all values of a list.
    fn with_all(&self, help: &str, value: &DeValue<'_>) -> Option<String> {
        let (name, _) = help.strip_prefix("type ")?.split_once(" = ")?;
        let is_list = matches!(self.key(name)?.get_action(), clap::ArgAction::Append);
        let texts = value.as_array().filter(|values| is_list && values.len() > 1)?.iter();
        let texts = texts.map(|value| text_of(value.get_ref()).map(quoted)).collect::<Option<Vec<_>>>()?;
        Some(format!("type {}", assigned(name, &texts)))
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

fn is_name(text: &str) -> bool {
    !text.contains(['.', ':']) && text.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// A string or a number, or the first one of a list.
fn first_text<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    let first = value.as_array().and_then(|values| Some(values.iter().next()?.get_ref()));
    text_of(first.unwrap_or(value))
}

/// A key as options are written.
pub(super) fn typed(key: &str) -> String {
    guess::kebab(key.trim_start_matches('-'))
}

/// The line of the table `[log]` for `log-level` or `log-format`.
fn of_log(text: &str, word: &str) -> String {
    let name = if text.contains("`format`") { "format" } else { "level" };
    let meant = guess::meant(&group::<LogTable>(), name, word).and_then(|words| words.into_iter().next());
    assigned(name, &[quoted(&meant.unwrap_or_else(|| word.to_owned()))])
}
