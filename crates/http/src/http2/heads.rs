//! Reads the fields of one block as RFC 9113 section 8 demands them.

use super::hpack::Decoded;
use super::priority::Priority;
use super::text::is_token;
use crate::fields::{FieldList, FieldName};
use crate::framing::BodyLength;
use crate::{HeadError, HttpLimits, RequestHead, ResponseHead, status_words};

/// What a field's line has besides its text in HTTP/1.1, whose limits these are.
const FIELD_BYTES: usize = ": \r\n".len();
/// The same for the lines that every request has: the first one, `Host`, and the empty one.
const REQUEST_BYTES: usize = "  HTTP/1.1\r\nHost: \r\n\r\n".len();
const BETWEEN_COOKIES: &[u8] = b"; ";

/// Why fields are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// They violate the protocol (RFC 9113 section 8.1.1).
    Malformed,
    /// They are more than the limits of heads allow, which the other end needn't know (RFC 9113 section
    /// 10.5.1).
    Excess(HeadError),
}

type Taken = Result<(), HeadFault>;

/// What the fields may still take of the limits.
#[derive(Debug)]
struct Left {
    bytes: usize,
    fields: usize,
}

impl Left {
    fn of(limits: &HttpLimits) -> Self {
        Self { bytes: limits.head_bytes, fields: limits.fields }
    }

    fn take(&mut self, bytes: usize, fields: usize) -> Taken {
        let left = |left: usize, taken: usize, error| left.checked_sub(taken).ok_or(HeadFault::Excess(error));
        self.bytes = left(self.bytes, bytes, HeadError::TooLong)?;
        self.fields = left(self.fields, fields, HeadError::TooManyFields)?;
        Ok(())
    }

    fn take_field(&mut self, field: Decoded<'_>) -> Taken {
        self.take(field.name.len() + field.value.len() + FIELD_BYTES, 1)
    }
}

/// RFC 9113 8.2.2: no connection-specific fields. Their names have no other meaning in a trailer.
fn is_of_connection(field: Decoded<'_>) -> bool {
    match field.kind {
        FieldName::Connection | FieldName::TransferEncoding | FieldName::Upgrade => true,
        FieldName::OneHop => matches!(field.name, b"keep-alive" | b"proxy-connection"),
        FieldName::Te => field.value != b"trailers",
        _ => false,
    }
}

fn check(field: Decoded<'_>) -> Taken {
    let is_pseudo = field.name.first() == Some(&b':');
    let is_fine = field.is_valid && !is_pseudo && !is_of_connection(field);
    if is_fine { Ok(()) } else { Err(HeadFault::Malformed) }
}

/// What a response's head of valid fields counts against its limit.
pub(super) fn head_bytes(head: &ResponseHead) -> usize {
    head.fields.iter().map(|field| field.spelt.len() + field.value.len() + FIELD_BYTES).sum()
}

/// A response's head.
pub(super) struct ResponseReader<'a> {
    head: &'a mut ResponseHead,
    left: Left,
    has_status: bool,
    taken: Taken,
}

impl<'a> ResponseReader<'a> {
    pub(super) fn new(head: &'a mut ResponseHead, limits: &HttpLimits) -> Self {
        Self { head, left: Left::of(limits), has_status: false, taken: Ok(()) }
    }

    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if self.taken.is_ok() {
            self.taken = self.take(field);
        }
    }

    fn take(&mut self, field: Decoded<'_>) -> Taken {
        if field.name == b":status" {
            self.left.take(field.name.len() + field.value.len() + FIELD_BYTES, 0)?;
            let status = match field.value {
                &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] if !self.has_status => {
                    [a, b, c].iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'))
                }
                _ => return Err(HeadFault::Malformed),
            };
            self.head.begin_http2(status, status_words(status).as_bytes());
            self.has_status = true;
            return Ok(());
        }
        self.left.take_field(field)?;
        check(field)?;
        if !self.has_status {
            return Err(HeadFault::Malformed);
        }
        self.head.fields.push_known(field.kind, field.name, field.value.trim_ascii());
        Ok(())
    }

    pub(super) fn finish(self) -> Taken {
        self.taken.and(if self.has_status { Ok(()) } else { Err(HeadFault::Malformed) })
    }
}

/// The trailers of either end.
pub(super) struct TrailerReader<'a> {
    list: &'a mut FieldList,
    left: Left,
    taken: Taken,
}

impl<'a> TrailerReader<'a> {
    pub(super) fn new(list: &'a mut FieldList, limits: &HttpLimits) -> Self {
        Self { list, left: Left::of(limits), taken: Ok(()) }
    }

    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if self.taken.is_ok() {
            self.taken = self.left.take_field(field).and_then(|()| check(field));
            // RFC 9110 6.5.1: a trailer must not change the framing, the routing, or the client's identity.
            if self.taken.is_ok() && field.kind == FieldName::Other {
                self.list.push_known(field.kind, field.name, field.value.trim_ascii());
            }
        }
    }

    pub(super) fn finish(self) -> Taken {
        self.taken
    }
}

/// Which pseudo-fields have come.
#[derive(Debug, Default, Clone, Copy)]
struct Pseudo {
    method: bool,
    scheme: bool,
    authority: bool,
    path: bool,
    /// `Some(true)`: `websocket`.
    protocol: Option<bool>,
}

/// A request's head.
pub(super) struct RequestReader<'a> {
    head: &'a mut RequestHead,
    cookies: &'a mut Vec<u8>,
    limits: &'a HttpLimits,
    left: Left,
    pseudo: Pseudo,
    has_fields: bool,
    has_host: bool,
    has_cookies: bool,
    /// Why the request is answered with an error, unless something is worse.
    refused: Option<HeadError>,
    pub(super) priority: Priority,
    taken: Taken,
}

impl<'a> RequestReader<'a> {
    /// `cookies`: memory for those of one request.
    pub(super) fn new(head: &'a mut RequestHead, cookies: &'a mut Vec<u8>, limits: &'a HttpLimits) -> Self {
        head.begin_http2(b"", b"", b"");
        cookies.clear();
        let mut left = Left::of(limits);
        let taken = left.take(REQUEST_BYTES, 0);
        Self {
            head,
            cookies,
            limits,
            left,
            pseudo: Pseudo::default(),
            has_fields: false,
            has_host: false,
            has_cookies: false,
            refused: None,
            priority: Priority::default(),
            taken,
        }
    }

    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if self.taken.is_ok() {
            self.taken = match field.name {
                [b':', name @ ..] => self.pseudo(name, field.value),
                _ => self.regular(field),
            };
        }
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Taken {
        let Self { head, pseudo, .. } = self;
        // RFC 9113 8.3: before the other fields, each once.
        let (is_first, is_fine) = match name {
            b"method" => (!std::mem::replace(&mut pseudo.method, true), is_token(value)),
            // An HTTP origin can't serve any other scheme.
            b"scheme" => {
                let is_http = value.eq_ignore_ascii_case(b"https") || value.eq_ignore_ascii_case(b"http");
                (!std::mem::replace(&mut pseudo.scheme, true), is_http)
            }
            b"authority" => (!std::mem::replace(&mut pseudo.authority, true), true),
            // RFC 9113 8.3.1: path and query, which is not empty. A fragment is not allowed.
            b"path" => {
                let is_path = !value.is_empty() && !value.contains(&b'#');
                (!std::mem::replace(&mut pseudo.path, true), is_path)
            }
            b"protocol" => (pseudo.protocol.replace(value == b"websocket").is_none(), true),
            _ => (false, false),
        };
        if self.has_fields || !is_first || !is_fine {
            return Err(HeadFault::Malformed);
        }
        match name {
            b"method" => head.set_method(value),
            b"path" if value.len() > self.limits.target_bytes => {
                self.refused = Some(HeadError::TargetTooLong)
            }
            b"path" => head.set_target(value),
            b"authority" => head.set_host(value),
            _ => return Ok(()),
        }
        self.left.take(value.len(), 0)
    }

    fn regular(&mut self, field: Decoded<'_>) -> Taken {
        self.has_fields = true;
        check(field)?;
        let value = field.value.trim_ascii();
        match field.kind {
            FieldName::Host => return self.host(value),
            FieldName::Guarded if field.name == b"cookie" => return self.cookie(value),
            FieldName::Other if field.name == b"priority" => self.priority = Priority::of(value),
            FieldName::Other if self.is_websocket() && is_of_handshake(field.name) => return Ok(()),
            _ => {}
        }
        self.left.take_field(field)?;
        self.head.fields.push_known(field.kind, field.name, value);
        Ok(())
    }

    /// RFC 9113 8.3.1: it must not differ from `:authority`.
    fn host(&mut self, value: &[u8]) -> Taken {
        if std::mem::replace(&mut self.has_host, true) {
            self.refused = Some(HeadError::HostRepeated);
        } else if !self.pseudo.authority {
            self.left.take(value.len(), 0)?;
            self.head.set_host(value);
        } else if !value.eq_ignore_ascii_case(self.head.host()) {
            self.refused = Some(HeadError::HostDisagrees);
        }
        Ok(())
    }

    /// RFC 9113 8.2.3: cookies may come as several fields. HTTP/1.1 has one.
    fn cookie(&mut self, value: &[u8]) -> Taken {
        if std::mem::replace(&mut self.has_cookies, true) {
            self.left.take(BETWEEN_COOKIES.len(), 0)?;
        } else {
            self.left.take("cookie".len() + FIELD_BYTES, 1)?;
        }
        if !(self.cookies.is_empty() || value.is_empty()) {
            self.cookies.extend_from_slice(BETWEEN_COOKIES);
        }
        self.left.take(value.len(), 0)?;
        self.cookies.extend_from_slice(value);
        Ok(())
    }

    fn is_websocket(&self) -> bool {
        self.pseudo.protocol == Some(true) && self.head.method() == b"CONNECT"
    }

    /// `ends_stream`: the request has no body. Returns why it is answered with an error.
    pub(super) fn finish(self, ends_stream: bool) -> Result<Option<HeadError>, HeadFault> {
        match self.taken {
            Err(HeadFault::Excess(error)) => return Ok(Some(error)),
            taken => taken?,
        }
        let Pseudo { method, scheme, path, protocol, .. } = self.pseudo;
        let is_connect = self.head.method() == b"CONNECT";
        let is_whole = method && ((scheme && path) || (is_connect && protocol.is_none()));
        if !is_whole || (protocol.is_some() && !is_connect) {
            return Err(HeadFault::Malformed);
        }
        if !self.pseudo.authority && !self.has_host {
            return Ok(Some(HeadError::HostMissing));
        }
        if self.refused.is_some() {
            return Ok(self.refused);
        }
        if !self.cookies.is_empty() {
            self.head.fields.push_known(FieldName::Guarded, b"cookie", self.cookies);
        }
        let is_websocket = self.is_websocket();
        if is_websocket {
            self.head.set_method(b"GET");
        }
        // The bytes of a WebSocket are no body.
        if let Err(error) = self.head.finish_http2(!ends_stream && !is_websocket) {
            return Ok(Some(error));
        }
        match self.head.length {
            // RFC 9113 8.1.1: the request has ended before its length.
            BodyLength::Known(1..) if ends_stream => Err(HeadFault::Malformed),
            // A length would make a body of a WebSocket's first bytes.
            length if is_websocket && length != BodyLength::None => Ok(Some(HeadError::Target)),
            _ => {
                self.head.wants_upgrade = is_websocket;
                Ok(None)
            }
        }
    }
}

/// Whether a field of a WebSocket's handshake is of HTTP/1.1 only (RFC 8441 section 5).
pub(super) fn is_of_handshake(name: &[u8]) -> bool {
    [&b"sec-websocket-key"[..], b"sec-websocket-accept"].iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::super::encode::write_field;
    use super::super::hpack::Decoder;
    use super::*;

    /// A block of literals, valid or not.
    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            if write_field(&mut block, name.as_bytes(), value.as_bytes())
                && name.bytes().all(|byte| !byte.is_ascii_uppercase())
            {
                continue;
            }
            let length = |text: &str| u8::try_from(text.len()).unwrap();
            block.extend([&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat());
        }
        block
    }

    fn response(fields: &[(&str, &str)]) -> Taken {
        let (mut head, limits) = (ResponseHead::default(), HttpLimits::default());
        let mut reader = ResponseReader::new(&mut head, &limits);
        Decoder::new().read(&block(fields), |field| reader.field(field)).unwrap();
        reader.finish()
    }

    fn trailers(fields: &[(&str, &str)]) -> (Taken, usize) {
        let (mut list, limits) = (FieldList::default(), HttpLimits::default());
        let mut reader = TrailerReader::new(&mut list, &limits);
        Decoder::new().read(&block(fields), |field| reader.field(field)).unwrap();
        (reader.finish(), list.len())
    }

    #[test]
    fn heads_begin_with_one_status_and_have_valid_fields() {
        assert_eq!(response(&[(":status", "200"), ("a", "b\tc"), ("a", "")]), Ok(()));
        for fields in [
            &[][..],
            &[("a", "b")],
            &[("a", "b"), (":status", "200")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "200"), (":path", "/")],
            &[(":status", "20")],
            &[(":status", "099")],
            &[(":status", "2000")],
            &[(":status", "+20")],
            &[(":status", "200"), ("A", "b")],
            &[(":status", "200"), ("", "b")],
            &[(":status", "200"), ("a b", "b")],
            &[(":status", "200"), ("a", "b\r\nx: y")],
            &[(":status", "200"), ("a", "\0")],
            &[(":status", "200"), ("connection", "close")],
            &[(":status", "200"), ("transfer-encoding", "chunked")],
        ] {
            assert_eq!(response(fields), Err(HeadFault::Malformed), "{fields:?}");
        }
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        assert_eq!(trailers(&[]), (Ok(()), 0));
        assert_eq!(trailers(&[("x-sum", "5"), ("content-length", "7")]), (Ok(()), 1));
        assert_eq!(trailers(&[(":status", "200")]).0, Err(HeadFault::Malformed));
        assert_eq!(trailers(&[("upgrade", "a")]).0, Err(HeadFault::Malformed));
    }

    #[test]
    fn heads_have_limits() {
        let limits = HttpLimits::default();
        let names: Vec<String> = (0..=limits.fields).map(|number| format!("a{number}")).collect();
        let mut many: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], "b")).collect();
        many.insert(0, (":status", "200"));
        assert_eq!(response(&many), Err(HeadFault::Excess(HeadError::TooManyFields)));
        many.truncate(limits.fields + 1);
        assert_eq!(response(&many), Ok(()));
        let long = "x".repeat(limits.head_bytes);
        let long = [(":status", "200"), ("a", &long)];
        assert_eq!(response(&long), Err(HeadFault::Excess(HeadError::TooLong)));
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")];

    fn request(
        fields: &[(&str, &str)],
        ends_stream: bool,
        limits: HttpLimits,
    ) -> Result<RequestHead, Option<HeadError>> {
        let (mut head, mut cookies) = (RequestHead::default(), Vec::new());
        let mut reader = RequestReader::new(&mut head, &mut cookies, &limits);
        Decoder::new().read(&block(fields), |field| reader.field(field)).unwrap();
        match reader.finish(ends_stream) {
            Ok(None) => Ok(head),
            Ok(refused) => Err(refused),
            Err(_) => Err(None),
        }
    }

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let mut all: Vec<_> =
            GET.iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name)).copied().collect();
        all.splice(0..0, more.iter().filter(|(name, _)| name.starts_with(':')).copied());
        all.extend(more.iter().filter(|(name, _)| !name.starts_with(':')).copied());
        all
    }

    #[test]
    fn requests_are_taken_malformed_or_answered_with_an_error() {
        use HeadError as E;
        for (more, expected) in [
            (&[][..], Ok(())),
            (&[("te", "trailers")], Ok(())),
            (&[("host", "A")], Ok(())),
            (&[(":scheme", "HTTP")], Ok(())),
            (&[("te", "gzip")], Err(None)),
            (&[("connection", "close")], Err(None)),
            (&[("keep-alive", "5")], Err(None)),
            (&[("proxy-connection", "close")], Err(None)),
            (&[("upgrade", "websocket")], Err(None)),
            (&[("transfer-encoding", "chunked")], Err(None)),
            (&[("X-Upper", "1")], Err(None)),
            (&[("x-a", "1\n")], Err(None)),
            (&[("", "1")], Err(None)),
            (&[(":unknown", "1")], Err(None)),
            (&[(":status", "200")], Err(None)),
            (&[(":scheme", "ftp")], Err(None)),
            (&[(":scheme", "")], Err(None)),
            (&[(":path", "")], Err(None)),
            (&[(":path", "/a#b")], Err(None)),
            (&[(":path", "/a"), (":path", "/b")], Err(None)),
            (&[(":method", "GE T")], Err(None)),
            (&[(":method", "")], Err(None)),
            (&[(":protocol", "websocket")], Err(None)),
            (&[("content-length", "5")], Err(None)),
            (&[(":path", "/a b")], Err(Some(E::Target))),
            (&[(":path", "*")], Err(Some(E::Target))),
            (&[(":method", "CONNECT")], Err(Some(E::Target))),
            (&[(":method", "connect")], Err(Some(E::Target))),
            (&[(":method", "CONNECT"), (":protocol", "connect-udp")], Err(Some(E::Target))),
            (&[("content-length", "+5")], Err(Some(E::ContentLength))),
            (&[("host", "b")], Err(Some(E::HostDisagrees))),
            (&[("host", "a"), ("host", "a")], Err(Some(E::HostRepeated))),
            (&[(":authority", "user@a")], Err(Some(E::HostInvalid))),
        ] {
            let read = request(&with(more), true, HttpLimits::default()).map(|_| ());
            assert_eq!(read, expected, "{more:?}");
        }
        for at in 0..GET.len() {
            let mut lacking = GET.to_vec();
            lacking.remove(at);
            let expected = if at == 2 { Some(E::HostMissing) } else { None };
            assert_eq!(request(&lacking, true, HttpLimits::default()).unwrap_err(), expected, "{at}");
        }
        let late = [with(&[("a", "b")]), vec![(":path", "/y")]].concat();
        assert_eq!(request(&late, true, HttpLimits::default()).unwrap_err(), None);
    }

    #[test]
    fn many_cookies_are_one_field_also_if_they_are_empty() {
        let mut fields = with(&[]);
        fields.extend([("cookie", ""); 300]);
        fields.push(("cookie", "a=b"));
        let head = request(&fields, true, HttpLimits::default()).unwrap();
        assert_eq!(head.fields.values(FieldName::Guarded).collect::<Vec<_>>(), [b"a=b"]);
    }

    #[test]
    fn cookies_are_one_field_and_values_have_no_white_space_around_them() {
        let fields = with(&[("cookie", " a=b"), ("x-a", "\t1 "), ("cookie", "c=d "), ("priority", "u=1")]);
        let head = request(&fields, true, HttpLimits::default()).unwrap();
        let read: Vec<_> = head.fields.iter().map(|field| (field.spelt, field.value)).collect();
        let expected = [(&b"x-a"[..], &b"1"[..]), (b"priority", b"u=1"), (b"cookie", b"a=b; c=d")];
        assert_eq!(read, expected);
        assert_eq!((head.method(), head.target(), head.host()), (&b"GET"[..], &b"/x"[..], &b"a"[..]));
    }

    /// To the last byte, as [`RequestHead::read`] counts.
    #[test]
    fn a_request_counts_as_its_head_in_http1() {
        let fields = with(&[("cookie", "a=b"), ("x-a", "12"), ("cookie", "c=d")]);
        let head = "GET /x HTTP/1.1\r\nHost: a\r\nx-a: 12\r\ncookie: a=b; c=d\r\n\r\n";
        let exact = HttpLimits { head_bytes: head.len(), fields: 2, ..HttpLimits::default() };
        assert!(request(&fields, true, exact).is_ok());
        for (less, error) in [
            (HttpLimits { head_bytes: head.len() - 1, ..exact }, HeadError::TooLong),
            (HttpLimits { fields: 1, ..exact }, HeadError::TooManyFields),
            (HttpLimits { target_bytes: 1, ..exact }, HeadError::TargetTooLong),
        ] {
            assert_eq!(request(&fields, true, less).unwrap_err(), Some(error));
        }
    }

    #[test]
    fn an_extended_connect_becomes_an_upgrade() {
        let fields = with(&[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            ("sec-websocket-key", "x"),
            ("sec-websocket-version", "13"),
        ]);
        let head = request(&fields, false, HttpLimits::default()).unwrap();
        assert_eq!((head.method(), head.length, head.wants_upgrade), (&b"GET"[..], BodyLength::None, true));
        assert_eq!(head.fields.len(), 1);
        let with_length = [fields, vec![("content-length", "0")]].concat();
        let refused = request(&with_length, false, HttpLimits::default()).unwrap_err();
        assert_eq!(refused, Some(HeadError::Target));
    }
}
