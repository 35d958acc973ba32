//! The state directory: an account, and a file for each certificate with its key.
//!
//! Files are replaced as a whole, so that a key never stands beside another one's certificate. Each name says
//! which authority it is of: certificates of a staging authority don't take the place of others.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use instant_acme::CertificateIdentifier;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, Der};

use crate::Settings;
use crate::validity::{Validity, issuer_and_serial};

/// A certificate with its key, as it is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// PEM: the key, the certificate, its issuers.
    pub pem: Vec<u8>,
    /// When it is valid.
    pub validity: Validity,
    /// Its host names.
    pub names: Vec<String>,
}

impl Stored {
    /// `None`: that is no certificate.
    pub(crate) fn of(pem: Vec<u8>) -> Option<Self> {
        let leaf = CertificateDer::pem_slice_iter(&pem).next()?.ok()?;
        let validity = Validity::of(&leaf)?;
        let parsed = webpki::EndEntityCert::try_from(&leaf).ok()?;
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase).collect();
        Some(Self { pem, validity, names })
    }

    /// Its name at the authority (RFC 9773, 4.1).
    pub(crate) fn id(&self) -> Option<CertificateIdentifier<'static>> {
        let leaf = CertificateDer::pem_slice_iter(&self.pem).next()?.ok()?;
        let (issuer, serial) = issuer_and_serial(&leaf)?;
        Some(CertificateIdentifier::new(Der::from_slice(issuer), Der::from_slice(serial)))
    }

    /// Whether it is for all of these names.
    pub(crate) fn has(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }
}

/// The certificate that is kept for these names, whatever its dates and its other names.
///
/// # Errors
/// The file can't be read, or is damaged.
pub fn stored(settings: &Settings, names: &[String]) -> io::Result<Option<Stored>> {
    let path = certificate(settings, names);
    let Some(pem) = read(&path)? else { return Ok(None) };
    let wrong = || io::Error::other(format!("{} contains no certificate: remove it", path.display()));
    Stored::of(pem).map(Some).ok_or_else(wrong)
}

/// Keeps a certificate.
pub(crate) fn store(settings: &Settings, names: &[String], pem: &[u8]) -> io::Result<()> {
    replace(certificate(settings, names), pem)
}

/// The account's credentials.
pub(crate) fn account(settings: &Settings) -> io::Result<Option<Vec<u8>>> {
    read(&account_file(settings))
}

pub(crate) fn store_account(settings: &Settings, json: &[u8]) -> io::Result<()> {
    replace(account_file(settings), json)
}

pub(crate) fn forget_account(settings: &Settings) -> io::Result<()> {
    std::fs::remove_file(account_file(settings))
}

/// Held while this process orders certificates. `None`: another process does. Proves that files can be
/// written there, too: an authority counts certificates, and one that can't be kept would be lost.
pub(crate) fn lock(settings: &Settings) -> io::Result<Option<File>> {
    let file = options().create(true).truncate(false).open(settings.state.join("truepeer.lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

fn certificate(settings: &Settings, names: &[String]) -> PathBuf {
    let name = names.first().map_or("", String::as_str);
    settings.state.join(format!("{}.{name}.pem", authority(settings)))
}

pub(crate) fn account_file(settings: &Settings) -> PathBuf {
    settings.state.join(format!("{}.account.json", authority(settings)))
}

/// The authority's URL as a part of a file's name.
fn authority(settings: &Settings) -> String {
    let url = settings.directory.split_once("://").map_or(&*settings.directory, |(_, rest)| rest);
    url.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

fn replace(path: PathBuf, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("new");
    let mut file = options().create(true).truncate(true).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// For the owner alone.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn settings(name: &str) -> Settings {
        let state = std::env::temp_dir().join(format!("truepeer-acme-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        let directory = "https://acme.test:14000/dir".to_owned();
        Settings { directory, email: None, state, external: None, roots: None }
    }

    #[test]
    fn a_certificate_is_kept_for_its_owner_alone_and_by_authority() {
        let settings = settings("kept");
        let names = ["a.test".to_owned(), "b.test".to_owned()];
        assert!(stored(&settings, &names).unwrap().is_none());
        let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let pem = made.signing_key.serialize_pem() + &made.cert.pem();
        store(&settings, &names, pem.as_bytes()).unwrap();
        let kept = stored(&settings, &names).unwrap().unwrap();
        assert_eq!((kept.pem.as_slice(), kept.has(&names)), (pem.as_bytes(), true));
        assert!(!kept.has(&["c.test".to_owned()]));
        let file = settings.state.join("acme_test_14000_dir.a.test.pem");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let other = Settings { directory: "https://other.test/dir".to_owned(), ..settings.clone() };
        assert!(stored(&other, &names).unwrap().is_none());
        std::fs::write(&file, "damaged").unwrap();
        let error = stored(&settings, &names).map(drop).unwrap_err().to_string();
        assert_eq!(error, format!("{} contains no certificate: remove it", file.display()));
        std::fs::remove_dir_all(&settings.state).unwrap();
    }

    #[test]
    fn one_process_at_a_time_orders() {
        let settings = settings("lock");
        let held = lock(&settings).unwrap();
        assert!(held.is_some() && lock(&settings).unwrap().is_none());
        drop(held);
        assert!(lock(&settings).unwrap().is_some());
        std::fs::remove_dir_all(&settings.state).unwrap();
        assert!(lock(&settings).is_err(), "nothing can be kept there");
    }
}
