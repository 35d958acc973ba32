//! Certificates and keys, selected by the client's SNI.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::error::{ConfigError, Subject};
use super::issued::IssuedCertificate;
use super::own::OwnCertificate;
use super::words;

/// The files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// PEM: the certificate first, then its issuers.
    pub cert: PathBuf,
    /// PEM: the key; may be the same file.
    pub key: PathBuf,
}

/// A certificate for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerIdentity {
    /// Read from files.
    Files(IdentityFiles),
    /// One that this process makes, for these names.
    Own(Vec<String>),
    /// One that an authority issues for these names: none at first.
    Issued(Vec<String>),
}

impl From<IdentityFiles> for ServerIdentity {
    fn from(files: IdentityFiles) -> Self {
        Self::Files(files)
    }
}

/// Reads the certificates of a PEM file; at least one.
pub(super) fn certificates(
    subject: Subject,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let pem = std::fs::read(path).map_err(|error| subject.in_file(path, error))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates =
        certificates.map_err(|error| subject.in_file(path, format_args!("not PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(
            subject.in_file(path, "it contains no certificate (expected a line -----BEGIN CERTIFICATE-----)")
        );
    }
    Ok(certificates)
}

/// `beside`: the part at fault if the key should stand in the certificate's file, and doesn't.
pub(super) fn key(
    subject: Subject,
    beside: Subject,
    files: &IdentityFiles,
) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let path = &files.key;
    let pem = std::fs::read(path).map_err(|error| subject.in_file(path, error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        // PKCS #8 marks an encrypted key in the line BEGIN, where it counts as no key at all; older formats
        // do in `Proc-Type: 4,ENCRYPTED`.
        if pem.windows(9).any(|word| word == b"ENCRYPTED") {
            return subject
                .in_file(path, "its key is encrypted: openssl pkey -in KEY -out PLAIN removes the password");
        }
        if matches!(error, pem::Error::NoItemsFound) {
            let subject = if files.key == files.cert { beside } else { subject };
            return subject
                .in_file(path, "it contains no private key (expected a line -----BEGIN PRIVATE KEY-----)");
        }
        subject.in_file(path, format_args!("it contains no usable private key: {error}"))
    })
}

/// A certificate with its key.
#[derive(Debug, Clone)]
enum Held {
    /// It stays until the next reload.
    Fixed(Arc<CertifiedKey>),
    /// The newest one.
    Issued(Arc<IssuedCertificate>),
}

impl Held {
    fn current(&self) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Fixed(key) => Some(Arc::clone(key)),
            Self::Issued(issued) => issued.current(),
        }
    }
}

/// All certificates of a listener.
#[derive(Debug)]
pub(super) struct Identities {
    /// For clients without SNI or with an unknown name: the first on the command line, then those that share
    /// a name with it or have no host name (but an IP address, say), then all others. These have other types
    /// of keys, which such a client may need.
    default: Vec<Held>,
    /// Keys are in lower case. Certificates of the same name have different key types.
    by_name: HashMap<String, Vec<Held>>,
    /// `*.example.org` as `example.org`.
    by_parent: HashMap<String, Vec<Held>>,
    /// All host names, those of the first certificate first.
    names: Vec<String>,
}

impl Identities {
    /// Reads the files.
    pub(super) fn load(
        identities: &[ServerIdentity],
        provider: &CryptoProvider,
    ) -> Result<Self, ConfigError> {
        let loaded = identities.iter().map(|identity| load(identity, provider));
        let mut loaded = loaded.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first =
            loaded.next().ok_or_else(|| Subject::Certificate.error("expected at least one certificate"))?;
        let first_names = first.1.clone();
        let mut identities = Self {
            default: vec![first.0.clone()],
            by_name: HashMap::new(),
            by_parent: HashMap::new(),
            names: Vec::new(),
        };
        let mut others = Vec::new();
        for (number, (identity, names)) in std::iter::once(first).chain(loaded).enumerate() {
            if number > 0 {
                let is_alike = names.is_empty() || names.iter().any(|name| first_names.contains(name));
                let list = if is_alike { &mut identities.default } else { &mut others };
                list.push(identity.clone());
            }
            for name in names {
                if !identities.names.contains(&name) {
                    identities.names.push(name.clone());
                }
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut identities.by_parent, parent.to_owned()),
                    None => (&mut identities.by_name, name),
                };
                map.entry(name).or_default().push(identity.clone());
            }
        }
        identities.default.extend(others);
        Ok(identities)
    }

    /// The host names of all certificates.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The certificates for `name`: exact matches first, then those of a wildcard, which matches one label
    /// (RFC 9525, 6.3); for an unknown name the default ones.
    fn candidates(&self, name: Option<&str>) -> Vec<Arc<CertifiedKey>> {
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let exact = name.as_ref().and_then(|name| self.by_name.get(name));
        let wildcard = name.as_ref().and_then(|name| self.by_parent.get(name.split_once('.')?.1));
        let named: Vec<_> = exact.into_iter().chain(wildcard).flatten().filter_map(Held::current).collect();
        if named.is_empty() { self.default.iter().filter_map(Held::current).collect() } else { named }
    }
}

/// A certificate with its key and its host names.
fn load(identity: &ServerIdentity, provider: &CryptoProvider) -> Result<(Held, Vec<String>), ConfigError> {
    let files = match identity {
        ServerIdentity::Files(files) => files,
        ServerIdentity::Own(names) => {
            let own = OwnCertificate::of(names)?;
            let key = CertifiedKey::from_der(vec![own.certificate()], own.key(), provider)
                .map_err(|error| Subject::Certificate.error(format!("self: {}", explain(&error))))?;
            let hosts = names.iter().filter(|name| name.parse::<IpAddr>().is_err());
            return Ok((Held::Fixed(Arc::new(key)), hosts.map(|name| name.to_ascii_lowercase()).collect()));
        }
        ServerIdentity::Issued(names) => {
            return Ok((Held::Issued(IssuedCertificate::of(names)), names.clone()));
        }
    };
    let chain = certificates(Subject::Certificate, &files.cert)?;
    let names = webpki::EndEntityCert::try_from(&chain[0])
        .map(|cert| cert.valid_dns_names().map(str::to_ascii_lowercase).collect())
        // A certificate that webpki can't parse (version 1, for example) matches no name; it may still be the
        // default.
        .unwrap_or_default();
    let identity =
        CertifiedKey::from_der(chain, key(Subject::Key, Subject::KeyBesideCertificate, files)?, provider)
            .map_err(|error| mismatch(Subject::Certificate, files, &error))?;
    Ok((Held::Fixed(Arc::new(identity)), names))
}

/// A certificate and a key that can't be used together.
pub(super) fn mismatch(subject: Subject, files: &IdentityFiles, error: &rustls::Error) -> ConfigError {
    let (key, problem) = (files.key.display(), explain(error));
    subject.error(format!("{} with the key {key}: {problem}", files.cert.display()))
}

fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key does not belong to the certificate".to_owned(),
        other => words::error(other),
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let candidates = self.candidates(hello.server_name());
        let schemes = hello.signature_schemes();
        let fitting = candidates.iter().find(|identity| identity.key.choose_scheme(schemes).is_some());
        fitting.or(candidates.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(name: &str, pem: &str) -> String {
        let path = std::env::temp_dir().join(format!("truepeer-{}-{name}", std::process::id()));
        std::fs::write(&path, pem).unwrap();
        let files = IdentityFiles { cert: path.clone(), key: path.clone() };
        let error = key(Subject::Key, Subject::KeyBesideCertificate, &files).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        error.to_string().replace(&*path.to_string_lossy(), "FILE")
    }

    #[test]
    fn encrypted_keys_are_named_as_such() {
        let new = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIHs\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nMIHs\n-----END EC PRIVATE KEY-----\n";
        for (name, pem) in [("new", new), ("old", old)] {
            let said = problem(name, pem);
            assert!(said.contains("FILE: its key is encrypted: openssl pkey"), "{said}");
        }
    }

    #[test]
    fn a_damaged_key_is_told_from_no_key() {
        let damaged = problem("damaged", "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n");
        assert!(damaged.contains("FILE: it contains no usable private key: "), "{damaged}");
        let none = problem("none", "-----BEGIN CERTIFICATE-----\nMIHs\n-----END CERTIFICATE-----\n");
        assert!(none.contains("FILE: it contains no private key (expected a line"), "{none}");
    }
}
