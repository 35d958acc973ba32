//! Writing headers, into buffers that the caller owns.

mod v1;
mod v2;

pub use v1::{V1_MAX_LEN, encode_v1};
pub use v2::V2Encoder;

use crate::error::DecodeErrorKind;
use crate::tlv;

/// A header that can't be written. Nothing usable is in the buffer then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer ends before the header does.
    #[error("buffer too small for the header")]
    BufferTooSmall,
    /// The header would be longer than its length field can say: 16 + 65535 bytes (PROXY 2.2).
    #[error("header longer than 65551 bytes")]
    TooLong,
    /// Source and destination are of different families, which no header can say (PROXY 2.1, 2.2).
    #[error("source and destination of different families")]
    MixedFamilies,
    /// The checksum is the encoder's: see [`V2Encoder::with_crc32c`].
    #[error("a CRC32C TLV can't be given, only asked for")]
    GivenChecksum,
    /// A TLV that no receiver could accept.
    #[error("invalid TLV of type {kind:#04x}: {reason}")]
    InvalidTlv {
        /// Its type.
        kind: u8,
        /// The rule that it breaks.
        reason: DecodeErrorKind,
    },
}

impl EncodeError {
    /// The rule that the caller's TLV breaks.
    fn for_tlv(kind: u8, value: &[u8]) -> Result<(), Self> {
        if kind == tlv::CRC32C {
            return Err(Self::GivenChecksum);
        }
        tlv::check_value(kind, value).map_err(|error| Self::InvalidTlv { kind, reason: error.kind })
    }
}
