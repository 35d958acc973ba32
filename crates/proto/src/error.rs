//! Why bytes are not a valid header: what is wrong, what was expected, at which byte, by which rule; and the
//! words of a version 1 line that were refused.

use core::fmt;

use crate::text::Text;

/// A header that was refused. No later byte can make it valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (at byte {offset})")]
pub struct DecodeError {
    /// The rule that was broken.
    pub kind: DecodeErrorKind,
    /// The first byte that breaks it, counted from 0 at the start of the header.
    pub offset: usize,
}

impl DecodeError {
    pub(crate) const fn new(kind: DecodeErrorKind, offset: usize) -> Self {
        Self { kind, offset }
    }

    /// Moves the offset when the refused part starts `base` bytes into the header.
    pub(crate) const fn shifted(self, base: usize) -> Self {
        Self { kind: self.kind, offset: self.offset + base }
    }

    /// The protocol, address or port that was refused in `header`, the bytes that gave this error. `None` for
    /// other errors.
    pub fn quote(&self, header: &[u8]) -> Option<Quote> {
        use DecodeErrorKind::{V1Address, V1Port, V1Protocol};
        if !matches!(self.kind, V1Protocol | V1Address | V1Port) {
            return None;
        }
        let (before, after) = header.split_at_checked(self.offset)?;
        let start = before.iter().rposition(|&byte| byte == b' ')? + 1;
        let rest = after.iter().position(|byte| b" \r\n".contains(byte)).unwrap_or(after.len());
        let field = &header[start..self.offset + rest];
        let len = field.len().min(MOST);
        let mut bytes = [0; MOST];
        bytes[..len].copy_from_slice(&field[..len]);
        Some(Quote { bytes, len, is_cut: field.len() > MOST })
    }
}

/// The longest that an IPv6 address can be written (`INET6_ADDRSTRLEN` without its NUL).
const MOST: usize = 45;

/// One field as the sender wrote it, kept after the bytes are gone. Longer fields are cut. `Display` is safe
/// to log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    bytes: [u8; MOST],
    len: usize,
    is_cut: bool,
}

impl fmt::Display for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.is_cut { "…" } else { "" };
        write!(f, "\"{}{more}\"", Text::new(&self.bytes[..self.len]))
    }
}

impl fmt::Debug for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of rule that was broken; one counter each ([`DecodeErrorKind::as_str`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DecodeErrorKind {
    /// Neither `PROXY` nor the version 2 signature: not a PROXY header at all.
    NotProxy,
    /// A header of a version that the configuration does not accept.
    VersionNotAccepted,
    /// The datagram ends within the header.
    Truncated,
    /// v1: the protocol is not `TCP4`, `TCP6` or `UNKNOWN`.
    V1Protocol,
    /// v1: fields are not separated by exactly one space, or their number is wrong.
    V1Space,
    /// v1: an address is not one, or none is of the announced family.
    V1Address,
    /// v1: a port is not a decimal number in 0..=65535 without leading zeros.
    V1Port,
    /// v1: a CR or LF alone.
    V1LineEnd,
    /// v1: no CRLF where the longest possible line ends.
    V1TooLong,
    /// v2: the version is not 2.
    V2Version,
    /// v2: the command is neither LOCAL nor PROXY.
    V2Command,
    /// v2: an unassigned address family.
    V2Family,
    /// v2: an unassigned transport protocol.
    V2Transport,
    /// v2: the declared length cannot hold the addresses of the declared family.
    V2AddressTooShort,
    /// v2: the header is longer than [`crate::Limits::max_len`].
    V2TooLong,
    /// v2: a TLV reaches beyond the header, or fewer than 3 bytes are left for one.
    TlvOverrun,
    /// v2: a CRC32C value that is not 4 bytes long.
    Crc32cLength,
    /// v2: more than one CRC32C.
    Crc32cTwice,
    /// v2: the CRC32C does not match the header.
    Crc32cMismatch,
    /// v2: a UNIQUE_ID of more than 128 bytes.
    UniqueIdTooLong,
    /// v2: an SSL TLV too short for its fixed fields.
    SslTooShort,
    /// v2: a sub-TLV that reaches beyond its SSL TLV.
    SslOverrun,
    /// SPP: the datagram does not start with 0x56EC.
    SppMagic,
}

/// The text for one kind.
struct Facts {
    label: &'static str,
    section: &'static str,
    text: &'static str,
}

const fn facts(label: &'static str, section: &'static str, text: &'static str) -> Facts {
    Facts { label, section, text }
}

impl DecodeErrorKind {
    /// Every kind, in the order of declaration: the rows of a counter table.
    pub const ALL: [Self; 23] = [
        Self::NotProxy,
        Self::VersionNotAccepted,
        Self::Truncated,
        Self::V1Protocol,
        Self::V1Space,
        Self::V1Address,
        Self::V1Port,
        Self::V1LineEnd,
        Self::V1TooLong,
        Self::V2Version,
        Self::V2Command,
        Self::V2Family,
        Self::V2Transport,
        Self::V2AddressTooShort,
        Self::V2TooLong,
        Self::TlvOverrun,
        Self::Crc32cLength,
        Self::Crc32cTwice,
        Self::Crc32cMismatch,
        Self::UniqueIdTooLong,
        Self::SslTooShort,
        Self::SslOverrun,
        Self::SppMagic,
    ];

    /// A stable label for counters and machines.
    pub const fn as_str(self) -> &'static str {
        self.facts().label
    }

    /// The section of the specification that the rule comes from.
    pub const fn section(self) -> &'static str {
        self.facts().section
    }

    const fn facts(self) -> Facts {
        match self {
            Self::NotProxy => facts(
                "not_proxy",
                "PROXY 2.2",
                "not a PROXY header: expected \"PROXY\" (version 1) or the version 2 signature",
            ),
            Self::VersionNotAccepted => facts(
                "version_not_accepted",
                "PROXY 2.2",
                "a PROXY header of a version that is not accepted here",
            ),
            Self::Truncated => facts(
                "truncated",
                "PROXY 2",
                "the datagram ends within the header: expected the whole header in one datagram",
            ),
            Self::V1Protocol => facts(
                "v1_protocol",
                "PROXY 2.1",
                "unknown protocol: expected TCP4, TCP6 or UNKNOWN in upper case",
            ),
            Self::V1Space => facts(
                "v1_space",
                "PROXY 2.1",
                "wrong fields: expected two addresses and two ports, exactly one space before each",
            ),
            Self::V1Address => facts(
                "v1_address",
                "PROXY 2.1",
                "bad address: expected one of the announced family, without leading zeros or a zone",
            ),
            Self::V1Port => facts(
                "v1_port",
                "PROXY 2.1",
                "bad port: expected a decimal number in 0..65535 without leading zeros",
            ),
            Self::V1LineEnd => {
                facts("v1_line_end", "PROXY 2.1", "a CR or LF alone: expected CR and LF together")
            }
            Self::V1TooLong => facts(
                "v1_too_long",
                "PROXY 2.1",
                "line too long: expected CRLF within 107 bytes (56 for TCP4)",
            ),
            Self::V2Version => {
                facts("v2_version", "PROXY 2.2", "unknown version: expected 2 in the high four bits")
            }
            Self::V2Command => facts(
                "v2_command",
                "PROXY 2.2",
                "unassigned command: expected 0 (LOCAL) or 1 (PROXY) in the low four bits",
            ),
            Self::V2Family => facts(
                "v2_family",
                "PROXY 2.2",
                "unassigned address family: expected 0 (UNSPEC), 1 (INET), 2 (INET6) or 3 (UNIX)",
            ),
            Self::V2Transport => facts(
                "v2_transport",
                "PROXY 2.2",
                "unassigned transport protocol: expected 0 (UNSPEC), 1 (STREAM) or 2 (DGRAM)",
            ),
            Self::V2AddressTooShort => facts(
                "v2_address_too_short",
                "PROXY 2.2",
                "declared length too short for the addresses: expected 12 (INET), 36 (INET6) or 216 (UNIX) or more",
            ),
            Self::V2TooLong => facts(
                "v2_too_long",
                "PROXY 2.2",
                "declared length makes the header longer than the limit set here",
            ),
            Self::TlvOverrun => facts(
                "tlv_overrun",
                "PROXY 2.2",
                "TLV reaches beyond the header: expected type, length and value within the declared length",
            ),
            Self::Crc32cLength => {
                facts("crc32c_length", "PROXY 2.2.3", "bad CRC32C length: expected 4 bytes")
            }
            Self::Crc32cTwice => facts("crc32c_twice", "PROXY 2.2.3", "second CRC32C: expected one at most"),
            Self::Crc32cMismatch => facts(
                "crc32c_mismatch",
                "PROXY 2.2.3",
                "wrong CRC32C: expected the checksum of the whole header",
            ),
            Self::UniqueIdTooLong => {
                facts("unique_id_too_long", "PROXY 2.2.5", "unique id too long: expected 128 bytes at most")
            }
            Self::SslTooShort => facts(
                "ssl_too_short",
                "PROXY 2.2.6",
                "SSL TLV too short: expected 5 bytes (client, verify) or more",
            ),
            Self::SslOverrun => facts(
                "ssl_overrun",
                "PROXY 2.2.6",
                "sub-TLV reaches beyond its SSL TLV: expected type, length and value within it",
            ),
            Self::SppMagic => facts("spp_magic", "SPP", "not an SPP header: expected 0x56 0xEC"),
        }
    }
}

impl fmt::Display for DecodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().text)
    }
}
