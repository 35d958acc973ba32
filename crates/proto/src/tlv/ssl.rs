//! The SSL TLV and the TLVs within it (PROXY 2.2.6).

use super::{RawTlvs, TLV_HEADER_LEN, types};
use crate::error::{DecodeError, DecodeErrorKind as Kind};
use crate::text::Text;

/// Bytes of `client` and `verify`.
const FIXED_LEN: usize = 5;

/// How the client spoke TLS to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ssl<'a> {
    /// Bit field: [`Ssl::SSL`], [`Ssl::CERT_CONN`], [`Ssl::CERT_SESS`].
    pub client: u8,
    /// 0 if the client presented a certificate that was verified, else the sender's error code.
    pub verify: u32,
    sub: &'a [u8],
}

impl<'a> Ssl<'a> {
    /// The client connected over TLS.
    pub const SSL: u8 = 0x01;
    /// The client presented a certificate over this connection.
    pub const CERT_CONN: u8 = 0x02;
    /// The client presented a certificate at least once in this TLS session.
    pub const CERT_SESS: u8 = 0x04;

    pub(super) fn new(value: &'a [u8]) -> Option<Self> {
        let (&[client, a, b, c, d], sub) = value.split_first_chunk::<FIXED_LEN>()?;
        Some(Self { client, verify: u32::from_be_bytes([a, b, c, d]), sub })
    }

    /// Whether the client connected over TLS.
    pub const fn is_tls(self) -> bool {
        self.client & Self::SSL != 0
    }

    /// Whether the client presented a certificate, now or earlier in its session, and it was verified.
    ///
    /// Senders set `verify` to 0 also where there was no certificate at all: the flags decide first.
    pub const fn is_client_verified(self) -> bool {
        self.client & (Self::CERT_CONN | Self::CERT_SESS) != 0 && self.verify == 0
    }

    /// The sub-TLVs, in the order sent.
    pub const fn iter(self) -> SslTlvs<'a> {
        SslTlvs(RawTlvs::of(self.sub))
    }
}

/// The sub-TLVs of an SSL TLV.
#[derive(Debug, Clone)]
pub struct SslTlvs<'a>(RawTlvs<'a>);

impl<'a> Iterator for SslTlvs<'a> {
    type Item = SslTlv<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, value) = self.0.next()?;
        let text = Text::new(value);
        Some(match kind {
            types::SSL_VERSION => SslTlv::Version(text),
            types::SSL_CN => SslTlv::CommonName(text),
            types::SSL_CIPHER => SslTlv::Cipher(text),
            types::SSL_SIG_ALG => SslTlv::SigAlg(text),
            types::SSL_KEY_ALG => SslTlv::KeyAlg(text),
            types::SSL_GROUP => SslTlv::Group(text),
            types::SSL_SIG_SCHEME => SslTlv::SigScheme(text),
            types::SSL_CLIENT_CERT => SslTlv::ClientCert(value),
            _ => SslTlv::Unknown { kind, value },
        })
    }
}

/// One sub-TLV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslTlv<'a> {
    /// 0x21: TLS version, e.g. `TLSv1.3`.
    Version(Text<'a>),
    /// 0x22: Common Name of the client's certificate.
    CommonName(Text<'a>),
    /// 0x23: cipher, e.g. `ECDHE-RSA-AES128-GCM-SHA256`.
    Cipher(Text<'a>),
    /// 0x24: what signed the sender's certificate, e.g. `RSA-SHA256`.
    SigAlg(Text<'a>),
    /// 0x25: key of the sender's certificate, e.g. `RSA2048`.
    KeyAlg(Text<'a>),
    /// 0x26: key exchange, e.g. `secp256r1`.
    Group(Text<'a>),
    /// 0x27: what signed the handshake, e.g. `rsa_pss_rsae_sha256`.
    SigScheme(Text<'a>),
    /// 0x28: the client's certificate, X.509 in DER.
    ClientCert(&'a [u8]),
    /// Not assigned within SSL.
    Unknown {
        /// Its type.
        kind: u8,
        /// Its value.
        value: &'a [u8],
    },
}

/// "The total length of the pp2_tlv_ssl TLV will reflect this" (PROXY 2.2.6): the sub-TLVs fill it exactly.
/// Offsets count from the TLV's start.
pub(super) fn check(value: &[u8]) -> Result<(), DecodeError> {
    let Some(ssl) = Ssl::new(value) else { return Err(DecodeError::new(Kind::SslTooShort, 0)) };
    let mut walk = RawTlvs::of(ssl.sub);
    walk.by_ref().for_each(drop);
    match walk.rest().len() {
        0 => Ok(()),
        left => Err(DecodeError::new(Kind::SslOverrun, TLV_HEADER_LEN + value.len() - left)),
    }
}
