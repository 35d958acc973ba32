//! A tip below clap's own text: what to type instead of a value that is refused or missing.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::address::{MOST_LISTENERS, range};
use super::behind::quoted;
use super::named::{has, main_name};
use super::value::{any_value, meant, takes};
use truepeer_policy::above_255;

const BACKENDS: [&str; 3] = ["ipv4", "ipv6", "origin"];
const NO_UNIX: &str =
    "expected an address, not a Unix socket: let the server listen on 127.0.0.1:PORT, and name that";
const NO_UNIX_HERE: &str = "senders come by TCP, not to a Unix socket: type --listen 127.0.0.1:8443";
const ONE_OF_MANY: &str = " (the load balancer before truepeer spreads the load)";

/// A tip below clap's own text.
pub(super) fn tip(
    error: &clap::Error,
    command: &Command,
    examples: &[String],
    argv: &[OsString],
) -> Option<String> {
    let option = text(error, ContextKind::InvalidArg)?.split(' ').next()?;
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
            if text(error, ContextKind::InvalidValue).is_some_and(|typed| !typed.is_empty()) =>
        {
            let typed = text(error, ContextKind::InvalidValue)?;
            let positional = || command.get_positionals().next().map(|arg| arg.get_id().as_str());
            let name = option.strip_prefix("--").or_else(positional)?;
            if !option.starts_with('-') && main_name(command, typed).is_some() {
                return Some(format!("type --{typed}"));
            }
            if let Some(tip) = in_words(command, option, name, typed).or_else(|| above_255(typed)) {
                return Some(tip);
            }
            let Some(words) = meant(command, name, typed) else {
                let first = typed.split(',').next().filter(|first| first.len() < typed.len())?;
                let why = if BACKENDS.contains(&name) { ONE_OF_MANY } else { "" };
                let is_list = typed.split(',').all(|part| takes(command, name, part));
                return is_list.then(|| format!("type {option} {first}, one value and not a list{why}"));
            };
            let is_option = option.starts_with('-');
            let words = words.iter().map(|word| match is_option {
                true => format!("{option} {}", quoted(word)),
                false => quoted(word),
            });
            // `:53/udp`
            let is_udp = is_option && name != "protocol" && typed.to_lowercase().contains("udp");
            let udp = if is_udp && has(command, "--protocol") { " --protocol udp" } else { "" };
            // `smtp://mail:25`
            let app =
                typed.split_once("://").filter(|(app, _)| has(command, "--as") && takes(command, "as", app));
            let app = app.map(|(app, _)| format!(" --as {app}")).unwrap_or_default();
            Some(format!("type {}{udp}{app}", words.collect::<Vec<_>>().join(" ")))
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
            let usual = any_value(command, option.trim_start_matches('-'));
            match (usual, example, error.kind()) {
                (Some(usual), _, ErrorKind::InvalidValue) => Some(format!("type {option} {usual}")),
                (None, None, ErrorKind::InvalidValue) => {
                    Some(format!("type {}", text(error, ContextKind::InvalidArg)?))
                }
                (_, example, _) => Some(format!("for example: {}", example.or(examples.first())?)),
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

/// Advice where no other spelling of the value would be right.
fn in_words(command: &Command, option: &str, name: &str, typed: &str) -> Option<String> {
    let not = typed.strip_prefix(['!', '-']).or_else(|| typed.strip_prefix("not ")).map(str::trim);
    let is_path = typed.starts_with("unix:") || typed.starts_with('/');
    let is_word = typed.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    match name {
        "allow" if not.is_some_and(|prefix| takes(command, name, prefix)) => Some(format!(
            "type --deny-clients {}, for clients; senders that may not connect are left out",
            not.unwrap_or_default()
        )),
        "allow" if has(command, "--dev") && Path::new("/sys/class/net").join(typed).exists() => {
            Some(format!("expected the senders' addresses; for one device of this host: --dev {typed}"))
        }
        "allow" if is_word && !Path::new(typed).exists() && meant(command, name, typed).is_none() => {
            Some(format!(
                "type {option} 10.0.0.7, with the sender's own address; of a list: {option} ./{typed}.txt"
            ))
        }
        "header" if ["1", "2", "v1", "v2", "proxy"].contains(&typed) => {
            Some("leave it out: headers of both versions are read".to_owned())
        }
        "header" if has(command, "--dev") && ["off", "no", "none", "false", "never"].contains(&typed) => {
            Some(format!(
                "type {option} optional, to serve connections without a header, too; a sender that never \
                 writes one is left out of --allow, and passes unchanged"
            ))
        }
        "listen" if range(typed).is_some_and(|(_, ports)| ports.len() > MOST_LISTENERS) => Some(format!(
            "type {option} :25577 --listen-transparent, to which TPROXY leads these ports (docs/proxy.md)"
        )),
        "listen" if is_path => Some(NO_UNIX_HERE.to_owned()),
        "udp-dialect" if typed == "playit" => {
            Some("type --sender playit, which sets --close-after".to_owned())
        }
        "ipv4" | "ipv6" | "origin" if is_path && !typed.contains('=') => Some(NO_UNIX.to_owned()),
        _ if ["auto", "default", "unset"].contains(&typed) && option.starts_with('-') => {
            Some(format!("leave {option} out: its default is taken"))
        }
        _ => None,
    }
}

pub(super) fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(all)) => all.first().map(String::as_str),
        _ => None,
    }
}
