//! Errors of the TLS configuration and of handshakes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::verify::is_authority;
use super::words;

/// A configuration that can't be used. The text starts with the option or file at fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that can't be read, or lacks a certificate or key.
    #[error("{option} {}: {problem}", path.display())]
    File {
        /// The kind of file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A certificate and a key that can't be used together.
    #[error("the certificate {} with the key {}: {problem}", cert.display(), key.display())]
    Identity {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The problem.
        problem: String,
    },
    /// No certificate was given.
    #[error("no certificate: expected at least one")]
    NoCertificate,
    /// The chosen suites support no chosen version, or a similar conflict.
    #[error("--tls-suite: {0}")]
    Suites(Error),
    /// The certificates of an authority can't be used.
    #[error("{option}: {problem}")]
    Trust {
        /// The option that named them.
        option: &'static str,
        /// The problem.
        problem: String,
    },
    /// The name to find in the backend's certificate is invalid.
    #[error("--origin-name {0:?} is neither a host name nor an address")]
    Name(String),
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
    /// It was not finished in time.
    #[error("no TLS handshake within {} s", waited.as_secs_f32())]
    TimedOut {
        /// The time limit.
        waited: Duration,
    },
}

impl HandshakeError {
    /// A stable label for the reason.
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
                Some(hint) => format!("not TLS: the first bytes look like {hint}"),
                None if first.starts_with(b"PROXY ") || first.starts_with(b"\r\n\r\n\0\r\nQUIT\n") => {
                    "not TLS: the connection starts with a PROXY header; is --header require missing?".to_owned()
                }
                None => "not TLS".to_owned(),
            }
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the certificate's authority is not trusted (--client-ca, --origin-ca)".to_owned()
        }
        Error::InvalidCertificate(_) if is_authority(error) => {
            "the origin presents an authority's certificate (CA:TRUE), and it is not the one in --origin-ca".to_owned()
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
        // This error is reported before the version is checked. TLS 1.0 and 1.1 lack the extension.
        Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired) => {
            "no signature algorithms offered, as in TLS 1.1 and older".to_owned()
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the other end does not trust the authority of truepeer's certificate (alert unknown_ca); is the chain in --tls-cert complete?".to_owned()
            }
            AlertDescription::ProtocolVersion => "no TLS version in common (alert protocol_version)".to_owned(),
            AlertDescription::HandshakeFailure => {
                "no version, cipher suite or key type in common (alert handshake_failure)".to_owned()
            }
            AlertDescription::NoApplicationProtocol => {
                "the other end supports none of the offered protocols (--origin-alpn)".to_owned()
            }
            AlertDescription::CertificateRequired => "the other end requires a client certificate".to_owned(),
            alert => format!("the other end refused the handshake (alert {})", words::alert(*alert)),
        },
        other => words::error(other),
    }
}
