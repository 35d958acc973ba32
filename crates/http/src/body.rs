//! Bodies: which bytes of a stream are data, and where they end.

use super::chunked::Chunked;
use super::error::BodyError;
use super::framing::BodyLength;
use super::limits::HttpLimits;
use super::piece::Piece;
use crate::fields::FieldList;

/// Takes a body out of a stream of bytes.
#[derive(Debug, Clone)]
pub struct BodyDecoder {
    kind: Kind,
    /// Of a chunked body; empty before its end.
    pub trailers: FieldList,
}

#[derive(Debug, Clone)]
enum Kind {
    Known { left: u64 },
    Chunked(Chunked),
    UntilClose,
}

impl BodyDecoder {
    /// For a request's body of that length.
    #[must_use]
    pub fn new(length: BodyLength) -> Self {
        Self::with(length, false)
    }

    /// For a response's body of that length. RFC 9112 7.1.1: blanks may follow a chunk's size, and zeros may
    /// lead it, as some servers write it into a field of fixed width.
    #[must_use]
    pub fn of_response(length: BodyLength) -> Self {
        Self::with(length, true)
    }

    fn with(length: BodyLength, may_be_padded: bool) -> Self {
        let kind = match length {
            BodyLength::None => Kind::Known { left: 0 },
            BodyLength::Known(left) => Kind::Known { left },
            BodyLength::Chunked => Kind::Chunked(Chunked::new(may_be_padded)),
            BodyLength::UntilClose => Kind::UntilClose,
        };
        Self { kind, trailers: FieldList::default() }
    }

    /// Looks at `input`, which goes on where the last piece ended.
    ///
    /// # Errors
    /// The error in the body. Nothing after it can be trusted.
    pub fn next(&mut self, input: &[u8], limits: &HttpLimits) -> Result<Piece, BodyError> {
        match &mut self.kind {
            Kind::Known { left: 0 } => Ok(Piece::End { skip: 0 }),
            _ if input.is_empty() => Ok(Piece::More { skip: 0 }),
            Kind::Known { left } => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= len as u64;
                Ok(Piece::Data { skip: 0, len })
            }
            Kind::Chunked(chunked) => chunked.next(input, &mut self.trailers, limits),
            Kind::UntilClose => Ok(Piece::Data { skip: 0, len: input.len() }),
        }
    }

    /// Whether the end of the body was found.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.kind {
            Kind::Known { left } => *left == 0,
            Kind::Chunked(chunked) => chunked.has_ended(),
            Kind::UntilClose => false,
        }
    }

    /// Whether the end of the stream is the end of the body.
    #[must_use]
    pub fn ends_with_the_stream(&self) -> bool {
        matches!(self.kind, Kind::UntilClose | Kind::Known { left: 0 })
    }
}
