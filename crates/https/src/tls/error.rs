//! Errors of the TLS configuration and of handshakes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::verify::is_authority;
use super::words;

/// A configuration that can't be used. The text begins with the option or file at fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that can't be read, or has no certificate or key in it.
    #[error("{option} {}: {problem}", path.display())]
    File {
        /// What it is.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A certificate and a key that can't serve.
    #[error("the certificate {} with the key {}: {problem}", cert.display(), key.display())]
    Identity {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Nothing to show.
    #[error("no certificate: expected at least one")]
    NoCertificate,
    /// The chosen suites leave nothing for a version, or the like.
    #[error("--tls-suite: {0}")]
    Suites(Error),
    /// The certificates of a trusted authority can't be used.
    #[error("{option}: {problem}")]
    Trust {
        /// Which option named them.
        option: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The name to check the backend's certificate for.
    #[error("--origin-name {0:?} is neither a host name nor an address")]
    Name(String),
}

/// A handshake that failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end does not speak TLS, or no parameters suit both ends.
    #[error("{}", explain(error, first))]
    Tls {
        /// rustls' word for it.
        error: Error,
        /// The first bytes that came.
        first: Vec<u8>,
    },
    /// The other end has left.
    #[error("the connection ended within the TLS handshake{}", after(first))]
    Closed {
        /// The first bytes that came.
        first: Vec<u8>,
    },
    /// The connection broke.
    #[error("the connection broke within the TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// It did not end in time.
    #[error("no TLS handshake within {} s", waited.as_secs_f32())]
    TimedOut {
        /// How long we waited.
        waited: Duration,
    },
}

impl HandshakeError {
    /// A stable label of the reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Closed { .. } => "tls_closed",
            Self::Io(_) => "tls_broken",
            Self::TimedOut { .. } => "tls_timeout",
            Self::Tls { error, .. } => match error {
                Error::InvalidMessage(_) => "tls_not_tls",
                Error::PeerIncompatible(_) => "tls_incompatible",
                Error::AlertReceived(_) => "tls_alert",
                Error::InvalidCertificate(_) | Error::NoCertificatesPresented => "tls_certificate",
                Error::NoApplicationProtocol => "tls_alpn",
                _ => "tls_failed",
            },
        }
    }
}

fn after(first: &[u8]) -> &'static str {
    if first.is_empty() { ": nothing was sent" } else { "" }
}

fn explain(error: &Error, first: &[u8]) -> String {
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::MessageTooLarge) => {
            match truepeer_proto::sniff(first) {
                Some(hint) => format!("this is not TLS: the first bytes look like: {hint}"),
                None if first.starts_with(b"PROXY ") || first.starts_with(b"\r\n\r\n\0\r\nQUIT\n") => {
                    "this is not TLS: a PROXY header comes first; is --header require missing?".to_owned()
                }
                None => "this is not TLS".to_owned(),
            }
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the certificate is of an authority that is not trusted (--client-ca, --origin-ca)".to_owned()
        }
        Error::InvalidCertificate(_) if is_authority(error) => {
            "the certificate that is shown is of an authority (CA:TRUE) and not the one that --origin-ca names".to_owned()
        }
        Error::NoCertificatesPresented => "a client certificate is required, and none was sent".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => {
            "no cipher suite in common (--tls-suite)".to_owned()
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls13RequiredForQuic,
        ) => "no TLS version in common (--tls-min)".to_owned(),
        // It is asked for before the version is looked at; TLS 1.0 and 1.1 do not have it.
        Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired) => {
            "no signature algorithms are named, as in TLS 1.1 and older".to_owned()
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the other end does not trust our certificate's authority (alert unknown_ca); is the chain in --cert complete?".to_owned()
            }
            AlertDescription::ProtocolVersion => "no TLS version in common (alert protocol_version)".to_owned(),
            AlertDescription::HandshakeFailure => {
                "nothing in common: versions, cipher suites or kinds of keys (alert handshake_failure)".to_owned()
            }
            AlertDescription::NoApplicationProtocol => {
                "the other end speaks none of the protocols that were offered (--origin-alpn)".to_owned()
            }
            AlertDescription::CertificateRequired => "the other end requires a client certificate".to_owned(),
            alert => format!("the other end refuses (alert {})", words::alert(*alert)),
        },
        other => words::error(other),
    }
}
