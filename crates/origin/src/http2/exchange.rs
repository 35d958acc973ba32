//! A request and its response over a stream of HTTP/2.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use truepeer_http::fields::forwarded::Forwarding;
use truepeer_http::http2::{NotBegun, Reason, StreamError, StreamHandle, encode};
use truepeer_http::{BodyLength, Expectation, RequestHead, ResponseHead};
use truepeer_stream::buffers::OutBuffer;

use super::connection::Lease;
use crate::both_ways::Progress;
use crate::exchange::{self, Answered, Exchange, FromOrigin, ToOrigin};
use crate::failure::Failure;
use crate::kept_body::BodyStart;
use crate::parties::{Departure, Incoming, Outgoing};
use crate::settings::HttpSettings;
use crate::time_limit::TimeLimit;

/// A stream of the origin's connection, with settings and timers.
pub struct StreamLink<'a> {
    /// A stream's place on the connection.
    pub lease: &'a Lease,
    /// Whom the request's fields name.
    pub forwarding: Forwarding<'a>,
    /// Whether the connection uses TLS.
    pub uses_tls: bool,
    /// Limits and timeouts.
    pub settings: &'a HttpSettings,
    /// One timer for each direction.
    pub time_limit: &'a (TimeLimit, TimeLimit),
    /// The start of the client's body, for this attempt and a later one.
    pub start: &'a BodyStart,
}

/// Sends the request and passes the response on, whose head is left in `response`. Dropping this resets the
/// stream.
///
/// # Errors
/// The failure. `outgoing` knows whether a part of the response has been sent.
pub async fn run<I: Incoming, O: Outgoing>(
    link: StreamLink<'_>,
    head: &RequestHead,
    response: &mut ResponseHead,
    incoming: &mut I,
    outgoing: &mut O,
) -> Result<Answered, Failure> {
    let StreamLink { lease, forwarding, uses_tls, settings, time_limit, start } = link;
    let has_body = !matches!(head.length, BodyLength::None | BodyLength::Known(0));
    let stream = lease.begin(!has_body, |block| encode::request(block, head, &forwarding, uses_tls));
    let stream = stream.map_err(|not_begun| match not_begun {
        NotBegun::Invalid(error) => Failure::BadRequest(error),
        NotBegun::Refused => {
            lease.give_up();
            Failure::OriginRefused
        }
    })?;
    let unfinished = Unfinished(lease);
    // If an earlier attempt has taken a part of the body, the client does not hold it back any more.
    let waits = head.expectation == Expectation::Continue && has_body && !start.was_taken();
    let exchange = Exchange { settings, time_limit, state: Progress::new(waits, !has_body) };
    let up = Up { stream: &stream, has_body };
    let down = Down { lease, stream: &stream, is_head: head.method() == b"HEAD", start };
    let answered = exchange::run(exchange, up, down, response, incoming, outgoing).await;
    if answered == Ok(Answered::Whole { reusable: true }) {
        std::mem::forget(unfinished);
    }
    answered
}

/// A stream that is reset if it is dropped now.
struct Unfinished<'a>(&'a Lease);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.note_reset();
    }
}

struct Up<'a> {
    stream: &'a StreamHandle,
    has_body: bool,
}

impl ToOrigin for Up<'_> {
    async fn send_all(
        &mut self,
        exchange: &Exchange<'_>,
        incoming: &mut impl Incoming,
    ) -> Result<bool, Failure> {
        if !self.has_body {
            return Ok(true);
        }
        exchange.state.proceeds().await;
        loop {
            let Some(piece) = incoming.next().await? else { break };
            let Some(sent) = poll_fn(|cx| Poll::Ready(self.send_now(cx, piece))).await else {
                return Ok(false);
            };
            if sent < piece.len() {
                // Copied: the client can only be watched if it lends nothing.
                let mut rest = OutBuffer::take();
                rest.extend_from_slice(&piece[sent..]);
                if !self.send_rest(exchange, &rest, incoming).await? {
                    return Ok(false);
                }
            }
        }
        Ok(self.stream.send_end(incoming.trailers()))
    }
}

impl Up<'_> {
    /// Sends as much of `data` as the origin takes now. `None`: it takes none any more.
    fn send_now(&self, cx: &Context<'_>, data: &[u8]) -> Option<usize> {
        let mut sent = 0;
        while sent < data.len() {
            let Poll::Ready(room) = self.stream.poll_room(cx, data.len() - sent) else { break };
            let room = room?;
            self.stream.send_data(&data[sent..sent + room], false);
            sent += room;
        }
        Some(sent)
    }

    /// Sends data as the origin's window opens.
    async fn send_rest(
        &self,
        exchange: &Exchange<'_>,
        mut data: &[u8],
        incoming: &mut impl Incoming,
    ) -> Result<bool, Failure> {
        let limit = exchange.settings.timeouts.send;
        let mut leaves = pin!(async {
            if incoming.departure().await == Departure::HalfClosed {
                // It may read its response.
                pending::<()>().await;
            }
        });
        while !data.is_empty() {
            let some = poll_fn(|cx| match self.send_now(cx, data) {
                Some(0) => leaves.as_mut().poll(cx).map(|()| Err(Failure::ClientGone)),
                sent => Poll::Ready(Ok(sent)),
            });
            let sent = exchange.time_limit.0.limit(limit, some).await;
            let Some(sent) = sent.map_err(|_| Failure::OriginStalled(limit))?? else { return Ok(false) };
            data = &data[sent..];
        }
        Ok(true)
    }
}

struct Down<'a> {
    lease: &'a Lease,
    stream: &'a StreamHandle,
    is_head: bool,
    start: &'a BodyStart,
}

impl FromOrigin for Down<'_> {
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        response: &mut ResponseHead,
    ) -> Poll<Result<bool, Failure>> {
        ready!(self.stream.poll_head(cx, response)).map_err(failure)?;
        if response.is_interim() {
            response.finish_http2(false, false).map_err(Failure::BadResponse)?;
            return Poll::Ready(Ok(true));
        }
        self.lease.note_response();
        let has_data = !self.stream.is_received();
        // A body without data carries trailers: a response that ends with its head has none.
        let has_body = has_data || self.stream.has_trailers();
        response.finish_http2(has_body, self.is_head).map_err(Failure::BadResponse)?;
        if !has_data && matches!(response.length, BodyLength::Known(1..)) {
            return Poll::Ready(Err(Failure::OriginTruncated));
        }
        Poll::Ready(Ok(true))
    }

    /// RFC 9113 8.6: HTTP/2 has no 101.
    fn may_switch(&self) -> bool {
        false
    }

    async fn body(
        self,
        exchange: &Exchange<'_>,
        response: &ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        self.start.release();
        let mut left = match response.length {
            BodyLength::None => Some(0),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        let mut data = OutBuffer::take();
        while self.data(exchange, &mut data, left, outgoing).await? {
            if let Some(left) = &mut left {
                *left = left.checked_sub(data.len() as u64).ok_or(Failure::OriginTruncated)?;
            }
            outgoing.data(&data).await?;
            // The client has taken it: open the windows by its size.
            self.stream.release(data.len());
        }
        if left.is_some_and(|left| left > 0) {
            return Err(Failure::OriginTruncated);
        }
        outgoing.end(&self.stream.take_trailers()).await?;
        Ok(Answered::Whole { reusable: exchange.state.is_sent.get() })
    }
}

impl Down<'_> {
    /// Waits for data. `false`: the end. `left`: the bytes that are still to come, if known.
    async fn data(
        &self,
        exchange: &Exchange<'_>,
        data: &mut Vec<u8>,
        left: Option<u64>,
        outgoing: &mut impl Outgoing,
    ) -> Result<bool, Failure> {
        let came = match poll_fn(|cx| Poll::Ready(self.stream.poll_data(cx, data))).await {
            Poll::Ready(came) => came,
            Poll::Pending => exchange.more(outgoing, poll_fn(|cx| self.stream.poll_data(cx, data))).await?,
        };
        match came {
            Ok(came) => Ok(came),
            // All that was announced has come. Only END_STREAM is missing, and the origin claims no error.
            Err(StreamError::Reset(Reason::NO_ERROR) | StreamError::Closed) if left == Some(0) => Ok(false),
            Err(_) => Err(Failure::OriginTruncated),
        }
    }
}

/// What an error of a stream without a response means for its request.
fn failure(error: StreamError) -> Failure {
    match error {
        // RFC 9113 8.7: the origin has not processed it.
        StreamError::Unprocessed | StreamError::Reset(Reason::REFUSED_STREAM) => Failure::OriginRefused,
        StreamError::Reset(Reason::HTTP_1_1_REQUIRED) => Failure::OriginWantsHttp1,
        StreamError::Reset(reason) => Failure::OriginReset(reason),
        StreamError::Violation(reason) => Failure::OriginHttp2(reason),
        StreamError::BadHead(error) => Failure::BadResponse(error),
        StreamError::Closed | StreamError::Cut => Failure::OriginClosed,
    }
}
