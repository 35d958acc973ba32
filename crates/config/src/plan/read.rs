//! The external data of a listener's plan: lists in files, names, certificates. Read once, and compared on
//! reload.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use truepeer_policy::{Backends, PrefixSet, Secrets};

use super::tls::{OriginTlsConfig, TlsConfig};

/// The data at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    /// The admitted senders, including those in files.
    pub(crate) allow: PrefixSet,
    /// The denied clients, including those in files.
    pub(crate) deny: PrefixSet,
    /// Those by which senders prove themselves, and those that are sent.
    pub(crate) secrets: (Vec<Secrets>, Vec<Secrets>),
    /// The addresses of host names.
    pub(crate) backends: Backends,
    /// The same for the origins for some hosts and paths.
    pub(crate) origins: Vec<Backends>,
    /// The contents of certificates, keys and authorities; only compared.
    pub(super) certificates: u64,
}

impl Read {
    /// Whether another reading has found the same in lists and files of secrets.
    pub(super) fn has_same_lists(&self, other: &Self) -> bool {
        (&self.allow, &self.deny, &self.secrets) == (&other.allow, &other.deny, &other.secrets)
    }
}

/// A digest of an origin's TLS options and their files.
pub(super) fn origin_digest(tls: Option<&OriginTlsConfig>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (tls, certificates(None, tls.into_iter())).hash(&mut hasher);
    hasher.finish()
}

/// A file that can't be read counts as empty here: building the TLS configuration reports it.
pub(super) fn certificates<'a>(
    tls: Option<&'a TlsConfig>,
    origin_tls: impl Iterator<Item = &'a OriginTlsConfig> + Clone,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    let tls = tls.into_iter().flat_map(TlsConfig::files);
    let origin = origin_tls.clone().flat_map(OriginTlsConfig::files);
    for path in tls.chain(origin) {
        std::fs::read(path).unwrap_or_default().hash(&mut hasher);
    }
    if origin_tls.into_iter().any(OriginTlsConfig::trusts_system) {
        truepeer_stream::tls::system_authorities().hash(&mut hasher);
    }
    hasher.finish()
}
