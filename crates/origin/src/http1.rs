//! A request and its response in HTTP/1.1.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use truepeer_http::{BodyDecoder, BodyLength, Expectation, HeadEnd, Piece, RequestHead, ResponseHead, write};
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use crate::both_ways::Progress;
use crate::exchange::{self, Answered, Exchange, FromOrigin, ToOrigin};
use crate::failure::Failure;
use crate::parties::{Incoming, Outgoing};
use crate::settings::HttpSettings;
use crate::time_limit::TimeLimit;

/// How many bytes of a body are gathered before they are sent: one TLS record.
const WORTH_SENDING: usize = 16 << 10;

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
pub fn run<'a, S, I, O>(
    link: OriginLink<'a, S>,
    request: &'a RequestHead,
    out: &'a mut Vec<u8>,
    response: &'a mut ResponseHead,
    incoming: &'a mut I,
    outgoing: &'a mut O,
) -> impl Future<Output = Result<Answered, Failure>>
where
    S: Connection,
    I: Incoming,
    O: Outgoing,
{
    let waits = request.expectation == Expectation::Continue && request.length != BodyLength::None;
    let OriginLink { stream, buffer, settings, time_limit } = link;
    let exchange = Exchange { settings, time_limit, state: Progress::new(waits, false) };
    let up = Up { stream, length: request.length, out };
    let down = Down { stream, buffer, settings, request, end: HeadEnd::default() };
    exchange::run(exchange, up, down, response, incoming, outgoing)
}

struct Up<'a, S> {
    stream: &'a SharedStream<S>,
    length: BodyLength,
    out: &'a mut Vec<u8>,
}

impl<S: Connection> ToOrigin for Up<'_, S> {
    async fn send_all(
        &mut self,
        exchange: &Exchange<'_>,
        incoming: &mut impl Incoming,
    ) -> Result<bool, Failure> {
        if !self.send(exchange).await? {
            return Ok(false);
        }
        if self.length == BodyLength::None {
            return Ok(true);
        }
        exchange.state.proceeds().await;
        let is_chunked = self.length == BodyLength::Chunked;
        loop {
            // Send the available pieces together: each send costs a system call and a TLS record.
            let at_hand = poll_once(incoming.next()).await;
            let piece = match at_hand {
                Poll::Ready(piece) => piece?,
                Poll::Pending if !self.send(exchange).await? => return Ok(false),
                Poll::Pending => incoming.next().await?,
            };
            let Some(piece) = piece else { break };
            frame(self.out, piece, is_chunked);
            if self.out.len() >= WORTH_SENDING && !self.send(exchange).await? {
                return Ok(false);
            }
        }
        if is_chunked {
            write::chunks_end(self.out, incoming.trailers());
        }
        self.send(exchange).await
    }
}

impl<S: Connection> Up<'_, S> {
    async fn send(&mut self, exchange: &Exchange<'_>) -> Result<bool, Failure> {
        let limit = exchange.settings.timeouts.send;
        let sending = self.stream.send(self.out);
        match exchange.time_limit.0.while_taken(limit, 0, self.stream, sending).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(_)) => {
                exchange.state.is_broken.set(true);
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
    request: &'a RequestHead,
    end: HeadEnd,
}

impl<S: Connection> FromOrigin for Down<'_, S> {
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        response: &mut ResponseHead,
    ) -> Poll<Result<bool, Failure>> {
        let is_head = self.request.method() == b"HEAD";
        let read = response.read(self.buffer.data(), &mut self.end, is_head, &self.settings.limits);
        if let Some(len) = read.map_err(Failure::BadResponse)? {
            self.buffer.consume(len);
            self.end = HeadEnd::default();
            return Poll::Ready(Ok(true));
        }
        if self.buffer.is_full() {
            self.buffer.grow();
        }
        Poll::Ready(match ready!(self.stream.poll_fill(cx, self.buffer)) {
            Ok(1..) => Ok(false),
            Ok(0) | Err(_) if self.end.has_begun() => Err(Failure::OriginTruncated),
            Ok(0) | Err(_) => Err(Failure::OriginClosed),
        })
    }

    fn may_switch(&self) -> bool {
        self.request.wants_upgrade
    }

    async fn body(
        self,
        exchange: &Exchange<'_>,
        response: &ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        let Self { stream, buffer, settings, request, .. } = self;
        let mut decoder = BodyDecoder::of_response(response.length);
        loop {
            let piece = decoder.next(buffer.data(), &settings.limits);
            match piece.map_err(Failure::BadResponseBody)? {
                Piece::Data { skip, len } => {
                    outgoing.data(&buffer.data()[skip..skip + len]).await?;
                    buffer.consume(skip + len);
                }
                Piece::End { skip } => {
                    buffer.consume(skip);
                    break;
                }
                Piece::More { skip } => {
                    buffer.consume(skip);
                    if buffer.is_full() {
                        buffer.grow(); // an unusually long trailer section
                    }
                    match exchange.more(outgoing, stream.fill(buffer)).await? {
                        Ok(1..) => {}
                        // FIN or close_notify.
                        Ok(0) if decoder.ends_with_the_stream() && !exchange.state.is_broken.get() => break,
                        Ok(0) | Err(_) => return Err(Failure::OriginTruncated),
                    }
                }
            }
        }
        outgoing.end(&decoder.trailers).await?;
        // An origin that refuses an upgrade unread would take the request's body for the next request.
        let has_no_body = matches!(request.length, BodyLength::None | BodyLength::Known(0));
        let is_read = !request.wants_upgrade || has_no_body;
        // Bytes after the response would be taken for the response to the next request.
        let reusable = response.keep_alive && exchange.state.is_sent.get() && buffer.is_empty() && is_read;
        Ok(Answered::Whole { reusable })
    }
}
