//! The TLS configuration towards backends. Certificates are verified unless the options say otherwise.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::error::{ConfigError, HAS_TLS, Subject, without_tls};
use super::identity::{IdentityFiles, certificates, key, mismatch};
use super::server::roots;
use super::suites::{MinVersion, Suite, provider};
use super::verify::{Credulous, Verifying};
use super::words;

/// The authorities that may sign a backend's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Trust {
    /// The authorities that this system trusts.
    #[default]
    System,
    /// The authorities in this file only.
    File(PathBuf),
    /// No verification: the connection is encrypted, but an impostor could be the other end.
    Anybody,
}

/// The TLS options towards backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// The trusted authorities.
    pub trust: Trust,
    /// The name to request and to find in the certificate: a host name or an address.
    pub name: String,
    /// The oldest version to use.
    pub min_version: MinVersion,
    /// Cipher suites in order of preference; none: all.
    pub suites: Vec<Suite>,
    /// Application protocols (ALPN) in order of preference; none: ALPN is not offered.
    pub alpn: Vec<Vec<u8>>,
    /// The certificate for backends that request one.
    pub identity: Option<IdentityFiles>,
}

/// The configuration for connections to one backend. Sessions are resumed.
#[derive(Debug)]
pub struct ClientTls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The part at fault and the reason.
    pub fn new(options: &ClientOptions) -> Result<Self, ConfigError> {
        let name = ServerName::try_from(options.name.clone()).map_err(|_| {
            Subject::OriginName.error(format!("{:?}: expected a host name or an address", options.name))
        })?;
        Ok(Self { name, config: build(options)? })
    }

    /// The configuration for the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// The name that the backend's certificate must contain.
    #[must_use]
    pub fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }
}

fn build(options: &ClientOptions) -> Result<Arc<ClientConfig>, ConfigError> {
    if !HAS_TLS {
        return Err(without_tls(Subject::OriginName));
    }
    let provider = provider(&options.suites);
    let verifier: Arc<dyn ServerCertVerifier> = match &options.trust {
        Trust::Anybody => Arc::new(Credulous::new(&provider)),
        Trust::File(path) => {
            let named = certificates(Subject::OriginAuthority, path)?;
            verifier(Subject::OriginAuthority, roots(Subject::OriginAuthority, path)?, named, &provider)?
        }
        Trust::System => verifier(Subject::SystemAuthorities, system_roots()?, Vec::new(), &provider)?,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(options.min_version.versions())
        .map_err(|error| Subject::Suites.error(words::error(&error)))?
        .dangerous() // rustls uses this name for every custom verifier, even for its own
        .with_custom_certificate_verifier(verifier);
    let mut config = match &options.identity {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = certificates(Subject::OriginCertificate, &files.cert)?;
            let key = key(Subject::OriginKey, Subject::OriginKeyBesideCertificate, files)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| mismatch(Subject::OriginCertificate, files, &error))?
        }
    };
    config.alpn_protocols.clone_from(&options.alpn);
    Ok(Arc::new(config))
}

fn verifier(
    subject: Subject,
    roots: RootCertStore,
    named: Vec<CertificateDer<'static>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, ConfigError> {
    let verifier = Verifying::new(roots, named, provider);
    Ok(Arc::new(verifier.map_err(|error| subject.error(error.to_string()))?))
}

/// The authorities that this system trusts now, to be compared: none if they can't be read.
#[must_use]
pub fn system_authorities() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

fn system_roots() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Skip certificates that can't be parsed: some systems have one.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let cause = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
        return Err(Subject::SystemAuthorities
            .error(format!("this system trusts no certificate authority{cause}; install ca-certificates")));
    }
    Ok(roots)
}
