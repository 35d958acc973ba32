//! Starts truepeer itself. The test provides the path of the binary: `env!("CARGO_BIN_EXE_truepeer")`.

use std::fmt::Display;
use std::path::Path;

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;

/// A command line of truepeer.
#[derive(Debug, Clone)]
pub struct Truepeer {
    program: Program,
    listeners: Vec<String>,
    is_proxy: bool,
}

impl Truepeer {
    /// `truepeer proxy` without options.
    pub fn proxy(exe: impl AsRef<Path>) -> Truepeer {
        Truepeer { program: Program::new(exe.as_ref()).arg("proxy"), listeners: Vec::new(), is_proxy: true }
    }

    /// Another command of truepeer.
    pub fn of(program: Program) -> Truepeer {
        Truepeer { program, listeners: Vec::new(), is_proxy: false }
    }

    /// Adds a listening address (`--listen`).
    pub fn listen(mut self, address: impl Display) -> Truepeer {
        self.listeners.push(address.to_string());
        self.option("--listen", address)
    }

    /// Adds a listening address without TLS (`--listen-http`).
    pub fn listen_http(mut self, address: impl Display) -> Truepeer {
        self.listeners.push(address.to_string());
        self.option("--listen-http", address)
    }

    /// The backend for IPv4 clients.
    pub fn ipv4(self, address: impl Display) -> Truepeer {
        self.option("--ipv4", address)
    }

    /// The backend for IPv6 clients.
    pub fn ipv6(self, address: impl Display) -> Truepeer {
        self.option("--ipv6", address)
    }

    /// Adds senders that are admitted: `any`, `loopback`, `private`, or a prefix.
    pub fn allow(self, who: impl Display) -> Truepeer {
        self.option("--allow", who)
    }

    /// Adds an option with its value.
    pub fn option(self, name: &str, value: impl Display) -> Truepeer {
        self.args(&[name, &value.to_string()])
    }

    /// Adds arguments.
    pub fn args(self, args: &[&str]) -> Truepeer {
        self.with(|program| program.args(args))
    }

    /// Changes how the program is run: `|program| program.in_netns(&host.netns)`.
    pub fn with(mut self, adjust: impl FnOnce(Program) -> Program) -> Truepeer {
        self.program = adjust(self.program);
        self
    }

    /// The program and its arguments.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Starts it and waits until all its listeners are open.
    pub fn start(&self, bed: &Bed) -> anyhow::Result<Running> {
        let truepeer = self.start_unready(bed)?;
        for address in &self.listeners {
            truepeer.wait_listening(address)?;
        }
        Ok(truepeer)
    }

    /// Starts it without waiting: for tests in which it must fail.
    pub fn start_unready(&self, bed: &Bed) -> anyhow::Result<Running> {
        let more = if self.is_proxy { bed.proxy_options() } else { &[] };
        self.program.clone().args(more).start(bed)
    }
}
