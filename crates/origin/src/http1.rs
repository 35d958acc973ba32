//! One request and its response over one connection to the origin, both directions at once.
//!
//! ```text
//! client ── Incoming ──▶ up ───▶ origin          up: sends the head; then the body, once it may (Expect)
//! client ◀─ Outgoing ─── down ◀─ origin          down: 1xx … the head, the body, trailers
//! ```

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use truepeer_http::fields::FieldList;
use truepeer_http::http2::MOST_INTERIM;
use truepeer_http::{BodyDecoder, BodyLength, Expectation, HeadEnd, Piece, RequestHead, ResponseHead, write};
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use crate::both_ways::{Progress, both};
use crate::failure::Failure;
use crate::parties::{Incoming, Outgoing, left};
use crate::settings::HttpSettings;
use crate::time_limit::TimeLimit;

/// How many bytes of a body are gathered before they are sent: one TLS record.
const WORTH_SENDING: usize = 16 << 10;

/// How an exchange succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The response was passed on.
    Whole {
        /// The connection to the origin can carry another request.
        reusable: bool,
    },
    /// The origin has switched to the protocol that the client asked for.
    Switched,
}

/// A connection to the origin, with its settings and timers.
pub struct OriginLink<'a, S> {
    /// Its stream.
    pub stream: &'a SharedStream<S>,
    /// Bytes of the origin that were read and not used.
    pub buffer: &'a mut Buffer,
    /// Limits and timeouts.
    pub settings: &'a HttpSettings,
    /// One timer for each direction.
    pub time_limit: &'a (TimeLimit, TimeLimit),
}

/// Sends the request, whose head is in `out`, and passes the response on. The response's head is left in
/// `response`.
///
/// # Errors
/// The failure. `outgoing` knows whether a part of the response has been sent.
pub async fn run<S, I, O>(
    link: OriginLink<'_, S>,
    request: &RequestHead,
    out: &mut Vec<u8>,
    response: &mut ResponseHead,
    incoming: &mut I,
    outgoing: &mut O,
) -> Result<Answered, Failure>
where
    S: Connection,
    I: Incoming,
    O: Outgoing,
{
    let waits = request.expectation == Expectation::Continue && request.length != BodyLength::None;
    let state = Progress::new(waits, false);
    let OriginLink { stream, buffer, settings, time_limit } = link;
    let up = Up { stream, settings, time_limit: &time_limit.0, state: &state };
    let down = Down { stream, buffer, settings, time_limit: &time_limit.1, state: &state };
    let answered =
        both(&state, up.run(request.length, out, incoming), down.run(request, response, outgoing)).await;
    time_limit.0.rest();
    time_limit.1.rest();
    answered
}

struct Up<'a, S> {
    stream: &'a SharedStream<S>,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a Progress,
}

impl<S: Connection> Up<'_, S> {
    /// Returns only if the client fails. If the origin stops reading, `down` reads its response or its end.
    async fn run(self, length: BodyLength, out: &mut Vec<u8>, incoming: &mut impl Incoming) -> Failure {
        match self.send_all(length, out, incoming).await {
            Ok(is_sent) => {
                self.state.is_sent.set(is_sent);
                self.state.is_sending.set(false);
                left(incoming, self.time_limit, self.settings, &self.state.has_begun).await
            }
            Err(failure) => failure,
        }
    }

    /// Whether everything was sent. If not, the origin has stopped reading.
    async fn send_all(
        &self,
        length: BodyLength,
        out: &mut Vec<u8>,
        incoming: &mut impl Incoming,
    ) -> Result<bool, Failure> {
        if !self.send(out).await? {
            return Ok(false);
        }
        if length == BodyLength::None {
            return Ok(true);
        }
        self.state.proceeds().await;
        let is_chunked = length == BodyLength::Chunked;
        loop {
            // Send the available pieces together: each send costs a system call and a TLS record.
            let at_hand = poll_once(incoming.next()).await;
            let piece = match at_hand {
                Poll::Ready(piece) => piece?,
                Poll::Pending if !self.send(out).await? => return Ok(false),
                Poll::Pending => incoming.next().await?,
            };
            let Some(piece) = piece else { break };
            frame(out, piece, is_chunked);
            if out.len() >= WORTH_SENDING && !self.send(out).await? {
                return Ok(false);
            }
        }
        if is_chunked {
            write::chunks_end(out, incoming.trailers());
        }
        self.send(out).await
    }

    async fn send(&self, out: &mut Vec<u8>) -> Result<bool, Failure> {
        let limit = self.settings.timeouts.send;
        match self.time_limit.while_taken(limit, 0, self.stream, self.stream.send(out)).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(_)) => {
                self.state.is_broken.set(true);
                Ok(false)
            }
            Err(_) => Err(Failure::OriginStalled(limit)),
        }
    }
}

/// Polls `future` once.
async fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Appends a piece of a body in its framing.
pub fn frame(out: &mut Vec<u8>, piece: &[u8], is_chunked: bool) {
    if is_chunked {
        write::chunk_start(out, piece.len());
    }
    out.extend_from_slice(piece);
    if is_chunked {
        out.extend_from_slice(b"\r\n");
    }
}

struct Down<'a, S> {
    stream: &'a SharedStream<S>,
    buffer: &'a mut Buffer,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a Progress,
}

impl<S: Connection> Down<'_, S> {
    async fn run(
        mut self,
        request: &RequestHead,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        let mut interim = 0;
        loop {
            self.head(request, response, outgoing).await?;
            interim += 1;
            match response.status {
                101 if request.wants_upgrade => {
                    self.rest_of_request(outgoing).await?;
                    return Ok(Answered::Switched);
                }
                101 => return Err(Failure::UnaskedSwitch),
                100..200 if interim > MOST_INTERIM => return Err(Failure::TooManyInterim(MOST_INTERIM)),
                100 if self.state.may_send_body.replace(true) => {} // the client did not ask for it
                100..200 => outgoing.interim(response).await?,
                _ => return self.body(request, response, outgoing).await,
            }
        }
    }

    /// Waits until the request has been sent whole. RFC 9110 7.8: an origin may switch early, but its client
    /// can't in the middle of a message.
    async fn rest_of_request(&self, outgoing: &mut impl Outgoing) -> Result<(), Failure> {
        if !self.state.may_send_body.get() {
            outgoing.proceed().await?;
            self.state.may_send_body.set(true);
        }
        // No waker is stored: `both` polls this again after `up`.
        poll_fn(|_| if self.state.is_sending.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        if self.state.is_sent.get() { Ok(()) } else { Err(Failure::OriginTruncated) }
    }

    /// Reads a head.
    async fn head(
        &mut self,
        request: &RequestHead,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<(), Failure> {
        let (mut end, is_head) = (HeadEnd::default(), request.method() == b"HEAD");
        loop {
            let read = response.read(self.buffer.data(), &mut end, is_head, &self.settings.limits);
            if let Some(len) = read.map_err(Failure::BadResponse)? {
                self.buffer.consume(len);
                return Ok(());
            }
            if self.buffer.is_full() {
                self.buffer.grow();
            }
            match self.fill_or_proceed(outgoing).await? {
                Ok(1..) => {}
                Ok(0) | Err(_) if end.has_begun() => return Err(Failure::OriginTruncated),
                Ok(0) | Err(_) => return Err(Failure::OriginClosed),
            }
        }
    }

    /// Waits for the origin. If it does not answer `Expect` in time, the body is sent anyway: not every
    /// origin supports `Expect` (RFC 9110 section 10.1.1).
    async fn fill_or_proceed(&mut self, outgoing: &mut impl Outgoing) -> Result<io::Result<usize>, Failure> {
        if !self.state.may_send_body.get() {
            let proceed = self.settings.timeouts.proceed;
            if let Ok(filled) = self.time_limit.limit(proceed, self.stream.fill(self.buffer)).await {
                return Ok(filled);
            }
            outgoing.proceed().await?;
            self.state.may_send_body.set(true);
        }
        loop {
            let was_sending = self.state.is_sending.get();
            match self.fill(self.settings.timeouts.response).await {
                // The response timeout starts when the request has been sent.
                Err(Failure::OriginTimeout(_)) if was_sending => {}
                filled => return filled,
            }
        }
    }

    async fn fill(&mut self, limit: Duration) -> Result<io::Result<usize>, Failure> {
        let filled = self.time_limit.limit(limit, self.stream.fill(self.buffer)).await;
        filled.map_err(|_| Failure::OriginTimeout(limit))
    }

    async fn body(
        &mut self,
        request: &RequestHead,
        response: &ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        outgoing.head(response, self.state.is_sent.get()).await?;
        self.state.has_begun.set(true);
        let mut decoder = BodyDecoder::of_response(response.length);
        loop {
            let piece = decoder.next(self.buffer.data(), &self.settings.limits);
            match piece.map_err(Failure::BadResponseBody)? {
                Piece::Data { skip, len } => {
                    outgoing.data(&self.buffer.data()[skip..skip + len]).await?;
                    self.buffer.consume(skip + len);
                }
                Piece::End { skip } => {
                    self.buffer.consume(skip);
                    break;
                }
                Piece::More { skip } => {
                    self.buffer.consume(skip);
                    if !self.more(outgoing).await? {
                        if decoder.ends_with_the_stream() {
                            break;
                        }
                        return Err(Failure::OriginTruncated);
                    }
                }
            }
        }
        self.end(request, response, &decoder.trailers, outgoing).await
    }

    /// Reads more of a body. `false`: the stream has ended with FIN or close_notify.
    async fn more(&mut self, outgoing: &mut impl Outgoing) -> Result<bool, Failure> {
        outgoing.flush().await?;
        if self.buffer.is_full() {
            self.buffer.grow(); // an unusually long trailer section
        }
        match self.fill(self.settings.timeouts.response).await? {
            Ok(0) if self.state.is_broken.get() => Err(Failure::OriginTruncated),
            Ok(len) => Ok(len > 0),
            Err(_) => Err(Failure::OriginTruncated),
        }
    }

    async fn end(
        &mut self,
        request: &RequestHead,
        response: &ResponseHead,
        trailers: &FieldList,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        outgoing.end(trailers).await?;
        // An origin that refuses an upgrade unread would take the request's body for the next request.
        let has_no_body = matches!(request.length, BodyLength::None | BodyLength::Known(0));
        let is_read = !request.wants_upgrade || has_no_body;
        // Bytes after the response would be taken for the response to the next request.
        let reusable = response.keep_alive && self.state.is_sent.get() && self.buffer.is_empty() && is_read;
        Ok(Answered::Whole { reusable })
    }
}
