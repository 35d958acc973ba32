//! Words that other programs have, and that truepeer calls otherwise: what to type.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use super::UsageError;
use behind::quoted;
use shape::{forwarded, misshapen, negative, of_listener};
use truepeer_config::spec::defaults;
use words::find;

mod address;
mod amount;
mod behind;
mod named;
mod shape;
mod tip;
mod unknown;
mod value;
mod variables;
mod whole;
mod words;

pub(crate) use behind::behind_the_program;
pub(crate) use named::{misspelt, nearest, sharing_a_word};
pub(crate) use unknown::explain;
pub(crate) use value::{any_value, meant, takes};
pub(crate) use variables::{PREFIX, unread};
pub(crate) use whole::in_a_whole_line;
pub(crate) use words::{kebab, key};

/// The usual admin socket.
const SOCKET: &str = "/run/truepeer/admin.sock";

/// Commands with a file, which `-c` names.
const WITH_FILE: [&str; 7] = ["serve", "check", "reload", "upgrade", "status", "sessions", "top"];

/// Refuses words of other programs, and says what to type instead. `is_valid`: all words are truepeer's own.
pub(super) fn refuse(argv: &[OsString], is_valid: bool) -> Result<(), UsageError> {
    let words: Vec<&str> = argv.iter().skip(1).map_while(|word| word.to_str()).collect();
    let refused = |typed: &str, expected: &str, instead: &str| {
        Err(UsageError::Options(words::saying(typed, expected, instead)))
    };
    let Some((&first, rest)) = words.split_first() else { return Ok(()) };
    match (first, rest) {
        ("exec", _) if rest.contains(&"--") => {
            let way = if rest.contains(&"--from") { "connect" } else { "run" };
            return refused(first, "no command of truepeer", &format!("truepeer {way} {}", line(rest)));
        }
        ("-s" | "--signal", ["stop" | "quit" | "term" | "exit"]) => {
            return refused(first, "not a word of truepeer", "systemctl stop truepeer");
        }
        ("vpp", ["up", device, more @ ..]) if !rest.iter().any(|word| word.starts_with('-')) => {
            let devices = more.iter().fold((*device).to_owned(), |all, device| format!("{all},{device}"));
            let instead = format!("truepeer vpp up --ethernet {devices}");
            return refused(device, "expected an option before it", &instead);
        }
        ("enable" | "disable" | "start" | "stop" | "restart" | "status", _)
            if let Some(unit) =
                rest.iter().find(|word| word.starts_with("truepeer-") || word.ends_with(".service")) =>
        {
            let instead = format!("systemctl {first} {}", line(rest));
            return refused(unit, "a unit of systemd", &instead);
        }
        ("detach" | "unattach" | "remove", [port, ..]) if begins_as_number(port) => {
            let instead = format!("truepeer attach remove --port {port}");
            return refused(first, "no command of truepeer", &instead);
        }
        _ => {}
    }
    let all = super::command();
    let is_command = |word: &&&str| all.find_subcommand(**word).is_some();
    // `get sessions`, `443 doctor`
    if let [command, more @ ..] = rest
        && !first.starts_with('-')
        && !["help", "docker", "podman"].contains(&first)
        && !is_command(&&first)
        && is_command(&command)
    {
        let is_own = first.contains(|c: char| c.is_ascii_digit() || c == '/');
        let own = if is_own { format!("{} ", quoted(first)) } else { String::new() };
        let instead = format!("truepeer {command} {own}{}", line(more));
        return refused(first, "no command of truepeer", instead.trim_end());
    }
    if let Some((_, instead)) = find("COMMAND", &words) {
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
    let lower = first.to_lowercase();
    if !is_command(&&first) && is_command(&&lower.as_str()) {
        let instead = format!("truepeer {lower} {}", line(rest));
        return refused(first, "no command of truepeer", instead.trim_end());
    }
    // The words of `run` and `connect` may be programs.
    if let (Some(way), Some(second)) = (all.find_subcommand(first), rest.first())
        && !["run", "connect", "completion"].contains(&first)
        && way.find_subcommand(second).is_none()
        && is_command(&second)
        && find(first, &[second]).is_none()
    {
        return refused(second, "expected one command", &format!("truepeer {}", line(rest)));
    }
    if first.starts_with('-') && !["-h", "-V", "--help", "--version"].contains(&first) {
        if let Some((typed, instead)) = find("START", &words).filter(|(typed, _)| *typed == first) {
            return refused(typed, "not a word of truepeer", &instead);
        }
        if let Some(at) = rest.iter().position(|word| is_command(&word)) {
            let (before, behind) = (line(&words[..=at]), line(&rest[at + 1..]));
            let instead = format!("truepeer {} {before} {behind}", rest[at]);
            return refused(first, "expected after the command", instead.trim_end());
        }
        if let Some(command) = named::with_most(&all, &words) {
            let instead = format!("truepeer {command} {}", line(&words));
            return refused(first, "expected a command before it", &instead);
        }
    }
    if is_address(first) {
        let backend = rest.iter().find(|word| is_address(word)).unwrap_or(&"127.0.0.1:443");
        let instead = format!("truepeer proxy -l {first} {}", to("proxy", backend));
        return refused(first, "expected a command before an address", &instead);
    }
    match (first, rest) {
        (file, _) if file.contains('/') || file.ends_with(".toml") => {
            return refused(first, "expected a command before a file", &format!("truepeer serve -c {first}"));
        }
        ("status", [port, ..]) if is_number(port) => {
            return refused(port, "expected no port here", &format!("truepeer doctor {port}"));
        }
        ("status" | "reload", [unit])
            if unit.ends_with(".service") || !(unit.starts_with('-') || unit.contains(['.', '/'])) =>
        {
            let instead = format!("truepeer {first}; of a unit: systemctl {first} {unit}");
            return refused(unit, "expected nothing behind the command", &instead);
        }
        ("sessions", [.., id]) if id.starts_with("tcp-") || id.starts_with("udp-") => {
            let instead = format!("curl -X DELETE --unix-socket {SOCKET} http://truepeer/sessions/{id}");
            return refused(id, "a session by itself is ended over the admin socket", &instead);
        }
        ("sessions", ["--kill", client, ..] | [client, ..]) if begins_an_address(client) => {
            let kill = if rest.contains(&"--kill") { " --kill" } else { "" };
            let instead = format!("truepeer sessions --client {client}{kill}");
            return refused(client, "expected --client before it", &instead);
        }
        ("attach", [action @ ("remove" | "add")]) => {
            return refused(action, "expected ports", &format!("truepeer attach {action} --port 443"));
        }
        ("attach", [action @ ("remove" | "add"), port, ..]) if begins_as_number(port) => {
            let instead = format!("truepeer attach {action} --port {port}");
            return refused(port, "expected an option", &instead);
        }
        ("attach", ["status", "-p" | "--port", port, ..] | ["status", port]) if begins_as_number(port) => {
            let instead = format!("truepeer attach status, or truepeer doctor {port}");
            return refused(port, "status shows all ports", &instead);
        }
        ("attach", ["detach", "--port", port, ..] | ["detach", port]) if begins_as_number(port) => {
            let instead = format!("truepeer attach remove --port {port}");
            return refused(port, "detach takes all ports", &instead);
        }
        ("run" | "connect", [client, program @ ..]) if let Ok(ip) = client.parse::<IpAddr>() => {
            let option = match first {
                "run" => format!("--allow {ip}"),
                _ => format!("--from {}", SocketAddr::new(ip, 5000)),
            };
            let program = line(program.strip_prefix(&["--"]).unwrap_or(program));
            let instead = format!("truepeer {first} {option} -- {program}");
            return refused(client, "expected an option before it", &instead);
        }
        _ => {}
    }
    // `--container udp` is right.
    if let ("attach", false, Some((typed, instead))) = (first, is_valid, of_listener(rest)) {
        return refused(typed, "not a word of this command", &instead);
    }
    if let ("attach", ["--port", port, sender, ..]) = (first, rest)
        && begins_an_address(sender)
    {
        let instead = format!("truepeer attach --port {port} --allow {sender}");
        return refused(sender, "expected an option", &instead);
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
        ("probe", [app, target]) if is_address(target) && !app.starts_with('-') => {
            refused(app, "expected --as before it", &format!("truepeer probe {target} --as {app}"))
        }
        ("connect", [to, ..]) if is_address(to) => {
            refused(to, "expected a program", &format!("truepeer connect --to {to} -- COMMAND"))
        }
        (
            "doctor",
            ["-p" | "--protocol", protocol, port]
            | [port, "-p" | "--protocol", protocol]
            | [port, protocol @ ("tcp" | "udp"), ..],
        ) if !port.starts_with('-') => {
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
        ("proxy" | "https", [pair, ..]) if let Some(instead) = forwarded(first, pair) => {
            refused(pair, "expected options before its parts", &format!("truepeer {first} {instead}"))
        }
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

/// Words as a shell takes them.
fn line(words: &[&str]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// `1h`.
fn is_time(word: &str) -> bool {
    word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(is_number)
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn begins_as_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// `10.0.0.7`, `2001:db8::/32`.
fn begins_an_address(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_hexdigit()) && word.contains(['.', ':'])
}

/// `:8443`, `127.0.0.1:443`, `[::1]:443`.
pub(crate) fn is_address(word: &str) -> bool {
    let port = word.rsplit_once(':').map(|(_, port)| port);
    !word.starts_with('-') && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// The option for a backend.
pub(crate) fn to(command: &str, backend: &str) -> String {
    match command {
        "https" if backend.contains("//") => format!("--origin {backend}"),
        "https" => format!("--origin http://{backend}"),
        _ if backend.starts_with('[') => format!("-6 {backend}"),
        _ => format!("-4 {backend}"),
    }
}
