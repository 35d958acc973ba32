//! HAProxy: the sender.

use std::fmt::Display;

use crate::{Bed, Program, Running};

const DEFAULTS: &str = "\
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
";

/// HAProxy's configuration, made of TCP listeners and whatever text a test adds.
#[derive(Debug, Clone)]
pub struct Haproxy {
    config: String,
    listeners: Vec<String>,
}

impl Default for Haproxy {
    fn default() -> Self {
        Self { config: DEFAULTS.into(), listeners: Vec::new() }
    }
}

impl Haproxy {
    /// A configuration of the test's own after our time-outs, and the addresses to wait for.
    pub fn with_config(config: &str, listeners: &[&str]) -> Haproxy {
        let listeners = listeners.iter().map(|&address| address.to_owned()).collect();
        Haproxy { config: format!("{DEFAULTS}{config}\n"), listeners }
    }

    /// Relays what comes to `bind` to `server`, with the server line's options: `send-proxy-v2`.
    pub fn relay(mut self, bind: impl Display, server: impl Display, options: &str) -> Haproxy {
        let number = self.listeners.len();
        self.config += &format!("listen l{number}\n  bind {bind}\n  server s{number} {server} {options}\n");
        self.listeners.push(bind.to_string());
        self
    }

    /// Starts it in the calling thread's network and waits until it listens.
    pub fn start(&self, bed: &Bed) -> anyhow::Result<Running> {
        self.start_with(bed, |program| program)
    }

    /// Likewise, with a say in how the program is run.
    pub fn start_with(&self, bed: &Bed, adjust: impl FnOnce(Program) -> Program) -> anyhow::Result<Running> {
        let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), &self.config)?;
        let haproxy = adjust(Program::new("haproxy").arg("-db").arg("-f").arg(file)).start(bed)?;
        for address in &self.listeners {
            haproxy.wait_listening(address)?;
        }
        Ok(haproxy)
    }
}
