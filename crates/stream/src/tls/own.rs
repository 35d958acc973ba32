//! Certificates that this process signs itself: for a first try, before there is a real one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::hash::Output;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::error::{ConfigError, HAS_TLS, Subject, without_tls};

/// How long clients may take one for valid: nobody should keep it.
const DAYS: u64 = 30;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// By names: a reload makes no other one.
static MADE: Mutex<BTreeMap<Vec<String>, OwnCertificate>> = Mutex::new(BTreeMap::new());

/// A certificate and its key, as DER.
#[derive(Clone)]
pub(super) struct OwnCertificate {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl OwnCertificate {
    /// The certificate for these names, host names or addresses.
    pub(super) fn of(names: &[String]) -> Result<Self, ConfigError> {
        if !HAS_TLS {
            return Err(without_tls(Subject::Certificate));
        }
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = made.get(names) {
            return Ok(own.clone());
        }
        let own = make(names).map_err(|error| {
            Subject::Certificate.error(format!("self: can't make a certificate: {error}"))
        })?;
        made.insert(names.to_vec(), own.clone());
        Ok(own)
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

fn make(names: &[String]) -> Result<OwnCertificate, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // Clocks differ.
    (params.not_before, params.not_after) =
        (epoch + now.saturating_sub(DAY), epoch + now + DAY * u32::try_from(DAYS).unwrap_or(u32::MAX));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "truepeer, for a first try");
    let certificate = params.self_signed(&key)?;
    Ok(OwnCertificate { certificate: certificate.der().clone(), key: key.serialize_der() })
}

/// This host's name, if clients may use it (RFC 1123 2.1).
#[must_use]
pub fn own_host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_ascii_lowercase();
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    is_name.then_some(name)
}

/// The SHA-256 fingerprint of the certificate for these names, as browsers and openssl show it.
///
/// # Errors
/// No certificate can be made for them.
pub fn own_fingerprint(names: &[String]) -> Result<String, ConfigError> {
    if !HAS_TLS {
        return Err(without_tls(Subject::Certificate));
    }
    let own = OwnCertificate::of(names)?;
    let mut text = String::new();
    for byte in sha256(&own.certificate).as_ref() {
        // Writing to a String can't fail.
        let _ = write!(text, "{}{byte:02X}", if text.is_empty() { "" } else { ":" });
    }
    Ok(text)
}

/// The hash of the suite that has it in its name.
fn sha256(bytes: &[u8]) -> Output {
    let common = match TLS13_AES_128_GCM_SHA256 {
        SupportedCipherSuite::Tls12(suite) => &suite.common,
        SupportedCipherSuite::Tls13(suite) => &suite.common,
    };
    common.hash_provider.hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_of_the_same_names_stays_the_same() {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let first = own_fingerprint(&names).unwrap();
        assert_eq!(own_fingerprint(&names).unwrap(), first);
        assert_eq!((first.len(), first.matches(':').count()), (95, 31));
        let other = own_fingerprint(&["site.test".to_owned()]).unwrap();
        assert_ne!(other, first);
        let own = OwnCertificate::of(&names).unwrap();
        let certificate = own.certificate();
        let parsed = webpki::EndEntityCert::try_from(&certificate).unwrap();
        assert_eq!(parsed.valid_dns_names().collect::<Vec<_>>(), ["localhost"]);
        let address = rustls::pki_types::ServerName::try_from("::1").unwrap();
        assert!(parsed.verify_is_valid_for_subject_name(&address).is_ok());
    }
}
