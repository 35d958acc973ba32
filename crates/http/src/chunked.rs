//! Chunks: RFC 9112 section 7.1, to the letter.

use super::error::{BodyError, HeadError};
use super::limits::HttpLimits;
use super::piece::Piece;
use super::scan::HeadEnd;
use crate::fields::{FieldList, FieldName};

/// Where in a chunked body we are.
#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: State,
    /// Bytes of extensions so far: of the body, or of the chunk in a response, whose origin is the
    /// operator's own.
    extensions: usize,
    /// Zeros may lead a size and blanks follow it: some origins pad it. In a request they could hide one from
    /// another parser.
    is_response: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// In a size: its value so far, and how many digits it has.
    Size {
        size: u64,
        digits: u8,
    },
    /// In the blanks after a size.
    Padding {
        size: u64,
    },
    /// In the extensions of a chunk of that size.
    Extension {
        size: u64,
    },
    /// After the CR of a size's line.
    SizeLf {
        size: u64,
    },
    /// Inside a chunk with `left` bytes to come.
    Data {
        left: u64,
    },
    /// After a chunk.
    DataCr,
    DataLf,
    /// After the last chunk.
    Trailers(HeadEnd),
    Ended,
}

const SIZE: State = State::Size { size: 0, digits: 0 };
/// Sizes below 2^63 have no more; a request's leading zeros count.
const MOST_DIGITS: u8 = 16;

impl Chunked {
    pub(super) fn new(is_response: bool) -> Self {
        Self { state: SIZE, extensions: 0, is_response }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The next piece of `input`, which goes on where the last piece ended. Trailers are added to `trailers`.
    pub(super) fn next(
        &mut self,
        input: &[u8],
        trailers: &mut FieldList,
        limits: &HttpLimits,
    ) -> Result<Piece, BodyError> {
        let mut at = 0;
        loop {
            match self.state {
                State::Data { left } if at < input.len() => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len() - at);
                    let left = left - len as u64;
                    self.state = if left == 0 { State::DataCr } else { State::Data { left } };
                    return Ok(Piece::Data { skip: at, len });
                }
                State::Trailers(ref mut end) => {
                    let Some(len) = read_trailers(&input[at..], end, trailers, limits)? else {
                        return Ok(Piece::More { skip: at });
                    };
                    self.state = State::Ended;
                    return Ok(Piece::End { skip: at + len });
                }
                State::Ended => return Ok(Piece::End { skip: at }),
                _ => {
                    let Some(&byte) = input.get(at) else { return Ok(Piece::More { skip: at }) };
                    self.state = self.on_byte(byte, limits)?;
                    at += 1;
                }
            }
        }
    }

    /// One byte of what stands between the data.
    fn on_byte(&mut self, byte: u8, limits: &HttpLimits) -> Result<State, BodyError> {
        Ok(match (self.state, byte) {
            // RFC 9112 7.1 sets no limit to leading zeros, by which some origins fill a field of fixed width.
            (State::Size { size: 0, digits: 1 }, b'0') if self.is_response => {
                self.count_extension(limits)?;
                self.state
            }
            (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < MOST_DIGITS => {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                let size = size.checked_mul(16).and_then(|size| size.checked_add(digit.into()));
                let size = size.filter(|&size| size <= i64::MAX as u64).ok_or(BodyError::ChunkSize)?;
                State::Size { size, digits: digits + 1 }
            }
            (State::Size { size, digits: 1.. } | State::Padding { size }, b'\r') => State::SizeLf { size },
            (State::Size { size, digits: 1.. } | State::Padding { size }, b';') => State::Extension { size },
            (State::Size { size, digits: 1.. } | State::Padding { size }, b' ' | b'\t')
                if self.is_response =>
            {
                self.count_extension(limits)?;
                State::Padding { size }
            }
            (State::Size { .. } | State::Padding { .. }, _) => return Err(BodyError::ChunkSize),
            (State::Extension { size }, b'\r') => State::SizeLf { size },
            (State::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.count_extension(limits)?;
                State::Extension { size }
            }
            (State::Extension { .. }, _) => return Err(BodyError::ChunkExtension),
            (State::SizeLf { size: 0 }, b'\n') => State::Trailers(HeadEnd::default()),
            (State::SizeLf { size }, b'\n') => State::Data { left: size },
            (State::SizeLf { .. }, _) => return Err(BodyError::ChunkSize),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => {
                if self.is_response {
                    self.extensions = 0;
                }
                SIZE
            }
            (State::DataCr | State::DataLf, _) => return Err(BodyError::ChunkEnd),
            (State::Data { .. } | State::Trailers(_) | State::Ended, _) => self.state,
        })
    }

    fn count_extension(&mut self, limits: &HttpLimits) -> Result<(), BodyError> {
        self.extensions += 1;
        let is_too_long = self.extensions > limits.chunk_extension_bytes;
        if is_too_long { Err(BodyError::ChunkExtensionsTooLong) } else { Ok(()) }
    }
}

/// Reads the trailer section at the start of `input`; `None` while its end is still to come.
fn read_trailers(
    input: &[u8],
    end: &mut HeadEnd,
    trailers: &mut FieldList,
    limits: &HttpLimits,
) -> Result<Option<usize>, BodyError> {
    // Usually there are no trailers. HeadEnd can't see that: it skips an empty line at the start, as before a
    // head.
    match input {
        [] | [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => return Ok(Some(2)),
        _ => {}
    }
    let limits_of_head = HttpLimits { head_bytes: limits.trailer_bytes, ..*limits };
    let found = end.find(input, &limits_of_head).map_err(|error| match error {
        HeadError::TooLong => BodyError::TrailersTooLong,
        _ => BodyError::Trailers,
    });
    let Some(section) = found? else { return Ok(None) };
    parse_trailers(&input[..section.end], trailers, limits)?;
    Ok(Some(section.end))
}

fn parse_trailers(section: &[u8], trailers: &mut FieldList, limits: &HttpLimits) -> Result<(), BodyError> {
    let mut space = vec![httparse::EMPTY_HEADER; limits.fields.min(HttpLimits::MOST_FIELDS)];
    match httparse::parse_headers(section, &mut space) {
        Ok(httparse::Status::Complete((_, fields))) => {
            for field in fields {
                // RFC 9110 6.5.1: nothing that decides on framing, routing, or who the client is.
                if FieldName::of(field.name.as_bytes()) == FieldName::Other {
                    trailers.push(field.name.as_bytes(), field.value);
                }
            }
            Ok(())
        }
        Ok(httparse::Status::Partial) => Err(BodyError::Trailers),
        Err(httparse::Error::TooManyHeaders) => Err(BodyError::TrailersTooLong),
        Err(_) => Err(BodyError::Trailers),
    }
}
