//! HAProxy: the sender.

use std::fmt::Display;

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;
use crate::skip::skip;
use crate::whereabouts;

const DEFAULTS: &str = "\
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
";

/// HAProxy's configuration: TCP listeners, and text from the test.
#[derive(Debug, Clone)]
pub struct Haproxy {
    config: String,
    listeners: Vec<String>,
    is_newer: bool,
}

impl Default for Haproxy {
    fn default() -> Self {
        Self { config: DEFAULTS.into(), listeners: Vec::new(), is_newer: false }
    }
}

impl Haproxy {
    /// The test's own configuration after the common time-outs, and the addresses to wait for.
    pub fn with_config(config: &str, listeners: &[&str]) -> Haproxy {
        let listeners = listeners.iter().map(|&address| address.to_owned()).collect();
        Haproxy { config: format!("{DEFAULTS}{config}\n"), listeners, is_newer: false }
    }

    /// Relays from `bind` to `server`, with options of the server line: `send-proxy-v2`.
    pub fn relay(mut self, bind: impl Display, server: impl Display, options: &str) -> Haproxy {
        let number = self.listeners.len();
        self.config += &format!("listen l{number}\n  bind {bind}\n  server s{number} {server} {options}\n");
        self.listeners.push(bind.to_string());
        self
    }

    /// The one of a newer Debian (`scripts/newer.sh`), which sends TLVs of any type.
    pub fn newer(self) -> Haproxy {
        Haproxy { is_newer: true, ..self }
    }

    /// Starts it in the calling thread's network namespace and waits until it listens.
    pub fn start(&self, bed: &Bed) -> anyhow::Result<Running> {
        self.start_with(bed, |program| program)
    }

    /// The same; the caller can change how the program is run.
    pub fn start_with(&self, bed: &Bed, adjust: impl FnOnce(Program) -> Program) -> anyhow::Result<Running> {
        let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), &self.config)?;
        let program = if self.is_newer { newer()? } else { Program::new("haproxy") };
        let haproxy = adjust(program.arg("-db").arg("-f").arg(file)).start(bed)?;
        for address in &self.listeners {
            haproxy.wait_listening(address)?;
        }
        Ok(haproxy)
    }
}

fn newer() -> anyhow::Result<Program> {
    let Some(found) = whereabouts::newer("haproxy") else {
        return skip("HAProxy of a newer Debian is not unpacked (make servers)");
    };
    let libraries = found.libraries.to_string_lossy();
    Ok(Program::new(found.file).launched_by(found.loader, &["--library-path", &libraries]))
}
