//! Certificates that an authority issues while this process runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// By names: a reload finds what was issued before.
static ISSUED: Mutex<BTreeMap<Vec<String>, Arc<IssuedCertificate>>> = Mutex::new(BTreeMap::new());

/// The newest certificate for some names; none, until one was issued.
#[derive(Default)]
pub struct IssuedCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl IssuedCertificate {
    /// The certificate for these names.
    #[must_use]
    pub fn of(names: &[String]) -> Arc<Self> {
        let mut issued = ISSUED.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(issued.entry(names.to_vec()).or_default())
    }

    /// New handshakes use this one: a key, its certificate, and its issuers, as PEM.
    ///
    /// # Errors
    /// They can't be used together.
    pub fn set(&self, pem: &[u8]) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain = chain.map_err(|error| format!("not PEM: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("no usable key: {error}"))?;
        let new =
            CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| error.to_string())?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(new));
        Ok(())
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IssuedCertificate").field(&self.current().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_certificate_leaves_the_one_before() {
        let names = ["issued.test".to_owned()];
        let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let other = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let issued = IssuedCertificate::of(&names);
        assert!(issued.current().is_none());
        issued.set((made.signing_key.serialize_pem() + &made.cert.pem()).as_bytes()).unwrap();
        let first = IssuedCertificate::of(&names).current().unwrap();
        for wrong in [String::new(), made.cert.pem(), other.signing_key.serialize_pem() + &made.cert.pem()] {
            issued.set(wrong.as_bytes()).unwrap_err();
        }
        assert!(Arc::ptr_eq(&issued.current().unwrap(), &first));
    }
}
