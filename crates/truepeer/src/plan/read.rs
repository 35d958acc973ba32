//! The external data of a listener's plan: lists in files, names, certificates. Read once, and compared on
//! reload.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use truepeer_policy::{Backends, PrefixSet};

use super::listener::ListenerConfig;
use super::problem::Problems;
use super::tls::OriginTlsConfig;

/// The data at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    /// The admitted senders, including those in files.
    pub(crate) allow: PrefixSet,
    /// The denied clients, including those in files.
    pub(crate) deny: PrefixSet,
    /// The addresses of host names.
    pub(crate) backends: Backends,
    /// The contents of certificates, keys and authorities; only compared.
    pub(super) certificates: u64,
}

impl Read {
    /// Reads files and resolves names now. `None`: something is wrong, which is noted.
    pub(super) fn of(listener: &ListenerConfig, problems: &mut Problems) -> Option<Self> {
        let allow = problems.note(listener.senders.allowed());
        let deny = problems.note(listener.claims.denied());
        let backends = problems.note(listener.resolve_backends());
        Some(Self { allow: allow?, deny: deny?, backends: backends?, certificates: certificates(listener) })
    }
}

/// A file that can't be read counts as empty here: building the TLS configuration reports it.
fn certificates(listener: &ListenerConfig) -> u64 {
    let mut hasher = DefaultHasher::new();
    let tls = listener.tls.iter().flat_map(|tls| tls.files());
    let origin = listener.origin_tls.iter().flat_map(|tls| tls.files());
    for path in tls.chain(origin) {
        std::fs::read(path).unwrap_or_default().hash(&mut hasher);
    }
    if listener.origin_tls.as_ref().is_some_and(OriginTlsConfig::trusts_system) {
        truepeer_https::tls::system_authorities().hash(&mut hasher);
    }
    hasher.finish()
}
