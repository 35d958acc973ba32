//! Words that other programs have, and that truepeer calls otherwise: what to type.

use std::ffi::OsString;

use super::UsageError;
use truepeer_config::spec::defaults;
use words::{COMMANDS, COMPAT, OTHERS};

mod unknown;
mod words;

pub(crate) use unknown::{unknown, usual};

/// Commands with a file, which `-c` names.
const WITH_FILE: [&str; 7] = ["serve", "check", "reload", "upgrade", "status", "sessions", "top"];

/// Options for the backend that other programs have.
const BACKEND: [&str; 6] = ["backend", "target", "to", "upstream", "destination", "forward"];

/// Refuses words of other programs, and says what to type instead.
pub(super) fn refuse(argv: &[OsString]) -> Result<(), UsageError> {
    let words: Vec<&str> = argv.iter().skip(1).map_while(|word| word.to_str()).collect();
    let refused = |typed: &str, expected: &str, instead: &str| {
        Err(UsageError::Options(format!("{typed}: {expected}; type: {instead}")))
    };
    let Some((&first, rest)) = words.split_first() else { return Ok(()) };
    if let Some((_, instead)) = COMMANDS.iter().find(|(names, _)| names.contains(&first)) {
        return refused(first, "no command of truepeer", instead);
    }
    if let ("-c" | "--config", [file, command, ..]) = (first, rest) {
        return refused(first, "expected after the command", &format!("truepeer {command} -c {file}"));
    }
    let is_command = |word: &&&str| super::command().find_subcommand(**word).is_some();
    if first.starts_with('-')
        && !["-h", "-V", "--help", "--version"].contains(&first)
        && let Some(command) = rest.iter().find(is_command)
    {
        return refused(first, "expected after the command", &format!("truepeer {command} {first} …"));
    }
    if COMPAT.contains(&first) {
        return refused(first, "no command of truepeer", &format!("truepeer --compat {first} OPTIONS"));
    }
    if let ("status", [port, ..]) = (first, rest)
        && is_number(port)
    {
        return refused(port, "expected no port here", &format!("truepeer doctor {port}"));
    }
    if let ("sessions", ["--kill", client, ..]) = (first, rest)
        && !client.starts_with('-')
    {
        return refused(
            client,
            "expected --client before it",
            &format!("truepeer sessions --client {client} --kill"),
        );
    }
    if let ("attach", [action @ ("remove" | "add")]) = (first, rest) {
        return refused(action, "expected ports", &format!("truepeer attach {action} --port 443"));
    }
    if let ("attach", ["remove", port, ..]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        return refused(port, "expected an option", &format!("truepeer attach remove --port {port}"));
    }
    if let ("attach", ["status", "-p" | "--port", port, ..]) = (first, rest) {
        let instead = format!("truepeer attach status, or truepeer doctor {port}");
        return refused("--port", "status shows all ports", &instead);
    }
    if let ("attach", ["detach", "--port", port, ..]) = (first, rest) {
        return refused("--port", "detach takes all ports", &format!("truepeer attach remove --port {port}"));
    }
    if let ("attach", ["--port", port, sender, ..]) = (first, rest)
        && sender.starts_with(|c: char| c.is_ascii_hexdigit())
        && (sender.contains('.') || sender.contains(':'))
    {
        return refused(
            sender,
            "expected an option",
            &format!("truepeer attach --port {port} --allow {sender}"),
        );
    }
    if let Some((typed, expected, instead)) = misshapen(first, rest) {
        return refused(typed, expected, &instead);
    }
    if let Some((typed, instead)) = OTHERS.iter().find_map(|other| other.find(first, rest)) {
        return refused(typed, "not a word of this command", &instead);
    }
    let option = |word: &str, names: &[&str]| {
        let name = word.strip_prefix("--").unwrap_or_default();
        let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        names.contains(&name).then(|| value.map(str::to_owned))
    };
    match (first, rest) {
        (command, [file, ..]) if WITH_FILE.contains(&command) && !file.starts_with('-') => refused(
            file,
            "expected -c before a file",
            &format!("truepeer {command} -c {file} (without -c it is {})", defaults::CONFIG),
        ),
        ("connect", [to, ..]) if is_address(to) => {
            refused(to, "expected a program", &format!("truepeer connect --to {to} -- COMMAND"))
        }
        ("doctor", [port, protocol @ ("tcp" | "udp"), ..]) => {
            refused(protocol, "expected it behind the port", &format!("truepeer doctor {port}/{protocol}"))
        }
        ("doctor", [backend, ..]) if is_address(backend) => refused(
            backend,
            "expected a port, or an option before an address",
            &format!("truepeer doctor --try {}", to("proxy", backend)),
        ),
        ("proxy" | "https", [listen, more @ ..]) if is_address(listen) || is_number(listen) => {
            let backend = more.first().filter(|word| is_address(word)).unwrap_or(&"127.0.0.1:443");
            let colon = if is_number(listen) { ":" } else { "" };
            refused(
                listen,
                "expected an option before an address",
                &format!("truepeer {first} -l {colon}{listen} {}", to(first, backend)),
            )
        }
        ("proxy" | "https", _) => {
            for (place, word) in rest.iter().enumerate().take_while(|(_, word)| **word != "--") {
                let next = rest.get(place + 1).copied();
                if let Some(value) = option(word, &BACKEND) {
                    let value = value.as_deref().or(next).unwrap_or("127.0.0.1:443");
                    return refused(
                        word,
                        "no option of this command",
                        &format!("truepeer {first} … {}", to(first, value)),
                    );
                }
                if let Some(value) = option(word, &["port"]) {
                    let value = value.as_deref().or(next).unwrap_or("8443");
                    return refused(
                        word,
                        "no option of this command",
                        &format!("truepeer {first} … -l :{value}"),
                    );
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Values in another form than the option takes: what was typed, what was expected, and what to type.
fn misshapen<'a>(command: &str, rest: &[&'a str]) -> Option<(&'a str, &'static str, String)> {
    let end = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let rest = &rest[..end];
    let of_pair = |pair: &[&'a str]| match (command, pair) {
        ("proxy" | "https", &["-c", file]) if file.contains('/') || file.ends_with(".toml") => {
            Some((file, "a file is for serve", format!("truepeer serve -c {file}")))
        }
        ("attach", &["--pid", name]) if !is_number(name) && !name.starts_with('-') => Some((
            name,
            "expected the number of a container's process",
            format!("--pid \"$(pidof -s {name})\", or --container NAME; for a server of this host neither"),
        )),
        ("proxy", &[option @ ("-4" | "-6" | "--ipv4" | "--ipv6"), url]) => {
            let (_, host) = url.split_once("://")?;
            let host = host.split('/').next().unwrap_or(host);
            Some((url, "expected HOST:PORT, not a URL", format!("{option} {host}")))
        }
        _ => None,
    };
    let of_three = |three: &[&'a str]| match (command, three) {
        ("attach", &["--port", port, other]) if is_number(port) && is_number(other) => {
            Some((other, "expected the ports in one word", format!("--port {port},{other}")))
        }
        ("proxy" | "https", &["--tls-cert", cert, key]) if !cert.starts_with('-') && is_file(key) => {
            Some((key, "expected an option before it", format!("--tls-cert {cert} --tls-key {key}")))
        }
        ("connect", &["--to", host, port]) if is_number(port) && !is_address(host) => {
            Some((port, "expected the port behind its host", format!("--to {host}:{port}")))
        }
        (
            "proxy" | "https",
            &[option @ ("-l" | "--listen" | "-4" | "-6" | "--ipv4" | "--ipv6"), host, port],
        ) if is_number(port) && !is_address(host) && !host.starts_with('-') => {
            Some((port, "expected the port behind its host", format!("{option} {host}:{port}")))
        }
        _ => None,
    };
    rest.windows(2).find_map(of_pair).or_else(|| rest.windows(3).find_map(of_three))
}

/// `site.key`, not an option or an address.
fn is_file(word: &str) -> bool {
    !word.starts_with('-') && !is_address(word) && word.contains(['.', '/'])
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// `:8443`, `127.0.0.1:443`, `[::1]:443`.
fn is_address(word: &str) -> bool {
    let port = word.rsplit_once(':').map(|(_, port)| port);
    !word.starts_with('-') && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// The option for a backend.
fn to(command: &str, backend: &str) -> String {
    match command {
        "https" if backend.contains("//") => format!("--origin {backend}"),
        "https" => format!("--origin http://{backend}"),
        _ if backend.starts_with('[') => format!("-6 {backend}"),
        _ => format!("-4 {backend}"),
    }
}
