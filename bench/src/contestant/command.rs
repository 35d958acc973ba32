//! Contestants by command line: `NAME=COMMAND`, run by `sh`. `{listen}`, `{backend}`, `{port}` (the
//! backend's) and `{protocol}` (tcp or udp) in it are replaced. The classic rule and route for replies exist.
//! A command without `{protocol}` takes TCP only. A command with `{command}` starts the backend itself with
//! that command line, works inside it (as LD_PRELOAD does) and does not listen. A command with `{cert}` and
//! `{key}` (PEM files; `{pem}` contains both) takes HTTPS only; its origin is `https://{backend}`.

use std::path::PathBuf;
use std::str::FromStr;

use truepeer_testbed::Program;

use crate::credentials::{Credential, Credentials};
use crate::place::Endpoints;
use crate::suites::Transport;

const EXPECTED: &str = "expected NAME=COMMAND with {listen} and {backend}, or {command}, in it";

/// A contestant's name and its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(super) name: String,
    pub(super) text: String,
}

impl Command {
    pub(super) fn carries(&self, transport: Transport) -> bool {
        let https = ["{cert}", "{pem}"].iter().any(|place| self.text.contains(place));
        match transport {
            Transport::Https => https,
            Transport::Tcp => !https,
            Transport::Stacked => false,
            Transport::Udp => !https && self.text.contains("{protocol}"),
        }
    }

    /// Whether it starts the backend itself and works inside it.
    pub(super) fn starts_the_backend(&self) -> bool {
        self.text.contains("{command}")
    }

    /// The backend as started by this command.
    pub(super) fn around(&self, backend: Program, at: Endpoints, transport: Transport) -> Program {
        let line = self.fill_in(at, transport, None).replace("{command}", "\"$@\"");
        backend.launched_by("/bin/sh", &["-c", &format!("exec {line}"), "--"])
    }

    pub(super) fn program(
        &self,
        at: Endpoints,
        transport: Transport,
        credentials: Option<&Credentials>,
    ) -> Program {
        let line = self.fill_in(at, transport, credentials.map(|all| &all.entrance));
        // exec: the measured process must be the program, not its shell.
        Program::new("sh").args(["-c".to_owned(), format!("exec {line}")])
    }

    fn fill_in(&self, at: Endpoints, transport: Transport, credential: Option<&Credential>) -> String {
        let protocol = if transport == Transport::Udp { "udp" } else { "tcp" };
        let file = |of: fn(&Credential) -> &PathBuf| {
            credential.map_or(String::new(), |credential| of(credential).display().to_string())
        };
        self.text
            .replace("{cert}", &file(|credential| &credential.certificate))
            .replace("{key}", &file(|credential| &credential.key))
            .replace("{pem}", &file(|credential| &credential.bundle))
            .replace("{listen}", &at.entrance.to_string())
            .replace("{backend}", &at.backend.to_string())
            .replace("{port}", &at.backend.port().to_string())
            .replace("{protocol}", protocol)
    }
}

impl FromStr for Command {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && has_a_place(command) => {
                Ok(Self { name: name.to_owned(), text: command.to_owned() })
            }
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

/// Between load and backend.
fn has_a_place(command: &str) -> bool {
    command.contains("{listen}") || command.contains("{command}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let command: Command =
            "mine=/opt/mine -l {listen} -4 {backend} -p {protocol}".parse().expect("a command");
        assert_eq!(command.name, "mine");
        assert!(command.carries(Transport::Udp) && !command.carries(Transport::Https));
        assert_eq!(
            command.fill_in(Endpoints::LOOPBACK, Transport::Udp, None),
            "/opt/mine -l 127.0.0.1:1122 -4 127.0.0.1:1123 -p udp"
        );
        assert!(!command.starts_the_backend());
        assert!("it=LD_PRELOAD=it.so {command}".parse::<Command>().expect("a command").starts_the_backend());
        let secure: Command = "s=/opt/s {listen} {cert} {key}".parse().expect("a command");
        assert!(secure.carries(Transport::Https) && !secure.carries(Transport::Tcp));
        assert!("mine".parse::<Command>().is_err());
        assert!("mine=/opt/mine".parse::<Command>().is_err());
    }
}
