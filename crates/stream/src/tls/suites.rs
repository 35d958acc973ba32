//! Protocol versions and cipher suites by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// The oldest version to use. Versions below 1.2 are insecure, and rustls has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

impl MinVersion {
    pub(super) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        const ALL: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        match self {
            Self::Tls12 => ALL,
            Self::Tls13 => &ALL[..1],
        }
    }
}

impl FromStr for MinVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self::Tls12),
            "1.3" => Ok(Self::Tls13),
            _ => Err("expected 1.2 or 1.3; older versions of TLS are not supported".to_owned()),
        }
    }
}

impl fmt::Display for MinVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        })
    }
}

/// A cipher suite, by its name in IANA's registry, such as `TLS_AES_128_GCM_SHA256`.
#[derive(Clone, Copy, PartialEq)]
pub struct Suite(SupportedCipherSuite);

// Equality, not order: suites have no ranking.
impl Eq for Suite {}

impl Suite {
    /// All supported suites, in order of preference.
    pub fn all() -> impl Iterator<Item = Self> {
        let known = if cfg!(feature = "tls") { aws_lc_rs::ALL_CIPHER_SUITES } else { &[] };
        known.iter().copied().map(Self)
    }

    fn name(self) -> String {
        name_of(self.0.suite())
    }
}

/// rustls writes `TLS13_` where IANA's registry has `TLS_`.
pub(super) fn name_of(suite: rustls::CipherSuite) -> String {
    suite.as_str().map_or_else(|| format!("{suite:?}"), |name| name.replacen("TLS13_", "TLS_", 1))
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|suite| suite.name() == text).ok_or_else(|| {
            let known: Vec<_> = Self::all().map(Self::name).collect();
            format!("expected one of {}", known.join(", "))
        })
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The crypto provider restricted to these suites; none: all.
pub(super) fn provider(suites: &[Suite]) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if !suites.is_empty() {
        provider.cipher_suites = suites.iter().map(|suite| suite.0).collect();
    }
    Arc::new(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_their_registered_names() {
        for name in ["TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"] {
            assert_eq!(name.parse::<Suite>().unwrap().to_string(), name);
        }
        let error = "AES128-SHA".parse::<Suite>().unwrap_err();
        assert!(
            error.contains("expected one of") && error.contains("TLS_CHACHA20_POLY1305_SHA256"),
            "{error}"
        );
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!("1.3".parse(), Ok(MinVersion::Tls13));
        assert!("1.1".parse::<MinVersion>().unwrap_err().contains("expected 1.2 or 1.3"));
    }
}
