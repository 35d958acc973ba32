//! The TLS configuration towards clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::error::{ConfigError, HAS_TLS, Subject, without_tls};
use super::identity::{Identities, ServerIdentity, certificates};
use super::suites::{MinVersion, Suite, provider};
use super::words;

/// Encrypted bytes of early data that are skipped (RFC 8446 4.2.10). truepeer accepts none, because it gives
/// tickets (rustls accepts early data only without them), but clients may send some under the ticket of the
/// server that they knew before: up to 16 KiB as a rule. rustls keeps them in a buffer of 18,437 bytes until
/// the handshake continues, and fails if it is full. It counts them again with each read, hence the larger
/// number here.
const SKIPPED_EARLY_BYTES: u32 = 1 << 20;

/// How many sessions are remembered for TLS 1.2 clients without tickets; each takes about a kilobyte.
const REMEMBERED_SESSIONS: usize = 4096;

/// Whether clients need certificates, and which are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// They are not requested.
    #[default]
    None,
    /// They are requested. A client without one is served, too.
    Optional(PathBuf),
    /// A client without one is refused.
    Required(PathBuf),
}

/// The TLS options towards clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerOptions {
    /// The certificates. The first is the default for unknown names.
    pub identities: Vec<ServerIdentity>,
    /// The oldest version to use.
    pub min_version: MinVersion,
    /// Cipher suites in order of preference, which overrides the client's; none: all, in the client's order,
    /// because the client knows which its processor supports best.
    pub suites: Vec<Suite>,
    /// Application protocols (ALPN) in order of preference; none: any.
    pub alpn: Vec<Vec<u8>>,
    /// Whether clients need certificates.
    pub clients: ClientCertificates,
}

impl ServerOptions {
    /// Reads every file and builds a configuration.
    ///
    /// # Errors
    /// The part at fault and the reason.
    pub fn build(&self) -> Result<ServerTls, ConfigError> {
        if !HAS_TLS {
            return Err(without_tls(Subject::Certificate));
        }
        let provider = provider(&self.suites);
        let identities = Identities::load(&self.identities, &provider)?;
        let names = identities.names().to_vec();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.min_version.versions())
            .map_err(|error| Subject::Suites.error(words::error(&error)))?;
        let verifier = |path: &PathBuf| {
            let roots = Arc::new(roots(Subject::ClientAuthority, path)?);
            Ok(WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)))
        };
        let fail =
            |error: rustls::server::VerifierBuilderError| Subject::ClientAuthority.error(error.to_string());
        let builder = match &self.clients {
            ClientCertificates::None => builder.with_no_client_auth(),
            ClientCertificates::Optional(path) => {
                let verifier = verifier(path)?.allow_unauthenticated().build().map_err(fail)?;
                builder.with_client_cert_verifier(verifier)
            }
            ClientCertificates::Required(path) => {
                builder.with_client_cert_verifier(verifier(path)?.build().map_err(fail)?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(identities));
        config.alpn_protocols.clone_from(&self.alpn);
        config.ignore_client_order = !self.suites.is_empty();
        config.session_storage = ServerSessionMemoryCache::new(REMEMBERED_SESSIONS);
        config.max_early_data_size = SKIPPED_EARLY_BYTES;
        config.ticketer = Ticketer::new().map_err(|error| Subject::Suites.error(words::error(&error)))?;
        Ok(ServerTls { config: Arc::new(config), names })
    }
}

/// The certificates of authorities in a file.
pub(super) fn roots(subject: Subject, path: &Path) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(subject, path)? {
        roots.add(certificate).map_err(|error| subject.in_file(path, words::error(&error)))?;
    }
    Ok(roots)
}

/// The configuration for new handshakes. A reload makes another one, so sessions from before are not resumed:
/// they were started under other certificates, and perhaps with another authority for clients.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    names: Vec<String>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Those of [`ServerOptions::build`].
    pub fn new(options: &ServerOptions) -> Result<Self, ConfigError> {
        options.build()
    }

    /// The host names of its certificates, in lower case; `*.NAME`: the names one label below.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The configuration for the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}
