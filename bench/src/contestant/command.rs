//! Contestants by command line: `NAME=COMMAND`, run by `sh`, with `{listen}`, `{backend}`, `{port}` (the backend's) and
//! `{protocol}` (tcp or udp) in it. The classic rule and route for replies are there. One that doesn't say
//! `{protocol}` carries TCP only. One with `{command}` in it starts the backend itself, with that command line, and works
//! from within it (as LD_PRELOAD does); it does not listen.

use std::str::FromStr;

use truepeer_testbed::Program;

use crate::load::Transport;
use crate::place::{BACKEND, ENTRANCE, route_replies};

const EXPECTED: &str = "expected NAME=COMMAND with {listen} and {backend}, or {command}, in it";

/// A contestant's name and its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(super) name: String,
    pub(super) text: String,
}

impl Command {
    pub(super) fn carries_udp(&self) -> bool {
        self.text.contains("{protocol}")
    }

    /// Whether it starts the backend itself, and works from within it.
    pub(super) fn starts_the_backend(&self) -> bool {
        self.text.contains("{command}")
    }

    /// The backend as this command starts it.
    pub(super) fn around(&self, backend: Program, transport: Transport) -> Program {
        let line = self.fill_in(transport).replace("{command}", "\"$@\"");
        backend.launched_by("/bin/sh", &["-c", &format!("exec {line}"), "--"])
    }

    pub(super) fn program(&self, transport: Transport) -> anyhow::Result<Program> {
        route_replies()?;
        // exec: the process that is measured is to be the program, not its shell.
        Ok(Program::new("sh").args(["-c".to_owned(), format!("exec {}", self.fill_in(transport))]))
    }

    fn fill_in(&self, transport: Transport) -> String {
        let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
        self.text
            .replace("{listen}", &ENTRANCE.to_string())
            .replace("{backend}", &BACKEND.to_string())
            .replace("{port}", &BACKEND.port().to_string())
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

/// Between load and backend, or before the backend.
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
        assert!(command.carries_udp());
        assert_eq!(command.fill_in(Transport::Udp), "/opt/mine -l 127.0.0.1:1122 -4 127.0.0.1:1123 -p udp");
        assert!(!command.starts_the_backend());
        assert!("it=LD_PRELOAD=it.so {command}".parse::<Command>().expect("a command").starts_the_backend());
        assert!("mine".parse::<Command>().is_err());
        assert!("mine=/opt/mine".parse::<Command>().is_err());
    }
}
