//! An HTTP/1 client: reads its bodies, writes responses.

use std::time::{Duration, Instant};

use truepeer_http::fields::FieldList;
use truepeer_http::write::{self, ResponseFraming};
use truepeer_http::{BodyDecoder, BodyLength, HttpVersion, Piece, RequestHead, ResponseHead};
use truepeer_origin::http1::frame;
use truepeer_origin::{
    Departure, Failure, HttpSettings, HttpTimeouts, Incoming, LINGER_RATE, Outgoing, TimeLimit, Untaken,
};
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use super::pace::Pace;

/// How many bytes of a response are gathered before they are sent: one TLS record.
const WORTH_SENDING: usize = 16 << 10;

/// A request's body, from the connection.
pub(crate) struct Http1Body<'a, S> {
    stream: &'a SharedStream<S>,
    buffer: &'a mut Buffer,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    decoder: BodyDecoder,
    /// Length of the piece that was given out last.
    used: usize,
    pub(crate) received: u64,
    pace: Pace,
}

impl<'a, S: Connection> Http1Body<'a, S> {
    pub(crate) fn new(
        stream: &'a SharedStream<S>,
        buffer: &'a mut Buffer,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
        length: BodyLength,
    ) -> Self {
        let decoder = BodyDecoder::new(length);
        let pace = Pace::default();
        Self { stream, buffer, settings, time_limit, decoder, used: 0, received: 0, pace }
    }

    /// Whether nothing more of it can come.
    pub(crate) fn is_whole(&self) -> bool {
        self.decoder.has_ended()
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        let limit = self.settings.timeouts.body;
        if self.buffer.is_full() {
            self.buffer.grow(); // an unusually long trailer section
        }
        let (began, min_rate) = (self.time_limit.now(), self.settings.min_rate);
        match self.time_limit.limit(limit, self.stream.fill(self.buffer)).await {
            Ok(Ok(len @ 1..)) => {
                self.pace.note(self.time_limit.now() - began, len);
                let is_too_slow = self.pace.is_too_slow(limit, min_rate);
                if is_too_slow { Err(Failure::BodyTooSlow(min_rate)) } else { Ok(()) }
            }
            Ok(Ok(0) | Err(_)) => Err(Failure::ClientGone),
            Err(_) => Err(Failure::BodyTimeout(limit)),
        }
    }
}

impl<S: Connection> Incoming for Http1Body<'_, S> {
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        self.buffer.consume(std::mem::take(&mut self.used));
        loop {
            let piece = self.decoder.next(self.buffer.data(), &self.settings.limits);
            match piece.map_err(Failure::BadRequestBody)? {
                Piece::Data { skip, len } => {
                    self.buffer.consume(skip);
                    self.used = len;
                    self.received += len as u64;
                    if self.settings.max_body.is_some_and(|most| self.received > most) {
                        return Err(Failure::BodyTooLarge);
                    }
                    return Ok(Some(&self.buffer.data()[..len]));
                }
                Piece::More { skip } => {
                    self.buffer.consume(skip);
                    self.fill().await?;
                }
                Piece::End { skip } => {
                    self.buffer.consume(skip);
                    return Ok(None);
                }
            }
        }
    }

    fn trailers(&self) -> &FieldList {
        &self.decoder.trailers
    }

    /// A pipelined next request is not a departure; it stays in the buffer.
    async fn departure(&mut self) -> Departure {
        while !self.buffer.is_full() {
            match self.stream.fill(self.buffer).await {
                Ok(1..) => {}
                Ok(0) => return Departure::HalfClosed,
                Err(_) => return Departure::Gone,
            }
        }
        std::future::pending().await
    }
}

/// The progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyStage {
    /// No byte was written, though its head may be gathered: another response can still be sent.
    Waiting,
    /// Its head, or a part of it, may have left.
    Begun,
    /// The whole response was written.
    Ended,
}

/// Writes a response to the connection.
pub(crate) struct Http1Reply<'a, S> {
    stream: &'a SharedStream<S>,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    out: &'a mut Vec<u8>,
    version: HttpVersion,
    /// The request was HEAD: its response has no body.
    pub(crate) is_head: bool,
    length: BodyLength,
    pub(crate) stage: ReplyStage,
    /// The head stands in `out`.
    is_staged: bool,
    /// A send was interrupted: part of it may be on the way.
    is_torn: bool,
    pace: Pace,
    /// Whether the connection can carry another request after this.
    pub(crate) keep_alive: bool,
    pub(crate) status: u16,
    pub(crate) sent: u64,
}

impl<'a, S: Connection> Http1Reply<'a, S> {
    pub(crate) fn new(
        stream: &'a SharedStream<S>,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
        out: &'a mut Vec<u8>,
        request: &RequestHead,
        keep_alive: bool,
    ) -> Self {
        Self {
            stream,
            settings,
            time_limit,
            out,
            version: request.version,
            is_head: request.method() == b"HEAD",
            length: BodyLength::None,
            stage: ReplyStage::Waiting,
            is_staged: false,
            is_torn: false,
            pace: Pace::default(),
            keep_alive,
            status: 0,
            sent: 0,
        }
    }

    /// Answers with `failure` if the client can still be told, that is, not in the middle of an interim
    /// response. The connection is not used again.
    pub(crate) async fn refuse(&mut self, failure: &Failure) {
        let can_be_told = self.stage == ReplyStage::Waiting && !self.is_torn;
        let Some(status) = failure.status().filter(|_| can_be_told) else { return };
        self.keep_alive = false;
        self.stage = ReplyStage::Ended;
        (self.status, self.sent, self.is_staged) = (status, 0, false);
        self.out.clear();
        refusal(self.out, status, self.is_head);
        // The client may be gone; then the error doesn't matter.
        let _ = self.send().await;
    }

    /// Tells the client that the connection switches to another protocol.
    pub(crate) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        write::switching(self.out, head);
        (self.stage, self.keep_alive, self.status) = (ReplyStage::Begun, false, head.status);
        self.send().await?;
        self.stage = ReplyStage::Ended;
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Failure> {
        let (limit, min_rate) = (self.settings.timeouts.send, self.settings.min_rate);
        let (began, len) = (self.time_limit.now(), self.out.len());
        if self.is_staged {
            self.stage = ReplyStage::Begun;
        }
        // This future may be dropped at any await.
        self.is_torn = true;
        let sending = self.stream.send(self.out);
        match self.time_limit.while_taken(limit, min_rate, self.stream, sending).await {
            Ok(Ok(())) => {
                self.is_torn = false;
                self.pace.note(self.time_limit.now() - began, len);
                let is_too_slow = self.pace.is_too_slow(limit, min_rate);
                if is_too_slow { Err(Failure::ClientTooSlow(min_rate)) } else { Ok(()) }
            }
            Ok(Err(_)) => Err(Failure::ClientGone),
            Err(Untaken::All) => Err(Failure::ClientStalled(limit)),
            Err(Untaken::Most) => Err(Failure::ClientTooSlow(min_rate)),
        }
    }
}

impl<S: Connection> Outgoing for Http1Reply<'_, S> {
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        // RFC 9110 15.2: a server "MUST NOT send a 1xx response to an HTTP/1.0 client".
        if self.version == HttpVersion::Http10 {
            return Ok(());
        }
        write::interim(self.out, head);
        self.send().await
    }

    async fn proceed(&mut self) -> Result<(), Failure> {
        self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        self.send().await
    }

    async fn head(&mut self, head: &ResponseHead, request_is_whole: bool) -> Result<(), Failure> {
        self.length = match head.length {
            BodyLength::Chunked | BodyLength::UntilClose if self.version == HttpVersion::Http10 => {
                BodyLength::UntilClose
            }
            BodyLength::UntilClose => BodyLength::Chunked,
            length => length,
        };
        // Otherwise the rest of this request would be read as the next one.
        self.keep_alive &= request_is_whole && self.length != BodyLength::UntilClose;
        // Draining may have begun since the request came.
        self.keep_alive &= !self.time_limit.is_draining();
        let answer =
            ResponseFraming { length: self.length, version: self.version, keep_alive: self.keep_alive };
        write::response(self.out, head, answer);
        (self.is_staged, self.status) = (true, head.status);
        Ok(())
    }

    async fn data(&mut self, data: &[u8]) -> Result<(), Failure> {
        frame(self.out, data, self.length == BodyLength::Chunked);
        self.sent += data.len() as u64;
        if self.out.len() >= WORTH_SENDING {
            return self.send().await;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        if self.out.is_empty() { Ok(()) } else { self.send().await }
    }

    async fn end(&mut self, trailers: &FieldList) -> Result<(), Failure> {
        if self.length == BodyLength::Chunked {
            write::chunks_end(self.out, trailers);
        }
        self.flush().await?;
        self.stage = ReplyStage::Ended;
        Ok(())
    }
}

/// Writes truepeer's own error response. Its body is only the status text; the reason is in the log. A
/// response to HEAD has no body, but may contain its length (RFC 9110 section 9.3.2).
fn refusal(out: &mut Vec<u8>, status: u16, is_head: bool) {
    let text = format!("{status} {}\n", words(status));
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.trim_end(),
        text.len()
    );
    out.extend_from_slice(head.as_bytes());
    if !is_head {
        out.extend_from_slice(text.as_bytes());
    }
}

/// The status in words (RFC 9110 section 15, RFC 6585).
pub(crate) fn words(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// Closes a connection so that the client can read the response: reads and discards what the client still
/// sends. Many clients read no response until they have sent everything. The kernel resets a connection that
/// is closed with unread bytes, and the client would lose the response. `silence`: how long a client may
/// pause; `total`: how long it may send at [`LINGER_RATE`] or faster.
pub(crate) async fn linger<S: Connection>(
    stream: &SharedStream<S>,
    buffer: &mut Buffer,
    timeouts: &HttpTimeouts,
    (silence, total): (Duration, Duration),
    time_limit: &TimeLimit,
) {
    if !matches!(time_limit.limit(timeouts.linger, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    stream.discard();
    let mut rest = Remainder::new(silence, total, time_limit);
    loop {
        buffer.consume(usize::MAX);
        match rest.next(stream.fill(buffer)).await {
            Some(Ok(len @ 1..)) if rest.may_go_on(len) => {}
            _ => return,
        }
    }
}

/// The bytes that a client sends after its response, bounded by time and rate. Their number has no bound: it
/// says nothing about the client's intentions, and costs less than an upload that is served.
pub(crate) struct Remainder<'a> {
    time_limit: &'a TimeLimit,
    silence: Duration,
    end: Instant,
    /// The start of the last wait.
    since: Instant,
    pace: Pace,
}

impl<'a> Remainder<'a> {
    pub(crate) fn new(silence: Duration, total: Duration, time_limit: &'a TimeLimit) -> Self {
        let since = time_limit.now();
        Self { time_limit, silence, end: since + total, since, pace: Pace::default() }
    }

    /// Awaits `more`. `None`: the client is silent, or its time is over.
    pub(crate) async fn next<T>(&mut self, more: impl Future<Output = T>) -> Option<T> {
        self.since = self.time_limit.now();
        let left = self.end.saturating_duration_since(self.since);
        if left.is_zero() {
            return None;
        }
        self.time_limit.limit(self.silence.min(left), more).await.ok()
    }

    /// Counts what has come. `false`: the client is too slow.
    pub(crate) fn may_go_on(&mut self, bytes: usize) -> bool {
        self.pace.note(self.time_limit.now() - self.since, bytes);
        !self.pace.is_too_slow(self.silence, LINGER_RATE)
    }
}
