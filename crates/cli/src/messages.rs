//! The messages for wrong command lines, literally: `messages.txt`, as users read them.

use std::ffi::OsString;
use std::path::Path;

use super::{Invocation, UsageError, command, parse};
use truepeer_config::plan::{Problems, attach_rules, connect_settings, run_settings, setup_options};

/// Lines after `$ `, each with the message, or the warnings, that it gets. To add a line, write it there, and
/// let TRUEPEER_WRITE=1 write its message.
const FILE: &str = "src/messages.txt";

fn lines() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

fn said(line: &str) -> String {
    let invocation = match parse(line.split_whitespace().map(OsString::from)) {
        Ok(invocation) => invocation,
        Err(UsageError::Clap(error)) => return error.to_string().trim().to_owned(),
        Err(UsageError::Problem(problems)) => return errors(&problems),
        Err(error) => return format!("error: {:#}", anyhow::Error::new(error)),
    };
    match warnings(invocation) {
        Ok(warnings) if warnings.is_empty() => "fine".to_owned(),
        Ok(warnings) => {
            warnings.iter().map(|warning| format!("warning: {warning}")).collect::<Vec<_>>().join("\n")
        }
        Err(problems) => errors(&problems),
    }
}

fn errors(problems: &Problems) -> String {
    problems.to_string().lines().map(|problem| format!("error: {problem}")).collect::<Vec<_>>().join("\n")
}

fn warnings(invocation: Invocation) -> Result<Vec<String>, Problems> {
    match invocation {
        Invocation::Proxy(config, _) | Invocation::Https(config, _) => Ok(config.check()?.warnings()),
        Invocation::Attach(args) => Ok(attach_rules(&args.spec)?.1),
        Invocation::Run(args) => Ok(run_settings(&args)?.1),
        Invocation::Routes(args) => Ok(setup_options(&args.routing).map(|_| Vec::new())?),
        Invocation::Doctor(args) => Ok(setup_options(&args.routing).map(|_| Vec::new())?),
        Invocation::Connect(args) => Ok(connect_settings(&args).map(|_| Vec::new())?),
        Invocation::OciHook(_)
        | Invocation::Vpp(_)
        | Invocation::Serve(_)
        | Invocation::Check(_)
        | Invocation::Status(_)
        | Invocation::Sessions(_)
        | Invocation::Whois(_)
        | Invocation::Top(_)
        | Invocation::Probe(_)
        | Invocation::Ban(_)
        | Invocation::Unban(_)
        | Invocation::Bans(_)
        | Invocation::Crowdsec(_)
        | Invocation::Print(_)
        | Invocation::Completion(_)
        | Invocation::Man(_)
        | Invocation::Reload(_)
        | Invocation::Upgrade(_) => Ok(Vec::new()),
    }
}

#[test]
fn messages_are_as_they_were_read_last() {
    let text: String = lines().iter().map(|line| format!("$ {line}\n{}\n\n", said(line))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("TRUEPEER_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    for (said, written) in text.split("\n\n").zip(written.split("\n\n")) {
        assert_eq!(said, written);
    }
    assert_eq!(text.len(), written.len(), "TRUEPEER_WRITE=1 writes the file anew; read it");
}

/// Parts of lines with options that no command has, or that are typed before one.
const UNKNOWN: &str = include_str!("messages.unknown.txt");

#[test]
fn messages_name_only_options_that_the_command_has() {
    let mut all = command();
    all.build();
    for line in lines().iter().filter(|line| UNKNOWN.lines().all(|option| !line.contains(option))) {
        let name = line.split(' ').nth(1).unwrap();
        let Some(command) = all.find_subcommand(name) else { continue };
        let message = said(line);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let words = message
            .split(|c: char| !is_part(c))
            .filter(|word| word.starts_with("--") && word[2..].starts_with(|c: char| c.is_ascii_lowercase()));
        for word in words {
            let has = command.get_arguments().any(|arg| arg.get_long() == word.strip_prefix("--"));
            assert!(has, "{line}: there is no {word}: {message}");
        }
    }
}

#[test]
fn an_empty_list_of_denied_clients_is_fine() {
    assert_eq!(said("truepeer proxy --deny-clients /dev/null"), "fine");
}

#[test]
fn messages_have_no_debug_form_and_quote_what_was_typed() {
    for line in &lines() {
        let message = said(line);
        for form in ["Some(", "Err(", "Os {", "kind:", "Error(", "Other("] {
            assert!(!message.contains(form), "{line}: {message}");
        }
        assert_ne!(message, "fine", "{line}");
    }
}
