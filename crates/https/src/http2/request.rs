//! Reads a request's body from HTTP/2.

use std::future::poll_fn;

use truepeer_http::fields::FieldList;
use truepeer_http::http2::{Reason, StreamError, StreamHandle};
use truepeer_origin::{Departure, Failure, HttpSettings, Incoming, TimeLimit};
use truepeer_stream::buffers::OutBuffer;

use crate::exchange::{Pace, Remainder};

/// The longest piece that is given out at once. The window opens as the origin takes them.
const PIECE_BYTES: usize = 16 << 10;

/// A request's body, from its stream.
pub(super) struct Http2Body<'a> {
    stream: &'a StreamHandle,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    /// Data that has come. Up to `taken` the origin has it, up to `given` it was given out.
    data: OutBuffer,
    taken: usize,
    given: usize,
    trailers: FieldList,
    pace: Pace,
    pub(super) received: u64,
}

impl<'a> Http2Body<'a> {
    pub(super) fn new(
        stream: &'a StreamHandle,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
    ) -> Self {
        let (data, trailers, pace) = (OutBuffer::take(), FieldList::default(), Pace::default());
        Self { stream, settings, time_limit, data, taken: 0, given: 0, trailers, pace, received: 0 }
    }

    /// Waits for data. `false`: the end. Empty DATA frames don't extend the timeout.
    async fn fill(&mut self) -> Result<bool, Failure> {
        let (limit, min_rate) = (self.settings.timeouts.body, self.settings.min_rate);
        let began = self.time_limit.now();
        (self.taken, self.given) = (0, 0);
        let (stream, data) = (self.stream, &mut *self.data);
        match self.time_limit.limit(limit, poll_fn(|cx| stream.poll_data(cx, data))).await {
            Ok(Ok(true)) => {
                self.pace.note(self.time_limit.now() - began, self.data.len());
                let is_too_slow = self.pace.is_too_slow(limit, min_rate);
                if is_too_slow { Err(Failure::BodyTooSlow(min_rate)) } else { Ok(true) }
            }
            Ok(Ok(false)) => Ok(false),
            Ok(Err(StreamError::Cut)) => {
                // The response may go on for long.
                self.departure().await;
                Err(Failure::ClientGone)
            }
            Ok(Err(error)) => Err(failure(error)),
            Err(_) => Err(Failure::BodyTimeout(limit)),
        }
    }

    /// Discards the rest of a request that already has its response. Many clients read no response until they
    /// have sent everything, and treat an early reset as an error. If the client is too slow or continues for
    /// too long, dropping the stream resets it with NO_ERROR (RFC 9113 section 8.1).
    pub(super) async fn discard(mut self) {
        let (stream, data, timeouts) = (self.stream, &mut *self.data, &self.settings.timeouts);
        stream.release(data.len() - self.taken);
        let mut rest = Remainder::new(timeouts.linger_pause, timeouts.linger_total, self.time_limit);
        while let Some(Ok(true)) = rest.next(poll_fn(|cx| stream.poll_data(cx, data))).await {
            stream.release(data.len());
            if !rest.may_go_on(data.len()) {
                return;
            }
        }
    }
}

/// What an error of a request's stream means.
pub(super) fn failure(error: StreamError) -> Failure {
    match error {
        StreamError::Violation(Reason::PROTOCOL_ERROR) => Failure::Http2Malformed,
        StreamError::Violation(reason) => Failure::Http2(reason),
        StreamError::BadHead(error) => Failure::BadRequest(error),
        _ => Failure::ClientGone,
    }
}

impl Incoming for Http2Body<'_> {
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        // The origin has taken the last piece: open the window by its size.
        if self.given > self.taken {
            self.stream.release(self.given - self.taken);
            self.taken = self.given;
        }
        if self.given == self.data.len() && !self.fill().await? {
            self.trailers = self.stream.take_trailers();
            return Ok(None);
        }
        let from = self.given;
        self.given = self.data.len().min(from + PIECE_BYTES);
        self.received += (self.given - from) as u64;
        if self.settings.max_body.is_some_and(|most| self.received > most) {
            return Err(Failure::BodyTooLarge);
        }
        Ok(Some(&self.data[from..self.given]))
    }

    fn trailers(&self) -> &FieldList {
        &self.trailers
    }

    async fn departure(&mut self) -> Departure {
        // The client has reset the stream, or the connection has ended.
        poll_fn(|cx| self.stream.poll_failed(cx)).await;
        Departure::Gone
    }
}
