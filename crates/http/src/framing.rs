//! How a message's body ends: RFC 9112 section 6.3, without its leniencies.

use super::error::HeadError;
use crate::fields::{FieldList, FieldName};

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyLength {
    /// There is none, whatever the fields say.
    #[default]
    None,
    /// So many bytes.
    Known(u64),
    /// In chunks, and then trailers.
    Chunked,
    /// Until the connection ends; of responses only.
    UntilClose,
}

/// The framing that the fields specify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Length(u64),
    Chunked,
}

/// Reads `Content-Length` and `Transfer-Encoding`; each at most once, never both.
pub(super) fn said(fields: &FieldList, is_http_10: bool) -> Result<Said, HeadError> {
    let mut lengths = fields.values(FieldName::ContentLength);
    let mut codings = fields.values(FieldName::TransferEncoding);
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Said::Nothing),
        // RFC 9112 6.3: such a message "ought to be handled as an error".
        (Some(_), Some(_)) => Err(HeadError::TwoLengths),
        (Some(length), None) => match (decimal(length), lengths.next()) {
            (Some(length), None) => Ok(Said::Length(length)),
            _ => Err(HeadError::ContentLength),
        },
        // RFC 9112 6.1: in HTTP/1.0 it is faulty framing.
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") && !is_http_10 => {
            match codings.next() {
                None => Ok(Said::Chunked),
                Some(_) => Err(HeadError::TransferEncoding),
            }
        }
        (None, Some(_)) => Err(HeadError::TransferEncoding),
    }
}

/// Digits only, below 2^63: no sign, no list, no space, which `parse` would not refuse all.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|&length| length <= i64::MAX as u64)
}
