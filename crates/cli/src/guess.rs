//! Words that other programs have, and that truepeer calls otherwise: what to type.

use std::ffi::OsString;

use super::UsageError;
use truepeer_config::spec::defaults;

/// Commands that other programs have.
const COMMANDS: [(&[&str], &str); 7] = [
    (&["detach"], "truepeer attach detach"),
    (&["start", "up"], "systemctl start truepeer, or truepeer serve -c FILE"),
    (
        &["stop", "down", "restart"],
        "systemctl stop truepeer or restart truepeer; without systemd: kill PROCESS, as truepeer status names it",
    ),
    (&["version"], "truepeer --version"),
    (&["log", "logs"], "journalctl -u truepeer"),
    (&["list", "ps", "show"], "truepeer status, truepeer sessions or truepeer attach status"),
    (&["config", "test", "validate"], "truepeer check -c FILE"),
];

/// Words of other programs behind a command. A word without a dash is meant as the first one only.
struct Other {
    commands: &'static [&'static str],
    typed: &'static [&'static str],
    /// `{…}` is the value that was typed, or this one.
    instead: &'static str,
}

const fn other(
    commands: &'static [&'static str],
    typed: &'static [&'static str],
    instead: &'static str,
) -> Other {
    Other { commands, typed, instead }
}

const SERVERS: &[&str] = &["proxy", "https"];
const RECEIVERS: &[&str] = &["attach", "proxy"];

const OTHERS: &[Other] = &[
    other(&["attach"], &["-p", "-l", "--listen"], "truepeer attach --port {443} --allow PREFIX"),
    other(&["attach"], &["--proto", "--protocol", "--udp"], "truepeer attach --port 53/udp --allow PREFIX"),
    other(&["attach"], &["stop", "off", "down", "end", "--detach", "--stop"], "truepeer attach detach"),
    other(&["attach"], &["start", "on", "up"], "truepeer attach --port 443 --allow PREFIX"),
    other(&["attach"], &["list", "ls", "show", "ps"], "truepeer attach status"),
    other(
        RECEIVERS,
        &["--from", "--source", "--src", "--allow-from", "--trusted", "--trust", "--senders", "--proxies"],
        "--allow {PREFIX}",
    ),
    other(&["proxy"], &["--send-proxy-v2"], "--send-proxy v2"),
    other(&["proxy"], &["--send-proxy-v1"], "--send-proxy v1"),
    other(&["https"], &["--proxy-protocol", "--accept-proxy"], "--header require"),
    other(
        &["proxy"],
        &["--proxy-protocol", "--accept-proxy"],
        "--header require, which proxy does by itself; to send a header: --send-proxy v2",
    ),
    other(
        SERVERS,
        &["-d", "-D", "--daemon", "--background"],
        "systemctl start truepeer, or truepeer serve -c FILE",
    ),
    other(SERVERS, &["--group"], "--user UID:GID"),
    other(SERVERS, &["--log-level", "--debug", "--loglevel"], "-v 2"),
    other(SERVERS, &["--json"], "--log-format json"),
    other(SERVERS, &["--config"], "truepeer serve -c {FILE}"),
    other(&["proxy"], &["--udp"], "-p udp"),
    other(&["proxy"], &["--tcp"], "-p tcp"),
    other(
        &["https"],
        &["--domain", "--host", "--server-name", "--vhost"],
        "--origin {www.example}=http://127.0.0.1:8080",
    ),
    other(
        &["https"],
        &["--acme", "--letsencrypt", "--auto-tls", "--auto-https", "--email"],
        "certbot certonly …, and its files with --tls-cert and --tls-key; for a first try --tls-cert self",
    ),
    other(&["https"], &["--redirect", "--http", "--redirect-http"], "--listen-http :80"),
    other(&["serve"], &["--check", "-t", "--test"], "truepeer check -c FILE"),
    other(&["sessions"], &["kill", "end", "drop"], "truepeer sessions --client {192.0.2.7} --kill"),
    other(&["routes"], &["add", "set", "up", "install"], "truepeer routes apply -4 127.0.0.1:443"),
    other(&["routes"], &["del", "delete", "rm", "clear", "down"], "truepeer routes remove"),
    other(&["routes"], &["list", "ls", "status"], "truepeer routes show"),
    other(&["doctor"], &["--port"], "truepeer doctor {443}"),
    other(
        &["connect"],
        &["--udp-dialect"],
        "truepeer proxy -p udp --header forbid --send-proxy v2 -l 127.0.0.1:5300 -4 HOST:PORT, and send there",
    ),
];

/// The names of other programs that truepeer can be called by.
const COMPAT: [&str; 3] = ["go-mmproxy", "mmproxy-rs", "cloudflare"];

impl Other {
    /// The first word of another program, and what to type instead.
    fn find<'a>(&self, command: &str, rest: &[&'a str]) -> Option<(&'a str, String)> {
        if !self.commands.contains(&command) {
            return None;
        }
        for (place, &word) in rest.iter().enumerate().take_while(|(_, word)| **word != "--") {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if self.typed.contains(&name) && (name.starts_with('-') || place == 0) {
                let next = rest.get(place + 1).filter(|next| !next.starts_with('-')).copied();
                return Some((word, self.with(value.or(next))));
            }
        }
        None
    }

    fn with(&self, value: Option<&str>) -> String {
        let Some((before, rest)) = self.instead.split_once('{') else { return self.instead.to_owned() };
        let (usual, after) = rest.split_once('}').unwrap_or((rest, ""));
        // `-l :443` names the port.
        let value = value.map(|value| value.strip_prefix(':').unwrap_or(value));
        format!("{before}{}{after}", value.unwrap_or(usual))
    }
}

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
    if COMPAT.contains(&first) {
        return refused(first, "no command of truepeer", &format!("truepeer --compat {first} OPTIONS"));
    }
    if let ("status", [port, ..]) = (first, rest)
        && port.bytes().all(|byte| byte.is_ascii_digit())
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
    if let ("attach", ["remove", port, ..]) = (first, rest)
        && port.starts_with(|c: char| c.is_ascii_digit())
    {
        return refused(port, "expected an option", &format!("truepeer attach remove --port {port}"));
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
        ("proxy" | "https", [listen, more @ ..]) if is_address(listen) => {
            let backend = more.first().filter(|word| is_address(word)).unwrap_or(&"127.0.0.1:443");
            refused(
                listen,
                "expected an option before an address",
                &format!("truepeer {first} -l {listen} {}", to(first, backend)),
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
