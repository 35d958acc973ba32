//! Strings in a header: sent by somebody else, and not always what the specification says they are.

use core::fmt;

/// Bytes that should be US-ASCII or UTF-8 (PROXY 2.2.2, 2.2.6, 2.2.7), but need not be: a wrong string is no
/// reason to refuse a connection, and none to panic (CVE-2024-23324).
///
/// `Display` is safe to log: what is not printable is escaped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// As sent.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string.
    ///
    /// # Errors
    /// If the sender broke the rule that it be UTF-8.
    pub const fn to_str(self) -> Result<&'a str, core::str::Utf8Error> {
        core::str::from_utf8(self.0)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    _ if character.is_control() => write!(f, "{}", character.escape_default())?,
                    _ => write!(f, "{character}")?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
