//! TLS with clients and with backends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_https::tls::{
    ClientCertificates, ClientOptions, ClientTls, IdentityFiles, MinVersion, ServerOptions, ServerTls, Suite,
    Trust,
};
use truepeer_https::tunnel::OriginTls;

use super::listener::ListenerConfig;
use super::{ConfigError, text};

/// TLS with clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// The first is shown to who asks for a name that none of them has.
    pub(crate) certs: Vec<CertConfig>,
    #[serde(with = "text::one")]
    pub(crate) min_version: MinVersion,
    /// None: all.
    #[serde(with = "text::list")]
    pub(crate) suites: Vec<Suite>,
    pub(crate) alpn: Vec<String>,
    /// Set: clients are asked for certificates, of these authorities.
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_cert: ClientCert,
    /// How long a handshake may take.
    #[serde(with = "text::duration")]
    pub(crate) timeout: Duration,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertConfig {
    pub(crate) cert: PathBuf,
    /// `None`: in the certificate's file.
    #[serde(default)]
    pub(crate) key: Option<PathBuf>,
}

/// Whether a client must show a certificate, where it is asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientCert {
    #[default]
    Required,
    Optional,
}

/// TLS with backends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OriginTlsConfig {
    /// The name that backends' certificates must have.
    pub(crate) name: String,
    /// The authorities that vouch for them; `None`: those that this system trusts.
    pub(crate) ca: Option<PathBuf>,
    /// Whatever they show is taken.
    pub(crate) insecure: bool,
    /// Application protocols that are offered to them.
    pub(crate) alpn: Vec<String>,
    /// What is shown to those that ask.
    pub(crate) cert: Option<CertConfig>,
}

/// How long a handshake may take.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certs: Vec::new(),
            min_version: MinVersion::default(),
            suites: Vec::new(),
            alpn: Vec::new(),
            client_ca: None,
            client_cert: ClientCert::default(),
            timeout: HANDSHAKE_TIMEOUT,
        }
    }
}

impl CertConfig {
    fn files(&self) -> IdentityFiles {
        IdentityFiles { cert: self.cert.clone(), key: self.key.clone().unwrap_or_else(|| self.cert.clone()) }
    }
}

impl TlsConfig {
    fn options(&self) -> ServerOptions {
        ServerOptions {
            identities: self.certs.iter().map(CertConfig::files).collect(),
            min_version: self.min_version,
            suites: self.suites.clone(),
            alpn: self.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect(),
            clients: match (&self.client_ca, self.client_cert) {
                (None, _) => ClientCertificates::None,
                (Some(ca), ClientCert::Required) => ClientCertificates::Required(ca.clone()),
                (Some(ca), ClientCert::Optional) => ClientCertificates::Optional(ca.clone()),
            },
        }
    }
}

impl OriginTlsConfig {
    fn options(&self) -> ClientOptions {
        ClientOptions {
            trust: match (&self.ca, self.insecure) {
                (_, true) => Trust::Anybody,
                (Some(ca), false) => Trust::File(ca.clone()),
                (None, false) => Trust::System,
            },
            name: self.name.clone(),
            min_version: MinVersion::default(),
            suites: Vec::new(),
            alpn: self.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect(),
            identity: self.cert.as_ref().map(CertConfig::files),
        }
    }
}

impl ListenerConfig {
    /// Whether TLS is spoken with anybody.
    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls.is_some() || self.origin_tls.is_some()
    }

    /// TLS with clients; reads the files as they are now.
    pub(crate) fn server_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        let tls = self.tls.as_ref().map(|tls| ServerTls::new(tls.options())).transpose()?;
        Ok(tls.map(Arc::new))
    }

    /// TLS with backends; reads the files as they are now.
    pub(crate) fn origin(&self) -> Result<Option<OriginTls>, ConfigError> {
        let tls = self.origin_tls.as_ref().map(|tls| ClientTls::new(tls.options())).transpose()?;
        Ok(tls.map(|tls| OriginTls { tls: Arc::new(tls) }))
    }

    /// How long a TLS handshake may take.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.tls.as_ref().map_or(HANDSHAKE_TIMEOUT, |tls| tls.timeout)
    }
}
