//! Why a request failed.

use std::time::Duration;

use truepeer_http::http2;
use truepeer_http::{BodyError, HeadError};
use truepeer_session::{Hint, Reason};

use crate::dial::DialError;

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
    Http2(http2::Reason),
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
    OriginReset(http2::Reason),
    /// The origin answers HTTP/1.1 with frames of HTTP/2.
    #[error("the origin does not speak HTTP/1.1: it answers with HTTP/2")]
    OriginNotHttp1,
    /// The origin violates HTTP/2.
    #[error("the origin violates HTTP/2: {0}")]
    OriginHttp2(http2::Reason),
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
    /// The origin switches to another protocol without a request for it.
    #[error("the origin switched to another protocol without a request for it")]
    UnaskedSwitch,
}

impl Failure {
    /// As it is counted, and named in the access log.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::ClientGone => Reason::ClientGone,
            Self::HeadTimeout(_) => Reason::HeadTimeout,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::ClientStalled(_) => Reason::ClientStalled,
            Self::BodyTooSlow(_) => Reason::BodyTooSlow,
            Self::ClientTooSlow(_) => Reason::ClientTooSlow,
            Self::Http2(_) => Reason::Http2Error,
            Self::Http2Excess => Reason::Http2Excess,
            Self::Http2TakenBack => Reason::Http2RapidReset,
            Self::Http2Malformed => Reason::Http2Malformed,
            Self::BadRequest(error) => of_head(*error),
            Self::BadRequestBody(error) => of_body(*error),
            Self::BodyTooLarge => Reason::BodyTooLarge,
            Self::MethodNotAllowed => Reason::MethodNotAllowed,
            Self::Misdirected => Reason::Misdirected,
            Self::Expectation => Reason::Expectation,
            Self::Dial(error) => error.reason(),
            Self::OriginStalled(_) => Reason::OriginStalled,
            Self::OriginTimeout(_) => Reason::OriginTimeout,
            Self::OriginDown => Reason::OriginDown,
            Self::OriginClosed => Reason::OriginClosed,
            Self::OriginRefused => Reason::OriginRefused,
            Self::OriginWantsHttp1 => Reason::OriginWantsHttp1,
            Self::OriginReset(_) => Reason::OriginReset,
            Self::OriginNotHttp1 => Reason::OriginNotHttp1,
            Self::OriginHttp2(_) => Reason::OriginHttp2Error,
            Self::BadResponse(_) => Reason::OriginBadResponse,
            Self::BadResponseBody(_) => Reason::OriginBadBody,
            Self::TooManyInterim(_) => Reason::OriginInterim,
            Self::OriginTruncated => Reason::OriginTruncated,
            Self::NoSwitch(_) => Reason::OriginNoSwitch,
            Self::UnaskedSwitch => Reason::OriginUnaskedSwitch,
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

fn of_head(error: HeadError) -> Reason {
    match error {
        HeadError::BareLf => Reason::BareLf,
        HeadError::EmptyLines => Reason::EmptyLines,
        HeadError::TooLong => Reason::HeadTooLong,
        HeadError::TooManyFields => Reason::TooManyFields,
        HeadError::TargetTooLong => Reason::TargetTooLong,
        HeadError::FirstLine => Reason::FirstLine,
        HeadError::Version => Reason::HttpVersion,
        HeadError::Field => Reason::InvalidField,
        HeadError::ContentLength => Reason::ContentLength,
        HeadError::TwoLengths => Reason::TwoLengths,
        HeadError::TransferEncoding => Reason::TransferEncoding,
        HeadError::HostMissing => Reason::HostMissing,
        HeadError::HostRepeated => Reason::HostRepeated,
        HeadError::HostInvalid => Reason::HostInvalid,
        HeadError::HostDisagrees => Reason::HostDisagrees,
        HeadError::Target => Reason::InvalidTarget,
        HeadError::Status => Reason::InvalidStatus,
    }
}

fn of_body(error: BodyError) -> Reason {
    match error {
        BodyError::ChunkSize => Reason::ChunkSize,
        BodyError::ChunkExtension => Reason::ChunkExtension,
        BodyError::ChunkExtensionsTooLong => Reason::ChunkExtensionsTooLong,
        BodyError::ChunkEnd => Reason::ChunkEnd,
        BodyError::TrailersTooLong => Reason::TrailersTooLong,
        BodyError::Trailers => Reason::InvalidTrailers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_heads_and_bodies_are_their_own() {
        for &error in HeadError::ALL {
            assert_eq!(of_head(error).code(), error.reason());
        }
        for &error in BodyError::ALL {
            assert_eq!(of_body(error).code(), error.reason());
        }
    }
}
