//! Where a head ends.

use super::error::HeadError;
use super::limits::HttpLimits;

/// Looks for the empty line that ends a head, and never looks at a byte twice, however slowly they come.
///
/// Every line must end in CRLF. The scan fails at the first LF without a CR. Otherwise truepeer would wait
/// for the rest of a head that has bare LFs, because its empty line is not recognised.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadEnd {
    /// So many bytes are known.
    seen: usize,
    /// Where the line that is being read begins.
    line: usize,
    /// An empty line that was skipped before the first (RFC 9112 2.2: "SHOULD ignore at least one").
    skipped: usize,
}

/// A whole head within a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    /// Where its first line begins.
    pub(super) start: usize,
    /// Just after the empty line.
    pub(super) end: usize,
}

impl HeadEnd {
    /// Looks on. `input` begins with the same bytes at each call until a head was found; `None`: it has no
    /// end yet.
    pub(super) fn find(&mut self, input: &[u8], limits: &HttpLimits) -> Result<Option<Whole>, HeadError> {
        while let Some(offset) = memchr::memchr(b'\n', input.get(self.seen..).unwrap_or_default()) {
            let at = self.seen + offset;
            self.seen = at + 1;
            if at == self.line || input[at - 1] != b'\r' {
                return Err(HeadError::BareLf);
            }
            let is_empty = at == self.line + 1;
            self.line = at + 1;
            match (is_empty, self.skipped == at - 1) {
                (false, _) => {}
                (true, false) => return within(Whole { start: self.skipped, end: at + 1 }, limits).map(Some),
                (true, true) if self.skipped > 0 => return Err(HeadError::EmptyLines),
                (true, true) => self.skipped = 2,
            }
        }
        self.seen = input.len();
        within(Whole { start: self.skipped.min(input.len()), end: input.len() }, limits).map(|_| None)
    }

    /// Whether anything of a head has come: an empty line before one is nothing.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.seen > self.skipped
    }

    /// Whether the first line has come whole: if not, it is the target that is too long.
    pub(super) fn has_first_line(&self) -> bool {
        self.line > self.skipped
    }
}

fn within(head: Whole, limits: &HttpLimits) -> Result<Whole, HeadError> {
    if head.end - head.start > limits.head_bytes { Err(HeadError::TooLong) } else { Ok(head) }
}
