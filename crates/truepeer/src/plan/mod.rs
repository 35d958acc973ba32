//! What the program shall do: a list of listeners and what they share. Flags make a list with one entry for each
//! `--listen`; a file will make longer ones.
//!
//! Everything here is parsed already. What may change under a running program (address lists in files, host names)
//! is kept as its path or name and read by [`ListenerConfig::policy`], at the start and again on reload.

mod http;
mod listener;
mod resolve;
mod text;
mod tls;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_policy::{BackendAddr, PrefixFileError};

pub(crate) use http::{ClientAddressConfig, HttpConfig};
pub(crate) use listener::{
    BackendsConfig, ClaimsConfig, DynamicConfig, HeaderLimits, ListenerConfig, Protocol, SendProxy,
    SenderRule, SendersConfig, Timeouts, UdpConfig, read_prefixes,
};
pub(crate) use resolve::{Family, HostPort, ListenAddr};
pub(crate) use text::parse_duration;
pub(crate) use tls::{CertConfig, ClientCert, OriginTlsConfig, TlsConfig};

/// The whole configuration of `truepeer proxy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listeners: Vec<ListenerConfig>,
    /// Threads; `None`: one for each core.
    pub(crate) workers: Option<NonZeroUsize>,
    /// UDP flows, all listeners together; `None`: as many as open files allow.
    pub(crate) max_flows: Option<NonZeroUsize>,
    /// How long sessions of listeners with TLS may go on after the signal to stop.
    #[serde(with = "text::duration")]
    pub(crate) drain: Duration,
    pub(crate) routes: RoutesConfig,
    pub(crate) log: LogConfig,
}

/// Less than systemd waits before it kills (90 s), and longer than almost every request takes.
pub(crate) const DRAIN: Duration = Duration::from_secs(30);

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![ListenerConfig::default()],
            workers: None,
            max_flows: None,
            drain: DRAIN,
            routes: RoutesConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// Who sets up what spoofed replies need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RoutesConfig {
    pub(crate) mode: RoutesMode,
    /// Number of the routing table for spoofed replies.
    pub(crate) table: u32,
}

impl Default for RoutesConfig {
    fn default() -> Self {
        Self { mode: RoutesMode::default(), table: 123 }
    }
}

/// Whether rules and routes are ours to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RoutesMode {
    /// Set them; where that is not permitted, say so and go on.
    #[default]
    AutoIfAllowed,
    /// Set them; end if that fails.
    Auto,
    /// Somebody else has set them.
    Manual,
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogConfig {
    pub(crate) verbosity: Verbosity,
    /// `None`: text on a terminal, JSON otherwise.
    pub(crate) format: Option<LogFormat>,
}

/// How much is logged; each level contains the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verbosity {
    /// Warnings and errors: among them refusals, at most once a minute for each reason and sender.
    Quiet,
    /// Start and stop (`-v 0`).
    #[default]
    Lifecycle,
    /// One line for each session, at its end (`-v 1`).
    Sessions,
    /// Every change of a session's state (`-v 2`).
    States,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// A configuration that can't be carried out. The text begins with the option at fault; causes are in the chain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{option} {}: can't read the file", path.display())]
    File { option: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{option} {}", path.display())]
    PrefixFile { option: &'static str, path: PathBuf, source: PrefixFileError },
    #[error("{option} {name}: can't resolve the host name")]
    Resolve { option: &'static str, name: String, source: std::io::Error },
    #[error("{option} {name}: the host name has no address")]
    NoAddress { option: &'static str, name: String },
    #[error(
        "{option} {backend} is where this program itself listens (-l {listener}): every session would loop; give the backend's address"
    )]
    Loop { option: &'static str, backend: BackendAddr, listener: SocketAddr },
    #[error("--listen {0} is given twice; for several sockets on one address use --listeners")]
    ListenTwice(SocketAddr),
    #[error("no listener: expected at least one --listen ADDR")]
    NoListener,
    #[error(
        "--send-proxy v1: version 1 of the PROXY protocol can't say that a client came by UDP; expected v2 or spp"
    )]
    Version1OverUdp,
    #[error("--send-proxy spp: Simple Proxy Protocol is for UDP only; expected v1 or v2 with --protocol tcp")]
    SppOverTcp,
    #[error(
        "--header optional: {0}; list the senders with --allow PREFIX, or name those that may leave the header out with --header PREFIX=optional"
    )]
    OptionalForMost(#[from] truepeer_policy::OptionalForMost),
    #[error("--tls-cert, --origin-tls: TLS is for TCP only; expected --protocol tcp")]
    TlsOverUdp,
    #[error(transparent)]
    Tls(#[from] truepeer_https::tls::ConfigError),
}

impl Config {
    /// Reads every file and resolves every name once, so that what is wrong is said before anything is bound.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.listeners.is_empty() {
            return Err(ConfigError::NoListener);
        }
        for (index, listener) in self.listeners.iter().enumerate() {
            match (listener.protocol, listener.send_proxy) {
                (Protocol::Udp, Some(SendProxy::V1)) => return Err(ConfigError::Version1OverUdp),
                (Protocol::Tcp, Some(SendProxy::Spp)) => return Err(ConfigError::SppOverTcp),
                (Protocol::Udp, _) if listener.speaks_tls() => return Err(ConfigError::TlsOverUdp),
                _ => {}
            }
            if self.listeners[..index]
                .iter()
                .any(|other| other.bind == listener.bind && other.bind.port() != 0)
            {
                return Err(ConfigError::ListenTwice(listener.bind));
            }
            listener.server_tls()?;
            listener.origin()?;
            let backends = listener.policy(&self.binds())?.delivery.backends;
            refuse_loop("-4", backends.ipv4, listener.bind)?;
            refuse_loop("-6", backends.ipv6, listener.bind)?;
        }
        Ok(())
    }

    /// The addresses of all listeners, as configured: a port may still be 0.
    pub(crate) fn binds(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| listener.bind).collect()
    }

    /// What an operator should know about this configuration, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.listeners.iter().flat_map(ListenerConfig::warnings).collect();
        warnings.sort();
        warnings.dedup();
        warnings
    }
}

/// A wildcard listener is hit on each of this machine's own addresses; elsewhere another host may have the port.
fn refuse_loop(option: &'static str, backend: BackendAddr, listener: SocketAddr) -> Result<(), ConfigError> {
    let bound = BackendAddr::new(listener);
    let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || is_own(ip);
    let takes_family = bound.ip().is_ipv6() || backend.ip().is_ipv4();
    let by_wildcard = bound.ip().is_unspecified() && takes_family && is_here(backend.ip());
    if bound.get().port() != 0
        && bound.get().port() == backend.get().port()
        && (bound == backend || by_wildcard)
    {
        return Err(ConfigError::Loop { option, backend, listener });
    }
    Ok(())
}

/// Whether an interface of this machine has `ip`: only then would a packet to it come from it. Nothing is sent.
fn is_own(ip: IpAddr) -> bool {
    let unspecified =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let source_towards = |port| {
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect((ip, port))?;
        socket.local_addr()
    };
    source_towards(9).is_ok_and(|source| source.ip() == ip)
}

#[cfg(test)]
mod tests;
