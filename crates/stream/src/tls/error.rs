//! Errors of the TLS configuration and of handshakes.

use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use truepeer_session::{Hint, Reason};

use super::verify::is_authority;
use super::words;

/// rustls' words for a server that has no certificate.
const NO_CERTIFICATE: &str = "no server certificate chain resolved";
/// rustls' words for a key that fits the client's cipher suites but not its signature algorithms (Ed25519 in
/// TLS 1.2). It sends no alert.
const NO_FITTING_KEY: &str = "incompatible signing key";
/// How a TLS handshake begins: a record of that type, and a version's first byte.
const TLS_HANDSHAKE: &[u8] = b"\x16\x03";

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ConfigError {
    /// The part at fault.
    pub subject: Subject,
    /// What is wrong, with the file's path.
    problem: String,
}

/// A part of a TLS configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A certificate for clients.
    Certificate,
    /// The key of a certificate for clients.
    Key,
    /// A certificate for clients, without the key that its file should contain, as no other file was named.
    KeyBesideCertificate,
    /// The authorities that sign clients' certificates.
    ClientAuthority,
    /// The authorities that sign backends' certificates.
    OriginAuthority,
    /// The authorities that this system trusts.
    SystemAuthorities,
    /// The certificate for backends.
    OriginCertificate,
    /// The key of the certificate for backends.
    OriginKey,
    /// The certificate for backends, without its key likewise.
    OriginKeyBesideCertificate,
    /// The name to find in a backend's certificate.
    OriginName,
    /// The cipher suites and versions.
    Suites,
}

impl Subject {
    pub(super) fn error(self, problem: impl Into<String>) -> ConfigError {
        ConfigError { subject: self, problem: problem.into() }
    }

    pub(super) fn in_file(self, path: &Path, problem: impl fmt::Display) -> ConfigError {
        self.error(format!("{}: {problem}", path.display()))
    }
}

/// Without TLS, what follows `if !HAS_TLS { return … }` is not linked. After a call that always fails it
/// would be: the compiler can't see that it fails.
pub(super) const HAS_TLS: bool = cfg!(feature = "tls");

/// The error of a build without TLS.
pub(super) fn without_tls(subject: Subject) -> ConfigError {
    subject.error("this truepeer was built without TLS (the feature `https`)")
}

/// A handshake that failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end doesn't use TLS, or the two ends share no parameters.
    #[error("{}", explain(error, first))]
    Tls {
        /// rustls' error.
        error: Error,
        /// The first bytes received.
        first: Vec<u8>,
    },
    /// The other end closed the connection.
    #[error("the connection ended during the TLS handshake{}", after(first))]
    Closed {
        /// The first bytes received.
        first: Vec<u8>,
    },
    /// The connection broke.
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// The client asks for a name that no site has, or for none.
    #[error("no site here has the name that the client asks for{}", asked(name.as_deref()))]
    UnknownName {
        /// The name.
        name: Option<String>,
    },
    /// It was not finished in time.
    #[error("no TLS handshake within {} s", waited.as_secs_f32())]
    TimedOut {
        /// The time limit.
        waited: Duration,
    },
}

impl HandshakeError {
    /// As it is counted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Closed { .. } => Reason::TlsClosed,
            Self::Io(_) => Reason::TlsBroken,
            Self::TimedOut { .. } => Reason::TlsTimeout,
            Self::UnknownName { .. } => Reason::TlsUnknownName,
            Self::Tls { error, .. } => match error {
                Error::InvalidMessage(_) => Reason::TlsNotTls,
                Error::PeerIncompatible(_) => Reason::TlsIncompatible,
                Error::AlertReceived(_) => Reason::TlsAlert,
                Error::InvalidCertificate(_) | Error::NoCertificatesPresented => Reason::TlsCertificate,
                Error::NoApplicationProtocol => Reason::TlsAlpn,
                Error::General(problem) if problem == NO_CERTIFICATE => Reason::TlsNoCertificate,
                Error::General(problem) if problem == NO_FITTING_KEY => Reason::TlsIncompatible,
                _ => Reason::TlsFailed,
            },
        }
    }
}

impl HandshakeError {
    /// Whether rustls has sent no alert.
    pub(super) fn lacks_an_alert(&self) -> bool {
        matches!(self, Self::Tls { error: Error::General(problem), .. } if problem == NO_FITTING_KEY)
    }

    /// Whether the other end closed or reset the connection before it sent anything.
    #[must_use]
    pub fn is_a_closed_connection(&self) -> bool {
        match self {
            Self::Closed { first } => first.is_empty(),
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            _ => false,
        }
    }

    /// Whether the other end supports none of the protocols that it was offered by ALPN.
    #[must_use]
    pub fn is_no_common_protocol(&self) -> bool {
        matches!(self, Self::Tls { error: Error::AlertReceived(AlertDescription::NoApplicationProtocol), .. })
    }

    /// The setting that has to do with it. `authority` is the setting for the other end's authorities.
    #[must_use]
    pub fn hint(&self, authority: Hint) -> Option<Hint> {
        let (error, first) = match self {
            Self::Tls { error, first } => (error, first),
            Self::UnknownName { .. } => return Some(Hint::UnknownHost),
            _ => return None,
        };
        match error {
            Error::InvalidMessage(_) if is_proxy_header(first) => Some(Hint::HeaderBeforeTls),
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(authority),
            Error::InvalidCertificate(_) if is_authority(error) => Some(authority),
            Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => Some(Hint::Suites),
            Error::PeerIncompatible(why) if lacks_a_version(why) => Some(Hint::MinVersion),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Some(Hint::OriginProtocols),
            _ => None,
        }
    }
}

/// Whether the two ends have no version in common.
fn lacks_a_version(why: &PeerIncompatible) -> bool {
    matches!(
        why,
        PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls13RequiredForQuic
    )
}

fn is_proxy_header(first: &[u8]) -> bool {
    first.starts_with(b"PROXY ") || first.starts_with(b"\r\n\r\n\0\r\nQUIT\n")
}

fn after(first: &[u8]) -> &'static str {
    if first.is_empty() { ": nothing was sent" } else { "" }
}

fn asked(name: Option<&str>) -> String {
    name.map_or_else(|| ": it asks for none (SNI)".to_owned(), |name| format!(" (SNI): {name}"))
}

fn explain(error: &Error, first: &[u8]) -> String {
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::MessageTooLarge)
            if !first.starts_with(TLS_HANDSHAKE) =>
        {
            match truepeer_proto::sniff(first) {
                Some(hint) => format!("not TLS: the first bytes look like {hint}"),
                None if is_proxy_header(first) => {
                    "not TLS: the connection starts with a PROXY header".to_owned()
                }
                None => "not TLS".to_owned(),
            }
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the certificate's authority is not trusted".to_owned()
        }
        Error::InvalidCertificate(_) if is_authority(error) => {
            "the other end presents an authority's certificate (CA:TRUE), and it is not trusted itself".to_owned()
        }
        Error::General(problem) if problem == NO_CERTIFICATE => {
            "truepeer has no certificate yet: the authority has issued none".to_owned()
        }
        Error::General(problem) if problem == NO_FITTING_KEY => {
            "the client knows no signature algorithm of the certificate's key".to_owned()
        }
        Error::NoCertificatesPresented => "a client certificate is required, and none was sent".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => {
            "no cipher suite in common".to_owned()
        }
        Error::PeerIncompatible(why) if lacks_a_version(why) => "no TLS version in common".to_owned(),
        // This error is reported before the version is checked. TLS 1.0 and 1.1 lack the extension.
        Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired) => {
            "no signature algorithms offered, as in TLS 1.1 and older".to_owned()
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the other end does not trust the authority of truepeer's certificate (alert unknown_ca); is the certificate's chain complete?".to_owned()
            }
            AlertDescription::ProtocolVersion => "no TLS version in common (alert protocol_version)".to_owned(),
            AlertDescription::HandshakeFailure => {
                "no version, cipher suite or key type in common (alert handshake_failure)".to_owned()
            }
            AlertDescription::NoApplicationProtocol => {
                "the other end supports none of the offered protocols".to_owned()
            }
            AlertDescription::CertificateRequired => "the other end requires a client certificate".to_owned(),
            alert => format!("the other end refused the handshake (alert {})", words::alert(*alert)),
        },
        other => words::error(other),
    }
}
