//! Keys and certificates of the HTTPS loads, created for each run: one for the origin, and another one for
//! the proxy, so that the load can tell which of the two it is connected to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use rustls::pki_types::CertificateDer;

/// The name in all certificates, which the load requests.
pub(crate) const HOST: &str = "localhost";

/// The type of the keys. It determines the cost of a full handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyKind {
    /// As created by `openssl req -newkey rsa:2048`, in the guide that the HTTPS loads follow.
    #[value(name = "rsa-2048")]
    Rsa2048,
    #[value(name = "p-256")]
    P256,
}

/// A key and its self-signed certificate, as PEM files.
#[derive(Debug)]
pub(crate) struct Credential {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Certificate and key in one file, as some programs need them.
    pub(crate) bundle: PathBuf,
    pub(crate) der: CertificateDer<'static>,
}

/// The credentials of all parties.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) origin: Credential,
    pub(crate) entrance: Credential,
}

impl KeyKind {
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Rsa2048 => "RSA 2048",
            Self::P256 => "ECDSA P-256",
        }
    }

    fn generate(self) -> Result<KeyPair, rcgen::Error> {
        match self {
            Self::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        }
    }
}

impl Credentials {
    /// Creates them in `dir`.
    pub(crate) fn make(dir: &Path, kind: KeyKind) -> anyhow::Result<Self> {
        Ok(Self {
            origin: Credential::make(dir, "origin", kind)?,
            entrance: Credential::make(dir, "entrance", kind)?,
        })
    }
}

impl Credential {
    fn make(dir: &Path, name: &str, kind: KeyKind) -> anyhow::Result<Self> {
        let pair = kind.generate().context("a key")?;
        let params = CertificateParams::new([HOST.to_owned(), "127.0.0.1".to_owned()])?;
        let certificate = params.self_signed(&pair).context("a certificate")?;
        let (public, private) = (certificate.pem(), pair.serialize_pem());
        let write = |suffix: &str, text: &str| {
            let file = dir.join(format!("{name}.{suffix}"));
            fs::write(&file, text).with_context(|| file.display().to_string())?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
            anyhow::Ok(file)
        };
        Ok(Self {
            certificate: write("crt", &public)?,
            key: write("key", &private)?,
            bundle: write("pem", &(public.clone() + &private))?,
            der: certificate.der().clone(),
        })
    }
}
