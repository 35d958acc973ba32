//! A request's head.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::authority::is_valid_host;
use super::error::HeadError;
use super::framing::{self, BodyLength, Said};
use super::limits::HttpLimits;
use super::scan::HeadEnd;
use crate::fields::{FieldList, FieldName, Span, span};

/// The most options of `Connection`. Each is compared with each field: a head of 32 KiB could have thousands.
const MOST_OPTIONS: usize = 64;

/// The versions of HTTP that a request may have come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HttpVersion {
    /// HTTP/1.0: no chunks, no 1xx, one request by default.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

/// What a client expects before it sends the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expectation {
    /// Nothing.
    #[default]
    None,
    /// `100-continue`.
    Continue,
    /// Something that nobody knows: 417.
    Unknown,
}

/// A request's head: one buffer, and where in it everything is. Used again for the next request.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// Its fields, as they came.
    pub fields: FieldList,
    /// Its version.
    pub version: HttpVersion,
    /// How its body ends.
    pub length: BodyLength,
    /// What the client waits for.
    pub expectation: Expectation,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
    /// Whether the client asks for another protocol, which its `Upgrade` field names.
    pub wants_upgrade: bool,
    method: Span,
    target: Span,
    host: Span,
}

impl RequestHead {
    /// Reads a head from `input`, which begins with one (or with the start of one); `end` remembers between
    /// calls where to look on, and is a new one for each request.
    ///
    /// Returns how many bytes of `input` it was, `None` while its end is still to come.
    ///
    /// # Errors
    /// The error in it. Nothing after it on the connection can be trusted.
    pub fn read(
        &mut self,
        input: &[u8],
        end: &mut HeadEnd,
        limits: &HttpLimits,
    ) -> Result<Option<usize>, HeadError> {
        let found = end.find(input, limits).map_err(|error| match error {
            HeadError::TooLong if !end.has_first_line() => HeadError::TargetTooLong,
            error => error,
        });
        let Some(head) = found? else { return Ok(None) };
        self.parse(&input[head.start..head.end], limits)?;
        Ok(Some(head.end))
    }

    /// The method, as it was written: it has a case.
    #[must_use]
    pub fn method(&self) -> &[u8] {
        self.fields.at(self.method)
    }

    /// The request target: a path with an optional query, or `*`.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.fields.at(self.target)
    }

    /// Which host is asked; empty in HTTP/1.0 without `Host`.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        self.fields.at(self.host)
    }

    /// Whether doing it twice is doing it once (RFC 9110 section 9.2.2).
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
    }

    /// Begins a head that came by HTTP/2, which has checked it; its fields are to be pushed, then
    /// [`Self::finish_http2`].
    pub fn begin_http2(&mut self, method: &[u8], target: &[u8], host: &[u8]) {
        self.fields.clear();
        self.method = self.fields.keep(method);
        self.target = self.fields.keep(target);
        self.host = self.fields.keep(host);
        self.version = HttpVersion::Http2;
    }

    /// Sets the method of a head that was begun for HTTP/2.
    pub(crate) fn set_method(&mut self, method: &[u8]) {
        self.method = self.fields.keep(method);
    }

    /// Sets its target.
    pub(crate) fn set_target(&mut self, target: &[u8]) {
        self.target = self.fields.keep(target);
    }

    /// Sets its host.
    pub(crate) fn set_host(&mut self, host: &[u8]) {
        self.host = self.fields.keep(host);
    }

    /// Checks what was begun for HTTP/2; `has_body`: the stream did not end with the head.
    ///
    /// # Errors
    /// Contradictory fields.
    pub fn finish_http2(&mut self, has_body: bool) -> Result<(), HeadError> {
        self.check_target()?;
        if !is_valid_host(self.host()) {
            return Err(HeadError::HostInvalid);
        }
        self.length = match framing::said(&self.fields, false)? {
            Said::Length(length) => BodyLength::Known(length),
            // RFC 9113 8.2.2: no connection-specific fields.
            Said::Chunked => return Err(HeadError::TransferEncoding),
            Said::Nothing if has_body => BodyLength::Chunked,
            Said::Nothing => BodyLength::None,
        };
        self.expectation = self.expected();
        self.keep_alive = true;
        self.wants_upgrade = false;
        Ok(())
    }

    fn parse(&mut self, head: &[u8], limits: &HttpLimits) -> Result<(), HeadError> {
        self.fields.clear();
        let mut space = [const { MaybeUninit::uninit() }; HttpLimits::MOST_FIELDS];
        let mut parsed = httparse::Request::new(&mut []);
        let most = limits.fields.min(HttpLimits::MOST_FIELDS);
        match parsed.parse_with_uninit_headers(head, &mut space[..most]) {
            Err(httparse::Error::Version) => return self.parse_other_version(head, limits),
            parsed => parsed.map_err(of_httparse)?,
        };
        let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
            return Err(HeadError::FirstLine);
        };
        if target.len() > limits.target_bytes {
            return Err(HeadError::TargetTooLong);
        }
        self.fields.keep(head);
        self.method = part(head, method.as_bytes());
        self.target = part(head, target.as_bytes());
        for field in parsed.headers.iter() {
            self.fields.mark(part(head, field.name.as_bytes()), part(head, field.value));
        }
        self.version = if minor == 0 { HttpVersion::Http10 } else { HttpVersion::Http11 };
        self.interpret()
    }

    /// RFC 9110 2.5: a higher minor version is served as 1.1, the highest one that is known. The origin is
    /// told 1.1. 505 is for another major version; what is no version at all is a bad first line.
    #[cold]
    fn parse_other_version(&mut self, head: &[u8], limits: &HttpLimits) -> Result<(), HeadError> {
        let end = memchr::memchr(b'\r', head).unwrap_or(head.len());
        let mut words = head[..end].split(|&byte| byte == b' ');
        let (_, _, Some(version), None) = (words.next(), words.next(), words.next(), words.next()) else {
            return Err(HeadError::FirstLine);
        };
        match version {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
                let mut head = head.to_vec();
                head[end - 1] = b'1';
                self.parse(&head, limits)
            }
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Err(HeadError::Version),
            _ => Err(HeadError::FirstLine),
        }
    }

    /// Interprets the fields.
    fn interpret(&mut self) -> Result<(), HeadError> {
        if self.fields.elements(FieldName::Connection).nth(MOST_OPTIONS).is_some() {
            return Err(HeadError::TooManyFields);
        }
        self.check_host()?;
        self.check_target()?;
        let is_http_10 = self.version == HttpVersion::Http10;
        self.length = match framing::said(&self.fields, is_http_10)? {
            Said::Nothing => BodyLength::None,
            Said::Length(length) => BodyLength::Known(length),
            Said::Chunked => BodyLength::Chunked,
        };
        let says = |option: &[u8]| {
            self.fields.elements(FieldName::Connection).any(|element| element.eq_ignore_ascii_case(option))
        };
        self.keep_alive = !says(b"close") && (!is_http_10 || says(b"keep-alive"));
        self.wants_upgrade = says(b"upgrade") && self.may_upgrade();
        // RFC 9110 10.1.1: in HTTP/1.0 it is ignored.
        self.expectation = if is_http_10 { Expectation::None } else { self.expected() };
        Ok(())
    }

    /// h2c would let requests past us unseen. A body belongs to the request: the switch follows it (RFC 9110
    /// 7.8).
    fn may_upgrade(&self) -> bool {
        let mut protocols = self.fields.elements(FieldName::Upgrade).peekable();
        self.version == HttpVersion::Http11
            && protocols.peek().is_some()
            && protocols.all(|protocol| !protocol.get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"h2")))
    }

    fn expected(&self) -> Expectation {
        let mut values = self.fields.values(FieldName::Expect);
        match (values.next(), values.next()) {
            (None, _) => Expectation::None,
            (Some(value), None) if value.eq_ignore_ascii_case(b"100-continue") => Expectation::Continue,
            _ => Expectation::Unknown,
        }
    }

    fn check_host(&mut self) -> Result<(), HeadError> {
        let mut hosts = self.fields.spans(FieldName::Host);
        let (first, second) = (hosts.next(), hosts.next());
        self.host = match (first, second) {
            (_, Some(_)) => return Err(HeadError::HostRepeated),
            (None, None) if self.version == HttpVersion::Http11 => return Err(HeadError::HostMissing),
            (None, None) => Span::default(),
            (Some(host), None) => host,
        };
        if first.is_some() && !is_valid_host(self.fields.at(self.host)) {
            return Err(HeadError::HostInvalid);
        }
        Ok(())
    }

    /// RFC 9112 3.2: a path, or (to be taken by every server) a whole URL, whose host has to be the one in
    /// `Host`.
    ///
    /// CONNECT has none of these forms. Whatever its target, an origin that agrees makes a tunnel of the
    /// connection (RFC 9110 section 9.3.6), which would then be somebody else's next. Nor may an origin
    /// that doesn't look at the case.
    fn check_target(&mut self) -> Result<(), HeadError> {
        if self.method().eq_ignore_ascii_case(b"CONNECT") {
            return Err(HeadError::Target);
        }
        let target = self.fields.at(self.target);
        // RFC 3986 has ASCII only, but clients send UTF-8 as it is, and servers take it. A fragment never
        // goes to an origin.
        let is_taken = |byte: &u8| !byte.is_ascii() || byte.is_ascii_graphic() && *byte != b'#';
        if !target.iter().all(is_taken) || std::str::from_utf8(target).is_err() {
            return Err(HeadError::Target);
        }
        match target {
            [b'/', ..] => Ok(()),
            b"*" if self.method() == b"OPTIONS" => Ok(()),
            // RFC 9113 8.3.1: ":path" has no scheme and no host, which have fields of their own.
            _ if self.version == HttpVersion::Http2 => Err(HeadError::Target),
            _ => self.take_absolute(),
        }
    }

    fn take_absolute(&mut self) -> Result<(), HeadError> {
        let target = self.fields.at(self.target);
        let scheme_end = ["http://", "https://"].iter().find_map(|scheme| {
            let start = target.get(..scheme.len())?;
            start.eq_ignore_ascii_case(scheme.as_bytes()).then_some(scheme.len())
        });
        let after_scheme = scheme_end.ok_or(HeadError::Target)?;
        let rest = &target[after_scheme..];
        let host_end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
        if !is_valid_host(&rest[..host_end]) {
            return Err(HeadError::HostInvalid);
        }
        if !rest[..host_end].eq_ignore_ascii_case(self.host()) && self.version != HttpVersion::Http10 {
            return Err(HeadError::HostDisagrees);
        }
        let path = match &rest[host_end..] {
            [] if self.method() == b"OPTIONS" => b"*".to_vec(),
            query @ ([] | [b'?', ..]) => [b"/", query].concat(),
            path => path.to_vec(),
        };
        let host = rest[..host_end].to_vec();
        self.target = self.fields.keep(&path);
        self.host = self.fields.keep(&host);
        Ok(())
    }
}

/// Where `part` is within `head`, of which it was made.
pub(super) fn part(head: &[u8], part: &[u8]) -> Span {
    let Range { start, end } = head.as_ptr_range();
    let at = part.as_ptr();
    debug_assert!((start..=end).contains(&at));
    span(at.addr() - start.addr(), part.len())
}

pub(super) fn of_httparse(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine => {
            HeadError::Field
        }
        httparse::Error::Version => HeadError::Version,
        httparse::Error::Status => HeadError::Status,
        httparse::Error::Token => HeadError::FirstLine,
    }
}
