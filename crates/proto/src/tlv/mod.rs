//! The extensions of a v2 header: type, length, value (PROXY 2.2).
//!
//! `validate` checks the structure once, when the header is decoded: lengths, the checksum's and the unique
//! id's size, the SSL TLV's nesting. After that the iterators cannot fail. A value that only its reader can
//! judge (a string that is not UTF-8, a vendor's value of another form) does not make the header malformed: a
//! receiver "may choose to skip over and ignore the TLVs it is not interested in".

mod ssl;
mod types;
mod value;

pub use ssl::{Ssl, SslTlv, SslTlvs};
pub use types::*;
pub use value::Tlv;

use crate::checksum;
use crate::error::{DecodeError, DecodeErrorKind as Kind};
use crate::text::Text;

/// Bytes of type and length.
pub const TLV_HEADER_LEN: usize = 3;

/// Bytes of a keyed digest's TLV ([`crate::V2Encoder::finish_with_digest`]): a time and a MAC.
pub const DIGEST_LEN: usize = 8 + DIGEST_MAC_LEN;

/// Bytes of the MAC at its end.
pub const DIGEST_MAC_LEN: usize = 32;

/// Longest UNIQUE_ID in bytes (PROXY 2.2.5).
pub const UNIQUE_ID_MAX_LEN: usize = 128;

/// Extensions whose structure has been checked, still encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tlvs<'a> {
    bytes: &'a [u8],
    /// A type that is left out.
    without: Option<u8>,
}

impl<'a> Tlvs<'a> {
    /// None.
    pub const EMPTY: Self = Self { bytes: &[], without: None };

    /// Checks everything but the checksum, which needs the whole header.
    ///
    /// # Errors
    /// The rule that was broken; the offset counts from the start of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        validate(bytes).map(|valid| valid.tlvs)
    }

    /// As sent: also what [`Self::without`] leaves out.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The same without those of one type.
    #[must_use]
    pub const fn without(self, kind: u8) -> Self {
        Self { without: Some(kind), ..self }
    }

    /// Whether none was sent.
    pub const fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Each one understood, in the order sent.
    pub fn iter(self) -> impl Iterator<Item = Tlv<'a>> + Clone {
        self.raw().map(|(kind, value)| Tlv::new(kind, value))
    }

    /// Each one's type and value, in the order sent.
    pub const fn raw(self) -> RawTlvs<'a> {
        RawTlvs { bytes: self.bytes, without: self.without }
    }

    /// The first value of a type.
    pub fn value(self, kind: u8) -> Option<&'a [u8]> {
        self.raw().find(|(other, _)| *other == kind).map(|(_, value)| value)
    }

    /// The application protocol that the client negotiated (PROXY 2.2.1).
    pub fn alpn(self) -> Option<&'a [u8]> {
        self.value(ALPN)
    }

    /// The host name that the client asked for, TLS's SNI (PROXY 2.2.2).
    pub fn authority(self) -> Option<Text<'a>> {
        self.value(AUTHORITY).map(Text::new)
    }

    /// The sender's id of the connection (PROXY 2.2.5).
    pub fn unique_id(self) -> Option<&'a [u8]> {
        self.value(UNIQUE_ID)
    }

    /// How the client spoke TLS to the sender (PROXY 2.2.6).
    pub fn ssl(self) -> Option<Ssl<'a>> {
        self.value(SSL).and_then(Ssl::new)
    }
}

/// Types and values, in the order sent.
#[derive(Debug, Clone)]
pub struct RawTlvs<'a> {
    bytes: &'a [u8],
    without: Option<u8>,
}

impl<'a> RawTlvs<'a> {
    const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, without: None }
    }

    /// The rest that was not iterated yet; empty at the end of well-formed bytes.
    const fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for RawTlvs<'a> {
    type Item = (u8, &'a [u8]);

    /// Ends early, with bytes left over, where they are not well-formed: only before validation.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&[kind, high, low], rest) = self.bytes.split_first_chunk::<TLV_HEADER_LEN>()?;
            let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
            self.bytes = rest;
            if self.without != Some(kind) {
                return Some((kind, value));
            }
        }
    }
}

/// Extensions of which the structure holds.
pub(crate) struct Valid<'a> {
    pub(crate) tlvs: Tlvs<'a>,
    /// Where the checksum's value stands.
    pub(crate) crc32c: Option<usize>,
}

/// Checks structure; offsets count from the start of `bytes`.
pub(crate) fn validate(bytes: &[u8]) -> Result<Valid<'_>, DecodeError> {
    let mut crc32c = None;
    let mut walk = RawTlvs::of(bytes);
    let mut start = 0;
    for (kind, value) in walk.by_ref() {
        let value_at = start + TLV_HEADER_LEN;
        check_value(kind, value).map_err(|error| error.shifted(start))?;
        if kind == CRC32C && crc32c.replace(value_at).is_some() {
            // PROXY 2.2.3 speaks of one "checksum field"; which of two would be zeroed is not defined.
            return Err(DecodeError::new(Kind::Crc32cTwice, start));
        }
        start = value_at + value.len();
    }
    if walk.rest().is_empty() {
        Ok(Valid { tlvs: Tlvs { bytes, without: None }, crc32c })
    } else {
        Err(DecodeError::new(Kind::TlvOverrun, start))
    }
}

/// The rules for values that hold whoever reads them; offsets count from the TLV's start.
pub(crate) fn check_value(kind: u8, value: &[u8]) -> Result<(), DecodeError> {
    match kind {
        // PROXY 2.2.3: "a 32-bit number"
        CRC32C if value.len() != checksum::LEN => Err(DecodeError::new(Kind::Crc32cLength, 0)),
        // PROXY 2.2.5: "of up to 128 bytes"
        UNIQUE_ID if value.len() > UNIQUE_ID_MAX_LEN => Err(DecodeError::new(Kind::UniqueIdTooLong, 0)),
        SSL => ssl::check(value),
        _ => Ok(()),
    }
}
