//! One request and its response over one stream, both directions at once. The counterpart of `http1`.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use truepeer_http::fields::forwarded::Forwarding;
use truepeer_http::http2::{MOST_INTERIM, NotBegun, Reason, StreamError, StreamHandle, encode};
use truepeer_http::{BodyLength, Expectation, RequestHead, ResponseHead};
use truepeer_stream::buffers::OutBuffer;

use super::connection::Lease;
use crate::both_ways::{Progress, both};
use crate::failure::Failure;
use crate::kept_body::BodyStart;
use crate::parties::{Departure, Incoming, Outgoing, left};
use crate::settings::HttpSettings;
use crate::time_limit::TimeLimit;

/// A stream of the origin's connection, with settings and timers.
pub struct Exchange<'a> {
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
    exchange: Exchange<'_>,
    head: &RequestHead,
    response: &mut ResponseHead,
    incoming: &mut I,
    outgoing: &mut O,
) -> Result<(), Failure> {
    let Exchange { lease, forwarding, uses_tls, settings, time_limit, start } = exchange;
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
    let state = Progress::new(waits, !has_body);
    let up = Up { stream: &stream, settings, time_limit: &time_limit.0, state: &state };
    let down = Down { lease, stream: &stream, settings, time_limit: &time_limit.1, state: &state, start };
    let is_head = head.method() == b"HEAD";
    let answered = both(&state, up.run(has_body, incoming), down.run(is_head, response, outgoing)).await;
    time_limit.0.rest();
    time_limit.1.rest();
    if answered.is_ok() && state.is_sent.get() {
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
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a Progress,
}

impl Up<'_> {
    /// Returns only if the client fails. If the origin stops reading, `down` reads its response or its end.
    async fn run(self, has_body: bool, incoming: &mut impl Incoming) -> Failure {
        let sent = if has_body { self.send_all(incoming).await } else { Ok(true) };
        match sent {
            Ok(is_sent) => {
                self.state.is_sent.set(is_sent);
                self.state.is_sending.set(false);
                left(incoming, self.time_limit, self.settings, &self.state.has_begun).await
            }
            Err(failure) => failure,
        }
    }

    /// Whether everything was sent. If not, the origin has stopped reading.
    async fn send_all(&self, incoming: &mut impl Incoming) -> Result<bool, Failure> {
        self.state.proceeds().await;
        loop {
            let Some(piece) = incoming.next().await? else { break };
            let Some(sent) = poll_fn(|cx| Poll::Ready(self.send_now(cx, piece))).await else {
                return Ok(false);
            };
            if sent < piece.len() {
                // Copied: the client can only be watched if it lends nothing.
                let mut rest = OutBuffer::take();
                rest.extend_from_slice(&piece[sent..]);
                if !self.send_rest(&rest, incoming).await? {
                    return Ok(false);
                }
            }
        }
        Ok(self.stream.send_end(incoming.trailers()))
    }

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
    async fn send_rest(&self, mut data: &[u8], incoming: &mut impl Incoming) -> Result<bool, Failure> {
        let limit = self.settings.timeouts.send;
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
            let sent = self.time_limit.limit(limit, some).await;
            let Some(sent) = sent.map_err(|_| Failure::OriginStalled(limit))?? else { return Ok(false) };
            data = &data[sent..];
        }
        Ok(true)
    }
}

struct Down<'a> {
    lease: &'a Lease,
    stream: &'a StreamHandle,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a Progress,
    start: &'a BodyStart,
}

impl Down<'_> {
    async fn run(
        self,
        is_head: bool,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<(), Failure> {
        self.heads(response, outgoing).await?;
        self.lease.note_response();
        let has_data = !self.stream.is_received();
        // A body without data carries trailers: a response that ends with its head has none.
        let has_body = has_data || self.stream.has_trailers();
        response.finish_http2(has_body, is_head).map_err(Failure::BadResponse)?;
        if !has_data && matches!(response.length, BodyLength::Known(1..)) {
            return Err(Failure::OriginTruncated);
        }
        self.body(response, outgoing).await
    }

    /// Passes on 1xx responses until the final one comes.
    async fn heads(&self, response: &mut ResponseHead, outgoing: &mut impl Outgoing) -> Result<(), Failure> {
        let mut interim = 0;
        loop {
            self.head(response, outgoing).await?;
            if !response.is_interim() {
                return Ok(());
            }
            interim += 1;
            if interim > MOST_INTERIM {
                return Err(Failure::TooManyInterim(MOST_INTERIM));
            }
            response.finish_http2(false, false).map_err(Failure::BadResponse)?;
            match response.status {
                // RFC 9113 8.6: HTTP/2 has no 101.
                101 => return Err(Failure::UnaskedSwitch),
                100 if self.state.may_send_body.replace(true) => {} // the client did not ask for it
                _ => outgoing.interim(response).await?,
            }
        }
    }

    /// Waits for a head. If the origin does not answer `Expect` in time, the body is sent anyway (RFC 9110
    /// section 10.1.1).
    async fn head(&self, response: &mut ResponseHead, outgoing: &mut impl Outgoing) -> Result<(), Failure> {
        let came = |head: Result<(), StreamError>| head.map_err(failure);
        if !self.state.may_send_body.get() {
            let proceed = self.settings.timeouts.proceed;
            let head = poll_fn(|cx| self.stream.poll_head(cx, response));
            if let Ok(head) = self.time_limit.limit(proceed, head).await {
                return came(head);
            }
            outgoing.proceed().await?;
            self.state.may_send_body.set(true);
        }
        let limit = self.settings.timeouts.response;
        loop {
            let was_sending = self.state.is_sending.get();
            match self.time_limit.limit(limit, poll_fn(|cx| self.stream.poll_head(cx, response))).await {
                Ok(head) => return came(head),
                // The response timeout starts when the request has been sent.
                Err(_) if was_sending => {}
                Err(_) => return Err(Failure::OriginTimeout(limit)),
            }
        }
    }

    async fn body(&self, response: &ResponseHead, outgoing: &mut impl Outgoing) -> Result<(), Failure> {
        outgoing.head(response, self.state.is_sent.get()).await?;
        self.state.has_begun.set(true);
        self.start.release();
        let mut left = match response.length {
            BodyLength::None => Some(0),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        let mut data = OutBuffer::take();
        while self.data(&mut data, left, outgoing).await? {
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
        outgoing.end(&self.stream.take_trailers()).await
    }

    /// Waits for data. `false`: the end. `left`: the bytes that are still to come, if known. Sends gathered
    /// bytes before it waits.
    async fn data(
        &self,
        data: &mut Vec<u8>,
        left: Option<u64>,
        outgoing: &mut impl Outgoing,
    ) -> Result<bool, Failure> {
        let mut at_hand = poll_fn(|cx| Poll::Ready(self.stream.poll_data(cx, data))).await;
        if at_hand.is_pending() {
            outgoing.flush().await?;
            let limit: Duration = self.settings.timeouts.response;
            let came = self.time_limit.limit(limit, poll_fn(|cx| self.stream.poll_data(cx, data))).await;
            at_hand = Poll::Ready(came.map_err(|_| Failure::OriginTimeout(limit))?);
        }
        match at_hand {
            Poll::Ready(Ok(came)) => Ok(came),
            // All that was announced has come. Only END_STREAM is missing, and the origin claims no error.
            Poll::Ready(Err(StreamError::Reset(Reason::NO_ERROR) | StreamError::Closed))
                if left == Some(0) =>
            {
                Ok(false)
            }
            _ => Err(Failure::OriginTruncated),
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
