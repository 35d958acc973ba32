//! Words that clap does not know, with what it expected.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::super::UsageError;

/// The options of a command that most users need; all, if it has few.
pub(crate) fn usual(command: &Command) -> String {
    let named = || command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set());
    let is_long = named().count() > 8;
    let usual = named().filter(|arg| !(is_long && arg.is_hide_short_help_set()));
    let usual = usual.filter_map(|arg| arg.get_long()).filter(|name| !matches!(*name, "help" | "version"));
    usual.map(|name| format!("--{name}")).collect::<Vec<_>>().join(", ")
}

/// What to type instead of a word that clap refuses. `None`: clap's own suggestion says it.
pub(crate) fn unknown(command: &str, usual: &str, error: &clap::Error) -> Option<UsageError> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let said = match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = text(ContextKind::InvalidArg)?;
            // Only clap knows where the program of `run` begins.
            if (command, typed) == ("run", "-p") {
                format!("{typed}: not a word of this command; type: truepeer run --port 8000 -- COMMAND")
            } else if text(ContextKind::SuggestedArg).is_some_and(|meant| is_like(typed, meant)) {
                return None;
            } else if typed.starts_with('-') {
                format!(
                    "{typed}: not a word of this command; expected {usual}; more: truepeer {command} --help"
                )
            } else {
                format!("{typed}: expected an option before it: {usual}; more: truepeer {command} --help")
            }
        }
        ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict if command == "attach" => {
            let typed = text(ContextKind::InvalidSubcommand)?;
            format!("{typed}: expected an option before it; type: truepeer attach --port 443 --allow PREFIX")
        }
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            let typed = text(ContextKind::InvalidSubcommand)?;
            format!(
                "{typed}: no command of truepeer; expected attach, run, proxy, https, connect, serve, check, \
                 reload, upgrade, doctor, status, sessions, top, probe or routes"
            )
        }
        _ => return None,
    };
    Some(UsageError::Options(said))
}

/// Whether one is a part of the other, or nearly the same.
fn is_like(typed: &str, meant: &str) -> bool {
    let (typed, meant) = (typed.trim_start_matches('-'), meant.trim_start_matches('-'));
    meant.contains(typed) || typed.contains(meant) || strsim::jaro_winkler(typed, meant) > 0.85
}
