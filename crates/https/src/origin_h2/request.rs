//! A request as HTTP/2 carries it, and a response read from it.

use bytes::Bytes;
use h2::Reason;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use truepeer_http1::fields::forwarded::{FieldSink, Forwarding};
use truepeer_http1::fields::hop;
use truepeer_http1::{BodyLength, Expectation, HeadError, HttpLimits, RequestHead, ResponseHead};

use crate::exchange::Failure;

/// Whether HTTP/2 can carry the request. A change to another protocol needs a connection of its own, and some paths are no
/// URI. HTTP/1.0 may name no host; `http` has no URI with a scheme for that, and `h2` then claims `http:`.
pub(crate) fn fits(request: &RequestHead, uses_tls: bool) -> bool {
    let lacks_authority = request.host().is_empty() && uses_tls;
    !request.wants_upgrade && !lacks_authority && PathAndQuery::try_from(request.target()).is_ok()
}

/// The request for the origin.
///
/// # Errors
/// A field or the target is none of HTTP/2's.
pub(super) fn request(
    head: &RequestHead,
    forwarding: &Forwarding<'_>,
    uses_tls: bool,
) -> Result<Request<()>, HeadError> {
    let mut parts = http::uri::Parts::default();
    if !head.host().is_empty() {
        // The connection's, as servers check (RFC 9113 section 8.3.1). `X-Forwarded-Proto` tells the client's.
        parts.scheme = Some(if uses_tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(Authority::try_from(head.host()).map_err(|_| HeadError::HostInvalid)?);
    }
    parts.path_and_query = Some(PathAndQuery::try_from(head.target()).map_err(|_| HeadError::Target)?);
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| HeadError::Target)?;
    *request.method_mut() = Method::from_bytes(head.method()).map_err(|_| HeadError::FirstLine)?;
    *request.headers_mut() = fields(head, forwarding)?;
    Ok(request)
}

/// The same fields as for HTTP/1.1, except for those of a connection.
fn fields(head: &RequestHead, forwarding: &Forwarding<'_>) -> Result<HeaderMap, HeadError> {
    let mut sink =
        HeaderSink { fields: HeaderMap::with_capacity(head.fields.len() + 6), ..HeaderSink::default() };
    for field in hop::onward(&head.fields).filter(|field| forwarding.keeps(field)) {
        let name = HeaderName::from_bytes(field.spelt).map_err(|_| HeadError::Field)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| HeadError::Field)?;
        sink.fields.append(name, value);
    }
    forwarding.write(&head.fields, &mut sink);
    if sink.is_invalid {
        return Err(HeadError::Field);
    }
    if let BodyLength::Known(length) = head.length {
        sink.fields.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if head.expectation == Expectation::Continue && head.length != BodyLength::None {
        sink.fields.insert(http::header::EXPECT, HeaderValue::from_static("100-continue"));
    }
    if hop::takes_trailers(&head.fields) {
        sink.fields.insert(http::header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(sink.fields)
}

/// Takes truepeer's own fields.
#[derive(Default)]
struct HeaderSink {
    fields: HeaderMap,
    name: &'static str,
    value: Vec<u8>,
    is_invalid: bool,
}

impl FieldSink for HeaderSink {
    fn begin(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.name = name;
        self.value.clear();
        &mut self.value
    }

    fn end(&mut self) {
        match (HeaderName::from_bytes(self.name.as_bytes()), HeaderValue::from_bytes(&self.value)) {
            (Ok(name), Ok(value)) => {
                self.fields.append(name, value);
            }
            _ => self.is_invalid = true,
        }
    }
}

/// Reads a response's head into `head`; `has_body`: the stream did not end with it.
///
/// # Errors
/// Contradictory fields, or too many.
pub(super) fn response(
    head: &mut ResponseHead,
    response: &Response<()>,
    has_body: bool,
    is_head: bool,
    limits: &HttpLimits,
) -> Result<(), HeadError> {
    if response.headers().len() > limits.fields {
        return Err(HeadError::TooManyFields);
    }
    let reason = response.status().canonical_reason().unwrap_or_default();
    head.begin_http2(response.status().as_u16(), reason.as_bytes());
    for (name, value) in response.headers() {
        head.fields.push(name.as_str().as_bytes(), value.as_bytes());
    }
    head.finish_http2(has_body, is_head)
}

/// What an error of a stream without a response means for its request.
pub(super) fn failure(error: &h2::Error) -> Failure {
    match error.reason() {
        // RFC 9113 8.7: the origin has not processed it. For GOAWAY, `h2` reports that only to streams above the last processed one.
        Some(Reason::REFUSED_STREAM) if error.is_reset() && error.is_remote() => Failure::OriginRefused,
        Some(_) if error.is_go_away() && error.is_remote() => Failure::OriginRefused,
        Some(Reason::HTTP_1_1_REQUIRED) if error.is_reset() && error.is_remote() => Failure::OriginWantsHttp1,
        Some(reason) if error.is_reset() && error.is_remote() => Failure::OriginReset(reason),
        Some(reason) if error.is_reset() => Failure::OriginHttp2(reason),
        // The connection broke, or `h2` ended it for a violation that need not be this stream's.
        _ => Failure::OriginClosed,
    }
}

/// A piece of a body.
pub(super) fn piece(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
