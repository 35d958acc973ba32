//! The options of TLS, with clients and with backends.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use truepeer_https::tls::{MinVersion, Suite};

use super::UsageError;
use super::values;
use crate::plan::{CertConfig, ClientCert, DRAIN, OriginTlsConfig, TlsConfig};

const TLS: &str = "TLS with clients: taken off, backends get plain bytes";
const ORIGIN: &str = "TLS with backends";

/// What they make of the configuration.
#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// Certificate (PEM, its issuers behind it); clients then speak TLS. Repeatable: chosen by the name that the client asks
    /// for, the first for all others. Read again on SIGHUP
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    tls_cert: Vec<PathBuf>,
    /// The certificate's key (PEM); one for each --tls-cert, in the same order [default: in the certificate's file]
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    tls_key: Vec<PathBuf>,
    /// The oldest version of TLS spoken [default: 1.2]
    #[arg(long, value_name = "1.2|1.3", help_heading = TLS)]
    tls_min: Option<MinVersion>,
    /// Cipher suite, such as TLS_AES_128_GCM_SHA256; repeatable, best first: our order decides
    /// [default: all that are safe, in the client's order]
    #[arg(long, value_name = "NAME", help_heading = TLS)]
    tls_suite: Vec<Suite>,
    /// Application protocol that is offered (ALPN), such as h2; repeatable, best first [default: none]
    #[arg(long, value_name = "NAME", help_heading = TLS)]
    tls_alpn: Vec<String>,
    /// How long a TLS handshake may take [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = TLS)]
    tls_timeout: Option<Duration>,
    /// Connections that one client may have, by its address, IPv6 by /64; 0: any number. Not counted are those from this
    /// machine, unless a PROXY header names the client [default: an eighth of all, 64 to 4096]
    #[arg(long, value_name = "N", help_heading = TLS)]
    pub(super) max_per_client: Option<usize>,
    /// How long sessions with TLS may go on after SIGTERM; a second one ends at once. 0: not at all [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crate::plan::parse_duration, help_heading = TLS)]
    drain_timeout: Option<Duration>,
    /// Ask clients for certificates, of the authorities in this file (PEM)
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    client_ca: Option<PathBuf>,
    /// Whether a client must show one: required or optional [default: required]
    #[arg(long, value_name = "required|optional", value_parser = client_cert, help_heading = TLS)]
    client_cert: Option<ClientCert>,

    /// Speak TLS with backends; their certificates are verified
    #[arg(long, help_heading = ORIGIN)]
    origin_tls: bool,
    /// Authorities that vouch for backends (PEM) [default: those that this system trusts]
    #[arg(long, value_name = "FILE", help_heading = ORIGIN)]
    origin_ca: Option<PathBuf>,
    /// Take whatever certificate a backend shows
    #[arg(long, help_heading = ORIGIN)]
    origin_insecure: bool,
    /// The name that a backend's certificate must have, and that is asked for [default: the host of -4 or -6]
    #[arg(long, value_name = "NAME", help_heading = ORIGIN)]
    origin_name: Option<String>,
    /// Certificate that is shown to backends that ask for one (PEM, its issuers behind it)
    #[arg(long, value_name = "FILE", help_heading = ORIGIN)]
    origin_cert: Option<PathBuf>,
    /// Its key (PEM) [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "origin_cert", help_heading = ORIGIN)]
    origin_key: Option<PathBuf>,
    /// Application protocol that is offered to backends (ALPN), such as http/1.1; repeatable, best first [default: none]
    #[arg(long, value_name = "NAME", help_heading = ORIGIN)]
    origin_alpn: Vec<String>,
}

impl TlsArgs {
    /// TLS with clients, if a certificate is given.
    pub(super) fn server(&self) -> Result<Option<TlsConfig>, UsageError> {
        if self.tls_cert.is_empty() {
            let needy = [
                (!self.tls_key.is_empty(), "--tls-key"),
                (self.tls_min.is_some(), "--tls-min"),
                (!self.tls_suite.is_empty(), "--tls-suite"),
                (!self.tls_alpn.is_empty(), "--tls-alpn"),
                (self.client_ca.is_some(), "--client-ca"),
                (self.max_per_client.is_some(), "--max-per-client"),
            ];
            return match needy.iter().find(|(given, _)| *given) {
                Some((_, option)) => {
                    Err(UsageError::Options(format!("{option}: expected --tls-cert FILE with it")))
                }
                None => Ok(None),
            };
        }
        if !self.tls_key.is_empty() && self.tls_key.len() != self.tls_cert.len() {
            return Err(UsageError::Options(format!(
                "--tls-key: expected one for each --tls-cert ({}), got {}",
                self.tls_cert.len(),
                self.tls_key.len()
            )));
        }
        if self.client_cert.is_some() && self.client_ca.is_none() {
            return Err(UsageError::Options("--client-cert: expected --client-ca FILE with it".to_owned()));
        }
        let defaults = TlsConfig::default();
        Ok(Some(TlsConfig {
            certs: certificates(&self.tls_cert, &self.tls_key),
            min_version: self.tls_min.unwrap_or_default(),
            suites: self.tls_suite.clone(),
            alpn: self.tls_alpn.clone(),
            client_ca: self.client_ca.clone(),
            client_cert: self.client_cert.unwrap_or_default(),
            timeout: self.tls_timeout.unwrap_or(defaults.timeout),
        }))
    }

    /// How long sessions may go on after the signal to stop, where any has TLS.
    pub(super) fn drain(&self) -> Result<Duration, UsageError> {
        if self.drain_timeout.is_some() && self.tls_cert.is_empty() && !self.origin_tls {
            return Err(UsageError::Options(
                "--drain-timeout: expected --tls-cert FILE or --origin-tls with it".to_owned(),
            ));
        }
        Ok(self.drain_timeout.unwrap_or(DRAIN))
    }

    /// TLS with backends, whose hosts the command line names so.
    pub(super) fn origin(&self, hosts: &[&str]) -> Result<Option<OriginTlsConfig>, UsageError> {
        if !self.origin_tls {
            let needy = [
                (self.origin_ca.is_some(), "--origin-ca"),
                (self.origin_insecure, "--origin-insecure"),
                (self.origin_name.is_some(), "--origin-name"),
                (self.origin_cert.is_some(), "--origin-cert"),
                (!self.origin_alpn.is_empty(), "--origin-alpn"),
            ];
            return match needy.iter().find(|(given, _)| *given) {
                Some((_, option)) => {
                    Err(UsageError::Options(format!("{option}: expected --origin-tls with it")))
                }
                None => Ok(None),
            };
        }
        if self.origin_insecure && self.origin_ca.is_some() {
            return Err(UsageError::Options("--origin-insecure: expected no --origin-ca with it".to_owned()));
        }
        let name = match (&self.origin_name, hosts) {
            (Some(name), _) => name.clone(),
            (None, [host, others @ ..]) if others.iter().all(|other| other == host) => (*host).to_owned(),
            (None, _) => {
                return Err(UsageError::Options(
                    "--origin-tls: -4 and -6 name different hosts; expected --origin-name NAME, which both certificates have".to_owned(),
                ));
            }
        };
        Ok(Some(OriginTlsConfig {
            name,
            ca: self.origin_ca.clone(),
            insecure: self.origin_insecure,
            alpn: self.origin_alpn.clone(),
            cert: certificate(self.origin_cert.as_ref(), self.origin_key.as_ref()),
        }))
    }
}

pub(super) fn client_cert(text: &str) -> Result<ClientCert, String> {
    match text {
        "required" => Ok(ClientCert::Required),
        "optional" => Ok(ClientCert::Optional),
        _ => Err("expected required or optional".to_owned()),
    }
}

/// A certificate with its key, which may be in its own file.
pub(super) fn certificate(cert: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<CertConfig> {
    cert.map(|cert| CertConfig { cert: cert.clone(), key: key.cloned() })
}

/// Each certificate with its key; one without a key has it in its own file.
pub(super) fn certificates(certs: &[PathBuf], keys: &[PathBuf]) -> Vec<CertConfig> {
    let keys = keys.iter().map(Some).chain(std::iter::repeat(None));
    certs.iter().zip(keys).map(|(cert, key)| CertConfig { cert: cert.clone(), key: key.cloned() }).collect()
}
