//! Contestants by command line: `NAME=COMMAND`, run by `sh`, with `{listen}`, `{backend}`, `{port}` (the backend's) and
//! `{protocol}` (tcp or udp) in it. The classic rule and route for replies are there. One that doesn't say
//! `{protocol}` carries TCP only.

use std::str::FromStr;

use truepeer_testbed::Program;

use crate::load::Transport;
use crate::place::{BACKEND, ENTRANCE, route_replies};

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
            Some((name, command)) if !name.is_empty() && command.contains("{listen}") => {
                Ok(Self { name: name.to_owned(), text: command.to_owned() })
            }
            _ => Err("expected NAME=COMMAND with {listen} and {backend} in it".to_owned()),
        }
    }
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
        assert!("mine".parse::<Command>().is_err());
        assert!("mine=/opt/mine".parse::<Command>().is_err());
    }
}
