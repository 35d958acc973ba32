//! A response's head.

use std::mem::MaybeUninit;

use super::error::HeadError;
use super::framing::{self, BodyLength, Said};
use super::limits::HttpLimits;
use super::request::{of_httparse, part};
use super::scan::HeadEnd;
use crate::fields::{FieldList, FieldName, Span};

/// A response's head: one buffer, and where in it everything is. Used again for the next response.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    /// Its fields, as they came.
    pub fields: FieldList,
    /// Its status, 100 to 999.
    pub status: u16,
    /// How its body ends.
    pub length: BodyLength,
    /// What `Content-Length` says where there is no body, since it was asked for by HEAD or is not modified.
    pub announced: Option<u64>,
    /// Whether the connection can be used again after the body.
    pub keep_alive: bool,
    reason: Span,
}

impl ResponseHead {
    /// Reads a head from `input`, as [`super::RequestHead::read`] does; `is_head`: it answers HEAD.
    ///
    /// # Errors
    /// The error in it.
    pub fn read(
        &mut self,
        input: &[u8],
        end: &mut HeadEnd,
        is_head: bool,
        limits: &HttpLimits,
    ) -> Result<Option<usize>, HeadError> {
        let Some(head) = end.find(input, limits)? else { return Ok(None) };
        // RFC 9112 2.2 speaks of empty lines before requests only.
        if head.start > 0 {
            return Err(HeadError::EmptyLines);
        }
        self.parse(&input[..head.end], is_head, limits)?;
        Ok(Some(head.end))
    }

    /// The words after the status, which may be none.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        self.fields.at(self.reason)
    }

    /// 1xx: the answer itself is still to come (after 101: is another protocol).
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Begins a head that came by HTTP/2, which has checked it; its fields are to be pushed, then
    /// [`Self::finish_http2`]. HTTP/2 has no `reason`: it is the one that clients of HTTP/1 are told.
    pub fn begin_http2(&mut self, status: u16, reason: &[u8]) {
        self.fields.clear();
        self.status = status;
        self.reason = self.fields.keep(reason);
    }

    /// Checks what was begun for HTTP/2; `has_body`: the stream did not end with the head; `is_head`: it
    /// answers HEAD.
    ///
    /// # Errors
    /// Contradictory fields.
    pub fn finish_http2(&mut self, has_body: bool, is_head: bool) -> Result<(), HeadError> {
        let said = framing::said(&self.fields, false)?;
        // RFC 9113 8.2.2: no connection-specific fields.
        if said == Said::Chunked {
            return Err(HeadError::TransferEncoding);
        }
        self.take_length(said, is_head);
        self.length = match self.length {
            // The stream's end is the body's.
            BodyLength::UntilClose if has_body => BodyLength::Chunked,
            BodyLength::UntilClose => BodyLength::Known(0),
            length => length,
        };
        self.keep_alive = true;
        Ok(())
    }

    fn parse(&mut self, head: &[u8], is_head: bool, limits: &HttpLimits) -> Result<(), HeadError> {
        self.fields.clear();
        let mut space = [const { MaybeUninit::uninit() }; HttpLimits::MOST_FIELDS];
        let mut parsed = httparse::Response::new(&mut []);
        let most = limits.fields.min(HttpLimits::MOST_FIELDS);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut parsed, head, &mut space[..most]) {
            Err(httparse::Error::Version) => return self.parse_other_version(head, is_head, limits),
            parsed => parsed.map_err(of_httparse)?,
        };
        let (Some(status), Some(minor)) = (parsed.code, parsed.version) else {
            return Err(HeadError::FirstLine);
        };
        if status < 100 {
            return Err(HeadError::Status);
        }
        self.fields.keep(head);
        self.status = status;
        // httparse drops a reason that is not ASCII. It has checked that the line is "HTTP/1.x NNN[ reason]".
        let line = &head[..memchr::memchr(b'\r', head).unwrap_or(head.len())];
        self.reason =
            line.get("HTTP/1.1 200 ".len()..).map_or_else(Span::default, |reason| part(head, reason));
        for field in parsed.headers.iter() {
            self.fields.mark(part(head, field.name.as_bytes()), part(head, field.value));
        }
        self.interpret(minor == 0, is_head)
    }

    /// RFC 9110 2.5: a higher minor version is read as 1.1, the highest one that is known.
    #[cold]
    fn parse_other_version(
        &mut self,
        head: &[u8],
        is_head: bool,
        limits: &HttpLimits,
    ) -> Result<(), HeadError> {
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9', b' ', ..] = head else {
            return Err(HeadError::Version);
        };
        let mut head = head.to_vec();
        head["HTTP/1.".len()] = b'1';
        self.parse(&head, is_head, limits)
    }

    /// RFC 9112 6.3, in its order.
    fn interpret(&mut self, is_http_10: bool, is_head: bool) -> Result<(), HeadError> {
        self.take_length(framing::said(&self.fields, is_http_10)?, is_head);
        let says = |option: &[u8]| {
            self.fields.elements(FieldName::Connection).any(|element| element.eq_ignore_ascii_case(option))
        };
        self.keep_alive =
            self.length != BodyLength::UntilClose && !says(b"close") && (!is_http_10 || says(b"keep-alive"));
        Ok(())
    }

    fn take_length(&mut self, said: Said, is_head: bool) {
        let has_no_body = is_head || self.is_interim() || matches!(self.status, 204 | 304);
        self.announced = match said {
            Said::Length(length) if is_head || self.status == 304 => Some(length),
            _ => None,
        };
        self.length = match said {
            _ if has_no_body => BodyLength::None,
            Said::Chunked => BodyLength::Chunked,
            Said::Length(length) => BodyLength::Known(length),
            Said::Nothing => BodyLength::UntilClose,
        };
    }
}
