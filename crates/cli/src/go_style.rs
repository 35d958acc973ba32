//! Go's single dash before long options: `-allowed-subnets x`, `-listeners=4`, `--l :8443`, `-flag=false`.
//!
//! A word is rewritten only if, without its dash, it is exactly a long option; `-l0.0.0.0:8443` stays as it
//! is. The command line of another program, after `--` or from its name on, also stays.

use std::ffi::OsString;

use clap::{Arg, Command};

/// The words as clap expects them.
pub(super) fn rewrite(argv: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let mut words = argv.into_iter();
    let mut rewritten = Vec::with_capacity(words.len());
    rewritten.extend(words.next());
    let starts_programs = command.get_positionals().any(Arg::is_trailing_var_arg_set);
    // The command's own name comes first.
    let mut is_value = true;
    while let Some(word) = words.next() {
        let begins_command = starts_programs && !is_value && !word.as_encoded_bytes().starts_with(b"-");
        if word == "--" || begins_command {
            rewritten.push(word);
            rewritten.extend(words);
            break;
        }
        is_value = !is_value && word.to_str().is_some_and(|text| wants_value(text, command));
        match word.to_str().map(|text| Word::of(text, command)) {
            Some(Word::Rewritten(text)) => rewritten.push(text.into()),
            Some(Word::Dropped) => {}
            Some(Word::AsItIs) | None => rewritten.push(word),
        }
    }
    rewritten
}

/// An option whose value is the next word.
fn wants_value(text: &str, command: &Command) -> bool {
    let name = text.strip_prefix("--").or_else(|| text.strip_prefix('-'));
    name.and_then(|name| find(name, command)).is_some_and(|(_, arg)| arg.get_action().takes_values())
}

enum Word {
    AsItIs,
    Rewritten(String),
    /// `-flag=false`: as if it were absent.
    Dropped,
}

impl Word {
    fn of(text: &str, command: &Command) -> Self {
        let Some(option) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
            return Self::AsItIs;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let Some((dashes, arg)) = find(name, command) else { return Self::AsItIs };
        match (arg.get_action().takes_values(), value) {
            (false, Some(value)) => match go_bool(value) {
                Some(true) => Self::Rewritten(format!("{dashes}{name}")),
                Some(false) => Self::Dropped,
                None => Self::AsItIs,
            },
            _ => Self::Rewritten(format!("{dashes}{option}")),
        }
    }
}

/// The option of that name, and the dashes that clap requires.
fn find<'a>(name: &str, command: &'a Command) -> Option<(&'static str, &'a Arg)> {
    let mut letters = name.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        return command.get_arguments().find(|arg| arg.get_short() == Some(letter)).map(|arg| ("-", arg));
    }
    let is_named = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(is_named).map(|arg| ("--", arg))
}

/// strconv.ParseBool, which Go's flags use.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let argv = line.split(' ').map(OsString::from).collect();
        let words = rewrite(argv, &crate::proxy::command("proxy"));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn long_options_get_their_second_dash() {
        for (go, ours) in [
            ("p -allowed-subnets x", "p --allowed-subnets x"),
            ("p -listeners=4 -mark 5", "p --listeners=4 --mark 5"),
            ("p --mark 5 --mark=5", "p --mark 5 --mark=5"),
            ("p -listen-addr x", "p --listen-addr x"),
            ("p --l :8443 --4=a:1 --p tcp", "p -l :8443 -4=a:1 -p tcp"),
            ("p -dynamic-destination=true", "p --dynamic-destination"),
            ("p -dynamic-destination=F -v 1", "p -v 1"),
            ("p -dynamic-destination=maybe", "p -dynamic-destination=maybe"),
            ("p -l0.0.0.0:8443 -v2 -4[::1]:2", "p -l0.0.0.0:8443 -v2 -4[::1]:2"),
            ("p -nonsense x - -l x", "p -nonsense x - -l x"),
            ("p -- -mark 5", "p -- -mark 5"),
        ] {
            assert_eq!(rewritten(go), ours);
        }
    }
}
