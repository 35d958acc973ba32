//! Words that other programs have, and that truepeer calls otherwise: what to type.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::UsageError;
use truepeer_config::spec::defaults;
use truepeer_policy::PrefixSet;
use words::find;

mod address;
mod amount;
mod behind;
mod named;
mod tip;
mod unknown;
mod value;
mod variables;
mod whole;
mod words;

pub(crate) use behind::behind_the_program;
pub(crate) use named::sharing_a_word;
pub(crate) use unknown::explain;
pub(crate) use value::{meant, takes};
pub(crate) use variables::{PREFIX, unread};
pub(crate) use whole::in_a_whole_line;
pub(crate) use words::key;

/// Commands with a file, which `-c` names.
const WITH_FILE: [&str; 7] = ["serve", "check", "reload", "upgrade", "status", "sessions", "top"];

/// Refuses words of other programs, and says what to type instead. `is_valid`: all words are truepeer's own.
pub(super) fn refuse(argv: &[OsString], is_valid: bool) -> Result<(), UsageError> {
    let words: Vec<&str> = argv.iter().skip(1).map_while(|word| word.to_str()).collect();
    let refused = |typed: &str, expected: &str, instead: &str| {
        Err(UsageError::Options(words::saying(typed, expected, instead)))
    };
    let Some((&first, rest)) = words.split_first() else { return Ok(()) };
    if first == "exec" && rest.contains(&"--") {
        return refused(first, "no command of truepeer", &format!("truepeer run {}", rest.join(" ")));
    }
    if let ("detach" | "unattach" | "remove", [port, ..]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        return refused(first, "no command of truepeer", &format!("truepeer attach remove --port {port}"));
    }
    if let Some((_, instead)) = find("COMMAND", &[first]) {
        return refused(first, "no command of truepeer", &instead);
    }
    if let ("-c" | "--config", [file, command, ..]) = (first, rest) {
        return refused(first, "expected after the command", &format!("truepeer {command} -c {file}"));
    }
    let is_long = |word: &&&str| word.starts_with(['—', '–', '−']);
    if let Some(word) = words.iter().take_while(|word| **word != "--").find(is_long) {
        let name = word.trim_start_matches(['—', '–', '−', '-']);
        let dashes = if name.chars().count() > 1 { "--" } else { "-" };
        return refused(word, "its dash is a long one", &format!("{dashes}{name}"));
    }
    let all = super::command();
    let is_command = |word: &&&str| all.find_subcommand(**word).is_some();
    let lower = first.to_lowercase();
    if !is_command(&&first) && is_command(&&lower.as_str()) {
        return refused(first, "no command of truepeer", &format!("truepeer {lower} {}", rest.join(" ")));
    }
    // The words of `run` and `connect` may be programs.
    if let (Some(way), Some(second)) = (all.find_subcommand(first), rest.first())
        && !["run", "connect", "completion"].contains(&first)
        && way.find_subcommand(second).is_none()
        && is_command(&second)
        && find(first, &[second]).is_none()
    {
        return refused(second, "expected one command", &format!("truepeer {}", rest.join(" ")));
    }
    if first.starts_with('-') && !["-h", "-V", "--help", "--version"].contains(&first) {
        if let Some((typed, instead)) = find("START", &words).filter(|(typed, _)| *typed == first) {
            return refused(typed, "not a word of truepeer", &instead);
        }
        if let Some(command) = rest.iter().find(is_command) {
            return refused(first, "expected after the command", &format!("truepeer {command} {first} …"));
        }
        if let Some(command) = named::with_most(&all, &words) {
            return refused(
                first,
                "expected a command before it",
                &format!("truepeer {command} {}", words.join(" ")),
            );
        }
    }
    if is_address(first) {
        let backend = rest.iter().find(|word| is_address(word)).unwrap_or(&"127.0.0.1:443");
        let instead = format!("truepeer proxy -l {first} {}", to("proxy", backend));
        return refused(first, "expected a command before an address", &instead);
    }
    if first.contains('/') || first.ends_with(".toml") {
        return refused(first, "expected a command before a file", &format!("truepeer serve -c {first}"));
    }
    if let ("status", [port, ..]) = (first, rest)
        && is_number(port)
    {
        return refused(port, "expected no port here", &format!("truepeer doctor {port}"));
    }
    if let ("status" | "reload", [unit]) = (first, rest)
        && !unit.starts_with('-')
        && (unit.ends_with(".service") || !unit.contains(['.', '/']))
    {
        let instead = format!("truepeer {first}; of a unit: systemctl {first} {unit}");
        return refused(unit, "expected nothing behind the command", &instead);
    }
    if let ("sessions", ["--kill", client, ..] | [client, ..]) = (first, rest)
        && client.starts_with(|c: char| c.is_ascii_hexdigit())
        && (client.contains(':') || client.split('.').count() == 4)
    {
        let kill = if rest.contains(&"--kill") { " --kill" } else { "" };
        return refused(
            client,
            "expected --client before it",
            &format!("truepeer sessions --client {client}{kill}"),
        );
    }
    if let ("attach", [action @ ("remove" | "add")]) = (first, rest) {
        return refused(action, "expected ports", &format!("truepeer attach {action} --port 443"));
    }
    if let ("attach", [action @ ("remove" | "add"), port, ..]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        return refused(port, "expected an option", &format!("truepeer attach {action} --port {port}"));
    }
    if let ("attach", ["status", "-p" | "--port", port, ..] | ["status", port]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        let instead = format!("truepeer attach status, or truepeer doctor {port}");
        return refused(port, "status shows all ports", &instead);
    }
    if let ("attach", ["detach", "--port", port, ..] | ["detach", port]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        return refused(port, "detach takes all ports", &format!("truepeer attach remove --port {port}"));
    }
    if let ("run" | "connect", [client, program @ ..]) = (first, rest)
        && let Ok(ip) = client.parse::<IpAddr>()
    {
        let option = match first {
            "run" => format!("--allow {ip}"),
            _ => format!("--from {}", SocketAddr::new(ip, 5000)),
        };
        let program = program.strip_prefix(&["--"]).unwrap_or(program).join(" ");
        return refused(
            client,
            "expected an option before it",
            &format!("truepeer {first} {option} -- {program}"),
        );
    }
    // `--container udp` is right.
    if let ("attach", false, Some((typed, instead))) = (first, is_valid, of_listener(rest)) {
        return refused(typed, "not a word of this command", &instead);
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
    let innermost = rest.iter().fold(all.find_subcommand(first), |command, word| {
        command.map(|command| command.find_subcommand(word).unwrap_or(command))
    });
    let found = misshapen(first, rest).or_else(|| innermost.and_then(|command| negative(command, rest)));
    if let Some((typed, expected, instead)) = found {
        return refused(typed, expected, &instead);
    }
    // Where the program of `run` begins, only clap knows.
    let is_own = |typed: &str| innermost.is_some_and(|command| named::has(command, typed));
    if !is_valid
        && !["run", "connect"].contains(&first)
        && let Some((typed, instead)) = find(first, rest).filter(|(typed, _)| !is_own(typed))
    {
        return refused(typed, "not a word of this command", &instead);
    }
    match (first, rest) {
        (command, [file, ..]) if WITH_FILE.contains(&command) && (file == &"-" || !file.starts_with('-')) => {
            let path = if file == &"-" { "/dev/stdin" } else { file };
            let usual = defaults::CONFIG;
            refused(
                file,
                "expected -c before a file",
                &format!("truepeer {command} -c {path} (without -c it is {usual})"),
            )
        }
        ("connect", [to, ..]) if is_address(to) => {
            refused(to, "expected a program", &format!("truepeer connect --to {to} -- COMMAND"))
        }
        ("doctor", ["-p" | "--protocol", protocol, port]) if is_number(port) => {
            refused(protocol, "expected it behind the port", &format!("truepeer doctor {port}/{protocol}"))
        }
        ("doctor", [port, protocol @ ("tcp" | "udp"), ..]) => {
            refused(protocol, "expected it behind the port", &format!("truepeer doctor {port}/{protocol}"))
        }
        ("doctor", [port, ..]) if port.strip_prefix(':').is_some_and(is_number) => {
            refused(port, "expected a port alone", &format!("truepeer doctor {}", &port[1..]))
        }
        ("doctor", [backend, ..]) if is_address(backend) => refused(
            backend,
            "expected a port, or an option before an address",
            &format!("truepeer doctor --try {}", to("proxy", backend)),
        ),
        ("proxy" | "https", [listen, more @ ..]) if is_address(listen) || is_number(listen) => {
            let backend = more.iter().find(|word| is_address(word)).unwrap_or(&"127.0.0.1:443");
            let colon = if is_number(listen) { ":" } else { "" };
            refused(
                listen,
                "expected an option before an address",
                &format!("truepeer {first} -l {colon}{listen} {}", to(first, backend)),
            )
        }
        _ => Ok(()),
    }
}

/// Words of a relay beside `--port`: a protocol, which stands behind the port, or a listener of its own.
fn of_listener<'a>(rest: &[&'a str]) -> Option<(&'a str, String)> {
    let (place, port) = rest.windows(2).enumerate().find_map(|(place, pair)| match pair {
        ["--port", port] if port.bytes().all(|byte| byte.is_ascii_digit() || b",-".contains(&byte)) => {
            Some((place, *port))
        }
        _ => None,
    })?;
    let others = || rest.iter().enumerate().filter(|(other, _)| *other != place && *other != place + 1);
    let is_udp = |word: &str| ["--udp", "-u", "udp"].contains(&word);
    if let Some((_, &typed)) = others().find(|(_, word)| is_udp(word)) {
        let ports: Vec<String> = port.split(',').map(|port| format!("{port}/udp")).collect();
        return Some((typed, format!("truepeer attach --port {}", ports.join(","))));
    }
    let is_listener = |word: &str| ["-l", "--listen", "--bind", "--listen-port"].contains(&word);
    let (_, &typed) = others().find(|(_, word)| is_listener(word))?;
    Some((typed, "nothing: leave it out; attach opens no listener, the server keeps its own port".to_owned()))
}

/// Values in another form than the option takes: what was typed, what was expected, and what to type.
fn misshapen<'a>(command: &str, rest: &[&'a str]) -> Option<(&'a str, &'static str, String)> {
    let end = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let rest = &rest[..end];
    let of_pair = |pair: &[&'a str]| match (command, pair) {
        // `-L` as ssh has it.
        ("proxy" | "https", &["-l" | "-L" | "--listen", pair]) => {
            let (listen, backend) = pair.split_once(':').filter(|(listen, _)| is_number(listen))?;
            let backend =
                if is_number(backend) { format!("127.0.0.1:{backend}") } else { backend.to_owned() };
            let backend = to(command, &backend);
            Some((pair, "expected an address before the port", format!("-l :{listen} {backend}")))
        }
        ("proxy" | "https", &["--from" | "--source" | "--src" | "--local" | "--in", listen])
            if is_address(listen) =>
        {
            Some((listen, "expected --listen before it", format!("--listen {listen}")))
        }
        ("https", &["-d", name]) if name.contains('.') && !name.starts_with('-') => {
            Some((name, "expected --acme before a name", format!("--acme {name}")))
        }
        ("ban", &[client, time]) if client.contains(['.', ':']) && is_time(time) => {
            Some((time, "expected an option before it", format!("truepeer ban {client} --for {time}")))
        }
        ("doctor", &["-p", port]) if is_number(port) => {
            Some((port, "expected no option before a port", format!("truepeer doctor {port}")))
        }
        ("proxy" | "https", &["-c", file]) if file.contains('/') || file.ends_with(".toml") => {
            Some((file, "a file is for serve", format!("truepeer serve -c {file}")))
        }
        ("attach", &["-p" | "--publish" | "--ports", pair]) => {
            let (_, port) = pair.split_once(':').filter(|(host, port)| is_number(host) && is_number(port))?;
            Some((pair, "expected the server's own port", format!("--port {port}")))
        }
        ("attach", &["detach", now @ ("--force" | "-f" | "--kill" | "--immediately")]) => {
            Some((now, "not a word of this command", "truepeer attach detach --now".to_owned()))
        }
        ("attach", &["status", follow @ ("-w" | "--watch" | "-f" | "-F" | "--tail")]) => {
            Some((follow, "not a word of this command", "truepeer attach status --follow".to_owned()))
        }
        ("attach", &["--pid", name]) if !is_number(name) && !name.starts_with('-') => Some((
            name,
            "expected the number of a container's process",
            format!("--pid \"$(pidof -s {name})\", or --container NAME; for a server of this host neither"),
        )),
        ("proxy", &["-a" | "--allowed-subnets", prefix]) if prefix.parse::<PrefixSet>().is_ok() => {
            Some((prefix, "expected a file behind --allowed-subnets", format!("--allow {prefix}")))
        }
        (_, &["--tls-cert", files]) if !Path::new(files).exists() => {
            let (cert, other) = files.split_once([',', ':'])?;
            let is_key = other.ends_with("key") || other.contains("priv");
            let option = if is_key { "--tls-key" } else { "--tls-cert" };
            Some((files, "expected one file", format!("--tls-cert {cert} {option} {other}")))
        }
        ("attach", &["--container", container]) => {
            let (name, port) = container.rsplit_once(':')?;
            if !is_number(port) {
                return Some((
                    container,
                    "expected a container's name, not an image",
                    format!("--container {name}"),
                ));
            }
            let port = if rest.contains(&"--port") { String::new() } else { format!(" --port {port}") };
            Some((container, "expected a name, without a port", format!("--container {name}{port}")))
        }
        _ => None,
    };
    let of_three = |three: &[&'a str]| match (command, three) {
        (_, &[option, sign @ "=", value]) if option.starts_with('-') => {
            Some((sign, "expected no blanks beside it", format!("{option}={value}")))
        }
        ("proxy" | "https", &["--tls-cert", cert, key]) if !cert.starts_with('-') && is_file(key) => {
            Some((key, "expected an option before it", format!("--tls-cert {cert} --tls-key {key}")))
        }
        ("connect", &["--to", host, port]) if is_number(port) && !is_address(host) => {
            Some((port, "expected the port behind its host", format!("--to {host}:{port}")))
        }
        _ => None,
    };
    let of_four = |four: &[&'a str]| match four {
        &[option, first, sign @ ("-" | "to" | "..."), last] if is_number(first) && is_number(last) => {
            Some((sign, "expected no blanks beside it", format!("{option} {first}-{last}")))
        }
        _ => None,
    };
    let of_some = rest.windows(2).find_map(of_pair).or_else(|| rest.windows(3).find_map(of_three));
    of_some.or_else(|| rest.windows(4).find_map(of_four))
}

/// A number below zero behind an option that takes a value: clap takes it for an option.
fn negative<'a>(command: &clap::Command, rest: &[&'a str]) -> Option<(&'a str, &'static str, String)> {
    let of_pair = |pair: &[&'a str]| {
        let &[option, value] = pair else { return None };
        let number =
            value.strip_prefix('-').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))?;
        let name = option.strip_prefix("--").filter(|_| named::takes_value(command, option))?;
        let none = (number == "1").then(|| meant(command, name, "unlimited")).flatten();
        let number = none.map_or_else(|| number.to_owned(), |words| words.join(" "));
        // `-4` and `-6` are options.
        let is_option = named::has(command, value);
        (!is_option).then(|| (value, "expected no number below zero", format!("{option} {number}")))
    };
    rest.windows(2).find_map(of_pair)
}

/// `site.key`, not an option or an address.
fn is_file(word: &str) -> bool {
    !word.starts_with('-') && !is_address(word) && word.contains(['.', '/'])
}

/// `1h`.
fn is_time(word: &str) -> bool {
    word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(is_number)
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
