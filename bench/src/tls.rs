//! The load's TLS: version, suite and key exchange are fixed, so that all contestants do the same work.

use std::sync::Arc;

use anyhow::Context;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version::TLS13};

/// The parameters in words.
pub(crate) const SPOKEN: &str = "TLS 1.3, TLS_AES_128_GCM_SHA256, X25519";

/// A client that speaks HTTP/2 or HTTP/1.1, accepts only the certificate `expected`, and never resumes a session.
pub(crate) fn client(
    expected: &CertificateDer<'static>,
    is_http2: bool,
) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let known =
        Known { certificate: expected.clone(), algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .context("a configuration of TLS")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(known))
        .with_no_client_auth();
    if is_http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Only one certificate is right, so this also checks which program terminates TLS.
#[derive(Debug)]
struct Known {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    /// Never called: the client uses TLS 1.3 only.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
