//! The words of a version 1 line that were refused.

use core::fmt;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::text::Text;

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

impl DecodeError {
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
