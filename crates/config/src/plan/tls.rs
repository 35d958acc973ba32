//! TLS with clients and with backends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use truepeer_https::tunnel::OriginTls;
use truepeer_stream::tls::{
    ClientCertificates, ClientOptions, ClientTls, ConfigError, IdentityFiles, MinVersion, ServerIdentity,
    ServerOptions, ServerTls, Suite, Trust,
};

use super::problem::{OptionName, Problem};
use crate::spec::{ClientCert, ListenAddr, OriginSpec, TlsSpec, text};

/// TLS with clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// The first is the default for unknown names.
    pub certs: Vec<CertConfig>,
    /// The names of the certificate that an authority issues; none: it issues none.
    pub acme: Vec<String>,
    /// The names of the certificate `self`.
    pub own_names: Vec<String>,
    #[serde(with = "text::one")]
    pub(crate) min_version: MinVersion,
    /// None: all.
    #[serde(with = "text::list")]
    pub(crate) suites: Vec<Suite>,
    pub(crate) alpn: Vec<String>,
    /// Clients must present certificates of these authorities, if set.
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_cert: ClientCert,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertConfig {
    pub(crate) cert: PathBuf,
    /// `None`: in the certificate's file.
    #[serde(default)]
    pub key: Option<PathBuf>,
}

/// TLS with backends.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OriginTlsConfig {
    /// The name that backends' certificates must have.
    pub name: String,
    /// The trusted authorities; `None`: the system's.
    pub(crate) ca: Option<PathBuf>,
    /// Accepts any certificate.
    pub(crate) insecure: bool,
    /// The application protocols to offer.
    pub(crate) alpn: Vec<String>,
    /// The certificate for backends that request one.
    pub(crate) cert: Option<CertConfig>,
}

/// The word for a certificate that the process makes itself. A file of this name is `./self`.
const OWN: &str = "self";

impl CertConfig {
    fn is_own(&self) -> bool {
        self.cert == Path::new(OWN)
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let paths = [Some(self.cert.as_path()), self.key.as_deref()];
        paths.into_iter().flatten().filter(|_| !self.is_own())
    }

    fn files(&self) -> IdentityFiles {
        IdentityFiles { cert: self.cert.clone(), key: self.key.clone().unwrap_or_else(|| self.cert.clone()) }
    }
}

/// A certificate with its key, which may be in its own file.
pub(super) fn certificate(cert: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<CertConfig> {
    cert.map(|cert| CertConfig { cert: cert.clone(), key: key.cloned() })
}

/// The names by which clients may call these listeners.
fn names_of(hosts: &[String], listen: &[ListenAddr]) -> Vec<String> {
    let mut names = hosts.to_vec();
    for address in listen {
        let host = match address {
            ListenAddr::Address(address) => address.host(),
            ListenAddr::Passed(_) => "",
        };
        if matches!(host, "" | "*" | "0.0.0.0" | "::") {
            names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
            names.extend(truepeer_stream::tls::own_host_name());
        } else {
            names.push(host.to_owned());
            // Whoever tries it here types this.
            names.extend(
                host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()).then(|| "localhost".to_owned()),
            );
        }
    }
    let mut known = BTreeSet::new();
    names.retain(|name| known.insert(name.clone()));
    names
}

/// Each certificate with its key; one without a key has it in its own file.
fn certificates(certs: &[PathBuf], keys: &[PathBuf]) -> Vec<CertConfig> {
    let keys = keys.iter().map(Some).chain(std::iter::repeat(None));
    certs.iter().zip(keys).filter_map(|(cert, key)| certificate(Some(cert), key)).collect()
}

impl OriginSpec {
    /// One of these options, if given.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        let options = [
            (self.origin_ca.is_some(), "origin-ca"),
            (self.origin_insecure, "origin-insecure"),
            (self.origin_name.is_some(), "origin-name"),
            (self.origin_cert.is_some(), "origin-cert"),
            (self.origin_key.is_some(), "origin-key"),
        ];
        options.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }

    pub(super) fn refuse_contradictions(&self) -> Result<(), Problem> {
        if self.origin_insecure && self.origin_ca.is_some() {
            let (place, other) = (OptionName("origin-insecure"), OptionName("origin-ca"));
            return Err(Problem::Excludes { place, other });
        }
        if self.origin_key.is_some() && self.origin_cert.is_none() {
            return Err(Problem::needs("origin-key", "origin-cert", "FILE"));
        }
        Ok(())
    }
}

impl TlsConfig {
    /// `None` without a certificate: clients then don't use TLS.
    pub(super) fn of(
        spec: &TlsSpec,
        alpn: &[String],
        (acme, hosts): (&[String], &[String]),
        listen: &[ListenAddr],
    ) -> Result<Option<Self>, Problem> {
        if spec.tls_cert.is_empty() && acme.is_empty() {
            let needy = [
                (!spec.tls_key.is_empty(), "tls-key"),
                (spec.tls_min.is_some(), "tls-min"),
                (!spec.tls_suite.is_empty(), "tls-suite"),
                (spec.client_ca.is_some(), "client-ca"),
                (spec.client_cert.is_some(), "client-cert"),
            ];
            let given = needy.into_iter().find(|(is_given, _)| *is_given);
            return given.map_or(Ok(None), |(_, option)| Err(Problem::needs(option, "tls-cert", "FILE")));
        }
        if !spec.tls_key.is_empty() && spec.tls_key.len() != spec.tls_cert.len() {
            return Err(Problem::Keys {
                place: OptionName("tls-key"),
                other: OptionName("tls-cert"),
                certificates: spec.tls_cert.len(),
                keys: spec.tls_key.len(),
            });
        }
        if spec.client_cert.is_some() && spec.client_ca.is_none() {
            return Err(Problem::needs("client-cert", "client-ca", "FILE"));
        }
        if spec.tls_cert.iter().any(|cert| cert == Path::new(OWN)) && !spec.tls_key.is_empty() {
            return Err(Problem::at(
                "tls-key",
                "expected no --tls-cert self with it: its key is made with it",
            ));
        }
        Ok(Some(Self {
            certs: certificates(&spec.tls_cert, &spec.tls_key),
            acme: acme.to_vec(),
            own_names: if spec.tls_cert.iter().any(|cert| cert == Path::new(OWN)) {
                names_of(hosts, listen)
            } else {
                Vec::new()
            },
            min_version: spec.tls_min.unwrap_or_default(),
            suites: spec.tls_suite.clone(),
            alpn: alpn.to_vec(),
            client_ca: spec.client_ca.clone(),
            client_cert: spec.client_cert.unwrap_or_default(),
        }))
    }

    /// The data of all its files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.certs.iter().flat_map(CertConfig::paths).chain(self.client_ca.as_deref())
    }

    /// Reads the files now.
    pub(super) fn read(&self) -> Result<Arc<ServerTls>, ConfigError> {
        ServerTls::new(&self.options()).map(Arc::new)
    }

    /// What to tell of the certificate `self`: a warning.
    pub(super) fn warning_of_own(&self) -> Option<String> {
        self.certs.iter().any(CertConfig::is_own).then(|| {
            "--tls-cert self: no client trusts this certificate, and each start makes another one: for a first try only".to_owned()
        })
    }

    /// The certificate `self` of this process, to be told from others by whoever tries it.
    pub(super) fn own_certificate(&self) -> Option<String> {
        self.certs.iter().find(|cert| cert.is_own())?;
        let fingerprint = truepeer_stream::tls::own_fingerprint(&self.own_names).ok()?;
        Some(format!("the certificate is for {}; its SHA-256 is {fingerprint}", self.own_names.join(", ")))
    }

    fn identity(&self, cert: &CertConfig) -> ServerIdentity {
        if cert.is_own() { ServerIdentity::Own(self.own_names.clone()) } else { cert.files().into() }
    }

    fn options(&self) -> ServerOptions {
        ServerOptions {
            identities: {
                let issued = Some(&self.acme).filter(|names| !names.is_empty()).cloned();
                let files = self.certs.iter().map(|cert| self.identity(cert));
                files.chain(issued.map(ServerIdentity::Issued)).collect()
            },
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
    /// The data of all its files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.cert.iter().flat_map(CertConfig::paths).chain(self.ca.as_deref())
    }

    /// Whether backends are verified with the system's authorities.
    pub(super) fn trusts_system(&self) -> bool {
        self.ca.is_none() && !self.insecure
    }

    /// Reads the files now.
    pub(super) fn read(&self) -> Result<OriginTls, ConfigError> {
        ClientTls::new(&self.options()).map(|tls| OriginTls { tls: Arc::new(tls) })
    }

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
