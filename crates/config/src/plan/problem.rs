//! The errors in a command line. Each text starts with the option; causes are in the chain.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use truepeer_policy::{BackendAddr, PrefixFileError};
use truepeer_stream::tls::{ConfigError, Subject};

/// The option that was typed, without its dashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionName(pub &'static str);

impl fmt::Display for OptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "ipv4" => f.write_str("-4"),
            "ipv6" => f.write_str("-6"),
            name => write!(f, "--{name}"),
        }
    }
}

/// A plan that can't be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{place} {}: can't read the file", path.display())]
    File { place: OptionName, path: PathBuf, source: io::Error },
    #[error("{place} {}", path.display())]
    PrefixFile { place: OptionName, path: PathBuf, source: PrefixFileError },
    #[error("{place} {name}: can't resolve the host name")]
    Resolve { place: OptionName, name: String, source: io::Error },
    #[error(
        "{place} {name}: {device} is a network device; expected an address of it, \
         as `ip address show {device}` prints them, or :PORT for every address"
    )]
    Device { place: OptionName, name: String, device: String },
    #[error("{place} {name}: the host name has no address")]
    NoAddress { place: OptionName, name: String },
    #[error(
        "{place} {backend} is where this program itself listens ({}): every session would loop; give the backend's address (a server \
         of this host keeps its port by `truepeer attach`)",
        OptionName("listen").to_string() + " " + &listener.to_string()
    )]
    Loop { place: OptionName, backend: BackendAddr, listener: SocketAddr },
    #[error(
        "--listen {listener} is given twice; leave one out{}",
        if *.is_proxy { "; for several sockets on one address: --listeners N" } else { "" }
    )]
    ListenTwice { listener: SocketAddr, is_proxy: bool },
    #[error("--listen {0}: --listen {1} has this port of all addresses; leave one of the two out")]
    ListenWithin(SocketAddr, SocketAddr),
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
    OptionalForMost(truepeer_policy::OptionalForMost),
    #[error("{place}: TLS is for TCP only; expected --protocol tcp")]
    TlsOverUdp { place: OptionName },
    /// Another option is missing.
    #[error("{place}: expected {other} {value} with it")]
    Needs { place: OptionName, other: OptionName, value: &'static str },
    /// Another option is there.
    #[error("{place}: expected no {other} with it")]
    Excludes { place: OptionName, other: OptionName },
    /// Certificates and keys don't pair up.
    #[error("{place}: expected one for each {other} ({certificates}), got {keys}")]
    Keys { place: OptionName, other: OptionName, certificates: usize, keys: usize },
    /// Two rules for all.
    #[error(
        "--header: given twice with different rules; expected one rule for all senders, and PREFIX=RULE for others"
    )]
    TwoRules,
    /// The backend can't be reached by these clients.
    #[error("{place} {backend}: {is}; type {expected}")]
    Family { place: OptionName, backend: String, is: &'static str, expected: String },
    /// Any other error that the value alone doesn't show.
    #[error("{place}{value}: {expected}")]
    Value { place: OptionName, value: String, expected: String },
    #[error("{place} {error}{}", expected(.error))]
    Tls { place: OptionName, error: ConfigError },
}

/// All that is wrong with one plan.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The value, or `None`: its problem is noted.
    pub(super) fn note<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.add(problem)).ok()
    }

    pub(super) fn add(&mut self, problem: Problem) {
        // Listeners of one entry share their options, and so what is wrong with them.
        if self.0.iter().all(|known| known.to_string() != problem.to_string()) {
            self.0.push(problem);
        }
    }

    /// The value, if nothing was noted.
    pub(super) fn none<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A line each, with causes.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index > 0 { "\n" } else { "" })?;
            let mut cause = problem.source();
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl Error for Problems {}

/// The option that mends it, unless the error names it.
fn expected(error: &ConfigError) -> String {
    match error.subject {
        Subject::SystemAuthorities => {
            format!(", or name one with {} FILE", OptionName("origin-ca"))
        }
        Subject::KeyBesideCertificate => {
            format!("; name the key's file with {} FILE", OptionName("tls-key"))
        }
        Subject::OriginKeyBesideCertificate => {
            format!("; name the key's file with {} FILE", OptionName("origin-key"))
        }
        _ if error.to_string().contains("Is a directory") => "; expected a file in it".to_owned(),
        _ => String::new(),
    }
}

impl Problem {
    /// `with_http`: `truepeer https` speaks TLS with its origin because of the origin's URL.
    pub(super) fn tls(error: ConfigError, with_http: bool) -> Self {
        let place = OptionName(match error.subject {
            Subject::Certificate | Subject::KeyBesideCertificate => "tls-cert",
            Subject::Key => "tls-key",
            Subject::ClientAuthority => "client-ca",
            Subject::OriginAuthority => "origin-ca",
            Subject::SystemAuthorities if with_http => "origin",
            Subject::SystemAuthorities => "origin-tls",
            Subject::OriginCertificate | Subject::OriginKeyBesideCertificate => "origin-cert",
            Subject::OriginKey => "origin-key",
            Subject::OriginName => "origin-name",
            Subject::Suites => "tls-suite",
        });
        Self::Tls { place, error }
    }

    /// The option that it is about, by its long name, and the value.
    pub fn about(&self) -> (String, Option<String>) {
        let (place, value) = match self {
            Self::File { place, path, .. } | Self::PrefixFile { place, path, .. } => {
                (*place, Some(path.display().to_string()))
            }
            Self::Resolve { place, name, .. }
            | Self::Device { place, name, .. }
            | Self::NoAddress { place, name } => (*place, Some(name.clone())),
            Self::Loop { place, backend, .. } => (*place, Some(backend.to_string())),
            Self::ListenTwice { listener, .. } | Self::ListenWithin(listener, _) => {
                (OptionName("listen"), Some(listener.to_string()))
            }
            Self::NoListener => (OptionName("listen"), None),
            Self::Version1OverUdp | Self::SppOverTcp => (OptionName("send-proxy"), None),
            Self::OptionalForMost(_) | Self::TwoRules => (OptionName("header"), None),
            Self::Family { place, backend, .. } => (*place, Some(backend.clone())),
            Self::TlsOverUdp { place }
            | Self::Needs { place, .. }
            | Self::Excludes { place, .. }
            | Self::Keys { place, .. }
            | Self::Value { place, .. } => (*place, None),
            Self::Tls { place, error } => {
                (*place, error.to_string().split_once(": ").map(|(path, _)| path.to_owned()))
            }
        };
        let OptionName(option) = place;
        // Some name the value, too: `header forbid`.
        (option.split(' ').next().unwrap_or_default().to_owned(), value)
    }

    /// `place`: `expected`.
    pub fn at(option: &'static str, expected: impl Into<String>) -> Self {
        Self::Value { place: OptionName(option), value: String::new(), expected: expected.into() }
    }

    /// The given option that needs another.
    pub(super) fn needs(option: &'static str, other: &'static str, value: &'static str) -> Self {
        Self::Needs { place: OptionName(option), other: OptionName(other), value }
    }
}
