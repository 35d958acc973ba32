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
