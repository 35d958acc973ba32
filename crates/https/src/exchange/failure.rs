//! Why a request failed.

use std::time::Duration;

use truepeer_http::http2::Reason;
use truepeer_http::{BodyError, HeadError};
use truepeer_session::Hint;

use crate::origin::DialError;

/// The failure, and the party at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The client has closed or reset its connection.
    #[error("the client left")]
    ClientGone,
    /// A request's head was not complete in time.
    #[error("the request's head was not complete within {} s", .0.as_secs_f32())]
    HeadTimeout(Duration),
    /// The client stopped sending a body.
    #[error("no bytes of the request's body came for {} s", .0.as_secs_f32())]
    BodyTimeout(Duration),
    /// The client sends a body too slowly, on average.
    #[error("the client sends the request's body at less than {0} bytes a second")]
    BodyTooSlow(u64),
    /// The client takes the response too slowly, on average.
    #[error("the client takes the response at less than {0} bytes a second")]
    ClientTooSlow(u64),
    /// The client takes no bytes of the response.
    #[error("the client took no bytes of the response for {} s", .0.as_secs_f32())]
    ClientStalled(Duration),
    /// The client violates HTTP/2.
    #[error("the client violates HTTP/2: {0}")]
    Http2(Reason),
    /// It floods the connection with HTTP/2 frames that carry no request.
    #[error("the client sends too many HTTP/2 frames that carry no request")]
    Http2Excess,
    /// It starts HTTP/2 streams and cancels most of them.
    #[error("the client cancels most of its requests (HTTP/2)")]
    Http2TakenBack,
    /// A request violates RFC 9113 section 8.
    #[error(
        "a request of HTTP/2 is malformed (RFC 9113, 8): such as a fragment in :path, a :scheme other than http and https, \
         or a field of one connection"
    )]
    Http2Malformed,
    /// The request is not HTTP, or is ambiguous.
    #[error("the request is refused: {0}")]
    BadRequest(HeadError),
    /// The same for its body.
    #[error("the request's body is refused: {0}")]
    BadRequestBody(BodyError),
    /// The body is longer than the limit.
    #[error("the request's body is longer than the limit")]
    BodyTooLarge,
    /// The method is not allowed.
    #[error("the method is not allowed")]
    MethodNotAllowed,
    /// The request is for another site than its connection (HTTP/2 clients share connections between hosts).
    #[error("the request is for another site than the one that the connection's handshake has asked for")]
    Misdirected,
    /// An unknown `Expect`.
    #[error("the request has an unknown Expect field")]
    Expectation,
    /// The origin can't be reached.
    #[error("can't connect to the origin: {0}")]
    Dial(#[from] DialError),
    /// The origin's health checks have failed.
    #[error("the origin is down: its last health checks have failed")]
    OriginDown,
    /// The origin did not take the request in time.
    #[error("the origin took no bytes of the request for {} s", .0.as_secs_f32())]
    OriginStalled(Duration),
    /// The origin did not answer in time.
    #[error("the origin did not answer within {} s", .0.as_secs_f32())]
    OriginTimeout(Duration),
    /// The origin closed its connection instead of answering.
    #[error("the origin closed the connection without a response")]
    OriginClosed,
    /// The origin did not process the request (HTTP/2): it is ending the connection, or refuses the stream.
    #[error("the origin refused the request without processing it (HTTP/2)")]
    OriginRefused,
    /// The origin requires HTTP/1.1 for this request (HTTP/2).
    #[error("the origin requires HTTP/1.1 for the request")]
    OriginWantsHttp1,
    /// The origin reset the request's stream.
    #[error("the origin reset the request's stream (HTTP/2): {0}")]
    OriginReset(Reason),
    /// The origin answers HTTP/1.1 with frames of HTTP/2.
    #[error("the origin does not speak HTTP/1.1: it answers with HTTP/2")]
    OriginNotHttp1,
    /// The origin violates HTTP/2.
    #[error("the origin violates HTTP/2: {0}")]
    OriginHttp2(Reason),
    /// The origin's response is not HTTP, or is ambiguous.
    #[error("the origin's response is refused: {0}")]
    BadResponse(HeadError),
    /// The same for its body.
    #[error("the body of the origin's response is refused: {0}")]
    BadResponseBody(BodyError),
    /// The origin sends 1xx responses and never a final one.
    #[error("the origin sent more than {0} interim responses (1xx) and no final one")]
    TooManyInterim(usize),
    /// The origin closed its connection in the middle of a response.
    #[error("the origin closed the connection in the middle of its response")]
    OriginTruncated,
    /// The origin answers a WebSocket's request as one for a page.
    #[error("the origin opened no WebSocket: it answered with status {0}")]
    NoSwitch(u16),
    /// The origin switches to another protocol without a request for it, or before the whole request was
    /// sent.
    #[error("the origin switched to another protocol without a request for it, or before the whole request")]
    UnaskedSwitch,
}

impl Failure {
    /// The label for counters and the access log.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::HeadTimeout(_) => "request_head_timeout",
            Self::BodyTimeout(_) => "request_body_timeout",
            Self::ClientStalled(_) => "client_stalled",
            Self::BodyTooSlow(_) => "request_body_too_slow",
            Self::ClientTooSlow(_) => "client_too_slow",
            Self::Http2(_) => "http2_error",
            Self::Http2Excess => "http2_excess",
            Self::Http2TakenBack => "http2_rapid_reset",
            Self::Http2Malformed => "http2_malformed",
            Self::BadRequest(error) => error.reason(),
            Self::BadRequestBody(error) => error.reason(),
            Self::BodyTooLarge => "body_too_large",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Misdirected => "misdirected",
            Self::Expectation => "unknown_expectation",
            Self::Dial(error) => error.reason(),
            Self::OriginStalled(_) => "origin_stalled",
            Self::OriginTimeout(_) => "origin_timeout",
            Self::OriginDown => "origin_down",
            Self::OriginClosed => "origin_closed",
            Self::OriginRefused => "origin_refused_stream",
            Self::OriginWantsHttp1 => "origin_wants_http1",
            Self::OriginReset(_) => "origin_reset_stream",
            Self::OriginNotHttp1 => "origin_not_http1",
            Self::OriginHttp2(_) => "origin_http2_error",
            Self::BadResponse(_) => "origin_bad_response",
            Self::BadResponseBody(_) => "origin_bad_body",
            Self::TooManyInterim(_) => "origin_too_many_interim",
            Self::OriginTruncated => "origin_truncated",
            Self::NoSwitch(_) => "origin_no_switch",
            Self::UnaskedSwitch => "origin_unasked_switch",
        }
    }

    /// The status for the client; `None`: the client can't be told.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        Some(match self {
            Self::ClientGone | Self::ClientStalled(_) | Self::ClientTooSlow(_) => return None,
            // The connection ends with a GOAWAY.
            Self::Http2(_) | Self::Http2Excess | Self::Http2TakenBack => return None,
            // The stream ends with a reset.
            Self::Http2Malformed => return None,
            Self::HeadTimeout(_) | Self::BodyTimeout(_) | Self::BodyTooSlow(_) => 408,
            Self::BadRequest(error) => error.status(),
            Self::BadRequestBody(_) => 400,
            Self::BodyTooLarge => 413,
            Self::MethodNotAllowed => 403,
            // RFC 9110 15.5.20: the client may repeat any request on another connection.
            Self::Misdirected => 421,
            Self::Expectation => 417,
            Self::Dial(error) => error.status(),
            Self::OriginDown => 503,
            Self::OriginStalled(_) | Self::OriginTimeout(_) => 504,
            Self::OriginClosed
            | Self::OriginRefused
            | Self::OriginWantsHttp1
            | Self::OriginReset(_)
            | Self::OriginHttp2(_)
            | Self::OriginNotHttp1
            | Self::BadResponse(_)
            | Self::BadResponseBody(_)
            | Self::TooManyInterim(_)
            | Self::OriginTruncated
            | Self::NoSwitch(_)
            | Self::UnaskedSwitch => 502,
        })
    }

    /// The setting that has to do with it.
    #[must_use]
    pub fn hint(&self) -> Option<Hint> {
        match self {
            Self::BodyTooSlow(_) | Self::ClientTooSlow(_) => Some(Hint::MinRate),
            Self::BodyTooLarge => Some(Hint::MaxBody),
            Self::BadRequest(HeadError::TooLong) | Self::BadResponse(HeadError::TooLong) => {
                Some(Hint::MaxHead)
            }
            Self::BadRequest(HeadError::TooManyFields) | Self::BadResponse(HeadError::TooManyFields) => {
                Some(Hint::MaxFields)
            }
            Self::MethodNotAllowed => Some(Hint::Methods),
            Self::Dial(DialError::Tls { hint, .. }) => *hint,
            Self::Dial(DialError::NotHttp2(_)) => Some(Hint::OriginHttp2),
            Self::OriginNotHttp1 | Self::Dial(DialError::NotHttp1) => Some(Hint::OriginHttp1),
            _ => None,
        }
    }

    /// Whether the operator should be warned: the origin or truepeer is at fault.
    #[must_use]
    pub fn is_the_origins(&self) -> bool {
        self.status().is_some_and(|status| status >= 500)
    }
}
