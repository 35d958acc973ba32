//! Answers to the questions by which an ACME authority checks who serves a name.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use truepeer_stream::tls::{ACME_PROTOCOL, Hello};

/// RFC 8555, 8.3.
const PATH: &[u8] = b"/.well-known/acme-challenge/";

/// The answers of a process, which all its listeners give.
#[derive(Default)]
pub struct Challenges {
    /// By token.
    texts: Mutex<HashMap<String, String>>,
    /// By name.
    names: Mutex<HashMap<String, Arc<ServerConfig>>>,
    /// The number of names.
    asked: AtomicUsize,
}

impl Challenges {
    /// http-01: answers a request for this token.
    pub fn answer_http(&self, token: &str, text: &str) {
        lock(&self.texts).insert(token.to_owned(), text.to_owned());
    }

    /// No more.
    pub fn withdraw_http(&self, token: &str) {
        lock(&self.texts).remove(token);
    }

    /// tls-alpn-01: shows a certificate with this digest to whoever offers the protocol for it.
    ///
    /// # Errors
    /// No certificate can be made for the name.
    pub fn answer_tls(&self, name: &str, digest: &[u8; 32]) -> Result<(), String> {
        let config = configuration(name, digest)?;
        let mut names = lock(&self.names);
        names.insert(name.to_ascii_lowercase(), config);
        self.asked.store(names.len(), Ordering::Relaxed);
        Ok(())
    }

    /// No more.
    pub fn withdraw_tls(&self, name: &str) {
        let mut names = lock(&self.names);
        names.remove(&name.to_ascii_lowercase());
        self.asked.store(names.len(), Ordering::Relaxed);
    }

    /// Whether the first message of clients has to be looked at.
    pub(crate) fn has_names(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }

    /// The configuration for the authority's handshake; `None`: it is another client's.
    pub(crate) fn choose(&self, hello: &Hello) -> Option<Arc<ServerConfig>> {
        let name = hello.name.as_ref().filter(|_| hello.offers_acme)?;
        lock(&self.names).get(&name.to_ascii_lowercase()).cloned()
    }

    /// The answer to a request for this target.
    pub(crate) fn text(&self, target: &[u8]) -> Option<String> {
        let token = std::str::from_utf8(target.strip_prefix(PATH)?).ok()?;
        lock(&self.texts).get(token).cloned()
    }
}

fn configuration(name: &str, digest: &[u8; 32]) -> Result<Arc<ServerConfig>, String> {
    let made = || -> Result<_, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        Ok((params.self_signed(&key)?.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der())))
    };
    let (certificate, key) = made().map_err(|error| error.to_string())?;
    let provider = Arc::new(default_provider());
    let key = provider.key_provider.load_private_key(key.into()).map_err(|error| error.to_string())?;
    // with_single_cert refuses a certificate with a critical extension that rustls does not know.
    let only = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = config.with_no_client_auth().with_cert_resolver(Arc::new(only));
    config.alpn_protocols = vec![ACME_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenges").field("asked", &self.asked).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_until_it_is_withdrawn() {
        let challenges = Challenges::default();
        challenges.answer_http("abc", "abc.key");
        let asked = |target: &str| challenges.text(target.as_bytes());
        assert_eq!(asked("/.well-known/acme-challenge/abc").as_deref(), Some("abc.key"));
        for other in
            ["ab", "abc/", "abc?", "abc#", "ABC", "%61bc", "x/../abc", "./abc", "/abc", "", "abc.key"]
        {
            assert_eq!(asked(&format!("/.well-known/acme-challenge/{other}")), None, "{other}");
        }
        for target in ["/abc", "//.well-known/acme-challenge/abc", "/.WELL-KNOWN/acme-challenge/abc", "*", ""]
        {
            assert_eq!(asked(target), None, "{target}");
        }
        challenges.withdraw_http("abc");
        assert_eq!(asked("/.well-known/acme-challenge/abc"), None);
    }

    #[test]
    fn only_who_offers_the_protocol_gets_the_certificate() {
        let challenges = Challenges::default();
        let hello = |name: &str, offers_acme| Hello { name: Some(name.to_owned()), offers_acme };
        assert!(!challenges.has_names());
        challenges.answer_tls("A.test", &[7; 32]).unwrap();
        assert!(challenges.has_names());
        assert!(challenges.choose(&hello("a.test", true)).is_some());
        assert!(challenges.choose(&hello("a.test", false)).is_none());
        assert!(challenges.choose(&hello("b.test", true)).is_none());
        challenges.withdraw_tls("a.test");
        assert!(!challenges.has_names() && challenges.choose(&hello("a.test", true)).is_none());
    }
}
