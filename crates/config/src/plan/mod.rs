//! The meaning of the command line: defaults filled in, contradictions refused, a list of listeners and the
//! settings that they share.
//!
//! ```text
//! Spec ──of──▶ Config (pure) ──check──▶ Checked: files, names and certificates, read once ──diff──▶ changes, for the engines
//! ```

mod acme;
mod attach;
mod checked;
mod confine;
mod connect;
mod datagrams;
pub mod diff;
mod http;
mod https;
mod key;
mod listener;
mod origins;
pub mod passed;
mod problem;
mod process;
mod proxy;
mod read;
mod resolve;
mod routing;
mod run;
mod senders;
mod sites;
mod speaks_first;
mod tls;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::{LogFormat, LogSpec, Protocol, RoutesMode, RoutesSpec, Verbosity, defaults, text};

pub use acme::{AcmeConfig, AcmeNames};
pub use attach::{attach_rules, note_of_sender};
pub use checked::{Beside, Checked, CheckedListener, join};
pub use confine::ConfineConfig;
pub use connect::connect_settings;
pub use diff::{Change, Part, diff};
pub use key::ListenerKey;
pub use listener::ListenerConfig;
pub use problem::{Problem, Problems};
pub use process::{
    AdminConfig, AttachKey, CheckedAttach, CheckedEntry, CheckedProcess, EntryConfig, ProcessConfig,
};
pub use proxy::{Defaults, UsualBackends};
pub use routing::{names_backends, names_routing, setup_of, setup_options};
pub use run::{note_of_run_sender, run_settings};
pub use speaks_first::{ASK_AWS, speaks_first};

/// The whole configuration of `truepeer proxy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listeners: Vec<ListenerConfig>,
    /// Threads; `None`: one for each core.
    pub workers: Option<NonZeroUsize>,
    /// UDP flows of all listeners together; `None`: as many as open files allow.
    pub max_flows: Option<NonZeroUsize>,
    /// How long sessions and flows may continue after the signal to stop.
    #[serde(with = "text::duration")]
    pub drain: Duration,
    /// Whether a change of a file is a reason to reload.
    pub reload_on_change: bool,
    pub confine: ConfineConfig,
    pub routes: RoutesConfig,
    pub admin: AdminConfig,
    pub log: LogConfig,
    pub acme: AcmeConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![ListenerConfig::default()],
            workers: None,
            max_flows: None,
            drain: defaults::DRAIN_TIMEOUT,
            reload_on_change: false,
            confine: ConfineConfig::default(),
            routes: RoutesConfig::default(),
            admin: AdminConfig::default(),
            log: LogConfig::default(),
            acme: AcmeConfig::default(),
        }
    }
}

/// Whether truepeer sets up the rules for spoofed replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutesConfig {
    pub mode: RoutesMode,
    /// Number of the routing table for spoofed replies.
    pub table: u32,
}

impl Default for RoutesConfig {
    fn default() -> Self {
        Self { mode: RoutesMode::default(), table: defaults::TABLE }
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    pub verbosity: Verbosity,
    /// `None`: text.
    pub format: Option<LogFormat>,
}

impl RoutesConfig {
    fn of(spec: &RoutesSpec, usual: &Self) -> Self {
        Self { mode: spec.routes.unwrap_or(usual.mode), table: spec.table.unwrap_or(usual.table) }
    }
}

impl LogConfig {
    pub fn of(spec: &LogSpec) -> Result<Self, Problem> {
        let verbosity = match (spec.quiet, spec.verbose, spec.v) {
            (true, false, None) => Verbosity::Quiet,
            (true, ..) => return Err(Problem::at("quiet", "expected no -v or --verbose with it")),
            (false, true, level) => level.unwrap_or_default().max(Verbosity::Sessions),
            (false, false, level) => level.unwrap_or_default(),
        };
        Ok(Self { verbosity, format: spec.log_format })
    }
}

impl Config {
    /// Whether a listener takes datagrams.
    pub fn has_udp(&self) -> bool {
        self.listeners.iter().any(|listener| listener.protocol == Protocol::Udp)
    }

    /// The addresses of all listeners, as configured: a port may still be 0.
    pub(crate) fn binds(&self) -> Vec<(Protocol, SocketAddr)> {
        self.listeners.iter().map(|listener| (listener.protocol, listener.bind)).collect()
    }
}

#[cfg(test)]
mod tests;
