//! CRC32C over a whole header (PROXY 2.2.3).

use crc::{CRC_32_ISCSI, Crc};

use crate::error::{DecodeError, DecodeErrorKind};

/// CRC32C (Castagnoli), the polynomial of RFC 4960 appendix B. A 1 KiB table: headers are short, and a larger
/// one would push the relay's data out of the cache.
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Bytes of the checksum's value.
pub(crate) const LEN: usize = 4;

/// The checksum of `header` with the four bytes at `field` taken as zero.
pub(crate) fn compute(header: &[u8], field: usize) -> u32 {
    let mut digest = CRC32C.digest();
    digest.update(&header[..field]);
    digest.update(&[0; LEN]);
    digest.update(&header[field + LEN..]);
    digest.finalize()
}

/// Checks the value at `field`, if there is one; it is in network byte order like all of the header.
pub(crate) fn verify(header: &[u8], field: Option<usize>) -> Result<(), DecodeError> {
    let Some(field) = field else { return Ok(()) };
    // PROXY 2.2.3: "If it is not, the receiver MUST treat the TCP connection providing the header as invalid"
    if header[field..field + LEN] != compute(header, field).to_be_bytes() {
        return Err(DecodeError::new(DecodeErrorKind::Crc32cMismatch, field));
    }
    Ok(())
}
