//! The TLVs of the header to a backend: the sender's own, and the result of our TLS handshake.

use truepeer_proto::{Tlvs, tlv as types};
use truepeer_stream::tls::TlsFacts;

use crate::downstream::{Downstream, put_tlv};

/// The bits of PROXY 2.2.6: the client used TLS; it presented a certificate in this connection, or earlier in
/// this session.
const SSL: u8 = 0x01;
const CERT_CONN: u8 = 0x02;
const CERT_SESS: u8 = 0x04;
/// "zero if the client presented a certificate and it was successfully verified, and non-zero otherwise".
const VERIFIED: u32 = 0;
const NOT_VERIFIED: u32 = 1;

/// The TLVs for the backend of `downstream`. If TLS is terminated here, truepeer's values replace the
/// sender's TLS values.
pub(crate) fn for_backend(downstream: &Downstream) -> Vec<u8> {
    let Some(facts) = &downstream.tls else { return downstream.tlvs.to_vec() };
    let ours = |kind: u8| matches!(kind, types::SSL | types::ALPN | types::AUTHORITY);
    let mut bytes = Vec::new();
    for (kind, value) in downstream.tlvs().raw().filter(|(kind, _)| !ours(*kind)) {
        put_tlv(&mut bytes, kind, value);
    }
    if let Some(alpn) = &facts.alpn {
        put_tlv(&mut bytes, types::ALPN, alpn);
    }
    if let Some(sni) = &facts.sni {
        put_tlv(&mut bytes, types::AUTHORITY, sni.as_bytes());
    }
    put_tlv(&mut bytes, types::SSL, &ssl(facts));
    bytes
}

/// `tlvs` with this ALPN value in the place of their own. HTTP/1.1 is named only if they have one: a client
/// that chose nothing speaks it, too.
pub(crate) fn with_alpn(tlvs: &[u8], alpn: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tlvs.len() + 16);
    let mut had_one = false;
    for (kind, value) in Tlvs::parse(tlvs).unwrap_or(Tlvs::EMPTY).raw() {
        had_one |= kind == types::ALPN;
        if kind != types::ALPN {
            put_tlv(&mut bytes, kind, value);
        }
    }
    if had_one || alpn == b"h2" {
        put_tlv(&mut bytes, types::ALPN, alpn);
    }
    bytes
}

fn ssl(facts: &TlsFacts) -> Vec<u8> {
    let certificate = if facts.resumed { CERT_SESS } else { CERT_CONN | CERT_SESS };
    let (client, verify) =
        if facts.client.is_some() { (SSL | certificate, VERIFIED) } else { (SSL, NOT_VERIFIED) };
    let mut value = vec![client];
    value.extend_from_slice(&verify.to_be_bytes());
    put_tlv(&mut value, types::SSL_VERSION, facts.version.as_bytes());
    put_tlv(&mut value, types::SSL_CIPHER, facts.suite.as_bytes());
    if let Some(name) = facts.client.as_ref().and_then(|client| client.common_name.as_ref()) {
        put_tlv(&mut value, types::SSL_CN, name.as_bytes());
    }
    value
}
