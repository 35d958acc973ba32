//! Finding out which version is spoken, as early as the bytes show it.

use crate::error::{DecodeError, DecodeErrorKind};
use crate::header::{Decoded, Header, V2_FIXED_LEN, V2_SIGNATURE};
use crate::{v1, v2};

const V1_SIGNATURE: &[u8] = b"PROXY";

/// Which versions a receiver accepts; it "may be configured to support both" (PROXY 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    v1: bool,
    v2: bool,
}

impl Versions {
    /// Only the human-readable line.
    pub const V1: Self = Self { v1: true, v2: false };
    /// Only the binary header.
    pub const V2: Self = Self { v1: false, v2: true };
    /// Either.
    pub const BOTH: Self = Self { v1: true, v2: true };

    /// The shortest header that can still arrive when nothing has.
    const fn shortest(self) -> usize {
        if self.v1 { v1::SHORTEST } else { V2_FIXED_LEN }
    }
}

/// The limits of what a receiver accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest v2 header in bytes, its 16 fixed ones included. v1 has its own limit of 107 (PROXY 2.1).
    pub max_len: usize,
    /// Which versions are accepted.
    pub versions: Versions,
}

impl Default for Limits {
    /// 16 KiB: room for a client certificate (PROXY 2.2.6), and both versions.
    fn default() -> Self {
        Self { max_len: 16 * 1024, versions: Versions::BOTH }
    }
}

/// Decodes the header at the start of `bytes`, which may hold less than a header or data after it.
///
/// Refuses at the first byte that no valid header can have, so that another protocol is not waited for.
///
/// # Errors
/// The rule that was broken and the byte that broke it; more bytes cannot mend it.
pub fn decode(bytes: &[u8], limits: Limits) -> Result<Decoded<'_>, DecodeError> {
    let accepted = limits.versions;
    match bytes.first() {
        None => Ok(Decoded::NeedMore { missing: accepted.shortest() }),
        Some(b'P') => {
            check_signature(bytes, V1_SIGNATURE, accepted.v1)?;
            v1::decode(bytes)
        }
        Some(b'\r') => {
            check_signature(bytes, &V2_SIGNATURE, accepted.v2)?;
            v2::decode(bytes, limits.max_len)
        }
        Some(_) => Err(DecodeError::new(DecodeErrorKind::NotProxy, 0)),
    }
}

/// Decodes the header at the start of a datagram; the payload starts at the returned length.
///
/// # Errors
/// As [`decode`]; [`DecodeErrorKind::Truncated`] if the datagram ends before its header does.
pub fn decode_datagram(datagram: &[u8], limits: Limits) -> Result<(Header<'_>, usize), DecodeError> {
    match decode(datagram, limits)? {
        Decoded::Done { header, consumed } => Ok((header, consumed)),
        // PROXY 2: "The sender MUST NOT split the PROXY protocol header across multiple UDP datagrams"
        Decoded::NeedMore { .. } => Err(DecodeError::new(DecodeErrorKind::Truncated, datagram.len())),
    }
}

/// Whether a stream that begins with `bytes` begins with a header, valid or not. `None`: more bytes will
/// tell.
pub fn begins_header(bytes: &[u8], accepted: Versions) -> Option<bool> {
    let mut may_begin = false;
    // PROXY 2.1: the string is followed by "exactly one space".
    for (signature, accepted) in [(&b"PROXY "[..], accepted.v1), (&V2_SIGNATURE, accepted.v2)] {
        let length = bytes.len().min(signature.len());
        if accepted && bytes[..length] == signature[..length] {
            if length == signature.len() {
                return Some(true);
            }
            may_begin = true;
        }
    }
    if may_begin { None } else { Some(false) }
}

/// Compares what has arrived of a signature.
fn check_signature(bytes: &[u8], signature: &[u8], accepted: bool) -> Result<(), DecodeError> {
    if let Some(offset) = bytes.iter().zip(signature).position(|(byte, expected)| byte != expected) {
        return Err(DecodeError::new(DecodeErrorKind::NotProxy, offset));
    }
    match (accepted, bytes.len() >= signature.len()) {
        (true, _) => Ok(()),
        (false, true) => Err(DecodeError::new(DecodeErrorKind::VersionNotAccepted, 0)),
        (false, false) => Err(DecodeError::new(DecodeErrorKind::NotProxy, 0)),
    }
}
