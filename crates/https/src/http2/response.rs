//! Writes a response to HTTP/2.

use std::future::poll_fn;
use std::task::{Context, Poll};

use truepeer_http::fields::FieldList;
use truepeer_http::http2::{Reason, StreamHandle, encode};
use truepeer_http::{BodyLength, ResponseHead};
use truepeer_origin::{Failure, HttpSettings, Outgoing, TimeLimit};
use truepeer_stream::buffers::OutBuffer;

use crate::exchange::{Pace, ReplyStage, words};

/// Fewer bytes of a response than this are gathered before they are sent: one frame of the default maximum
/// size.
const WORTH_SENDING: usize = 16 << 10;

/// Writes a response to its stream.
pub(super) struct Http2Reply<'a> {
    sink: Sink<'a>,
    /// A head that was not sent: its fields stand at the start of `gathered`. Until it is sent, another
    /// response can take its place.
    staged: Option<StagedHead>,
    /// Bytes of the body are gathered behind the head.
    gathered: OutBuffer,
    /// The request was HEAD: its response has no body.
    is_head: bool,
    /// The request was CONNECT: only a change of protocol is a success.
    is_connect: bool,
    pub(super) stage: ReplyStage,
    pub(super) status: u16,
    pub(super) sent: u64,
}

#[derive(Debug, Clone, Copy)]
struct StagedHead {
    bytes: usize,
    /// The stream ends with it.
    ends: bool,
}

impl<'a> Http2Reply<'a> {
    pub(super) fn new(
        stream: &'a StreamHandle,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
        is_connect: bool,
    ) -> Self {
        Self {
            sink: Sink { stream, settings, time_limit, pace: Pace::default() },
            staged: None,
            gathered: OutBuffer::take(),
            is_head: stream.is_head(),
            is_connect,
            stage: ReplyStage::Waiting,
            status: 0,
            sent: 0,
        }
    }

    /// Sends an error response. If the response has already started, resets the stream, so that the client
    /// knows it is incomplete.
    pub(super) async fn refuse(&mut self, failure: &Failure) {
        self.staged = None;
        self.gathered.clear();
        match failure.status() {
            Some(status) if self.stage == ReplyStage::Waiting => {
                let text = format!("{status} {}\n", words(status));
                encode::status(&mut self.gathered, status);
                encode::write_field(&mut self.gathered, b"content-type", b"text/plain");
                encode::write_field(&mut self.gathered, b"content-length", text.len().to_string().as_bytes());
                self.stage_head(status, self.is_head);
                if !self.is_head {
                    self.gathered.extend_from_slice(text.as_bytes());
                }
                self.sent = 0;
                // The client may be gone; then the error doesn't matter.
                let _ = self.send_gathered(true).await;
            }
            _ if self.stage != ReplyStage::Ended => self.sink.stream.reset(Reason::INTERNAL_ERROR),
            _ => {}
        }
    }

    /// Tells the client of CONNECT that the origin has changed the protocol.
    pub(super) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        encode::opened(&mut self.gathered, &head.fields);
        self.stage_head(200, false);
        self.send_gathered(false).await
    }

    fn stage_head(&mut self, status: u16, ends: bool) {
        self.status = status;
        self.staged = Some(StagedHead { bytes: self.gathered.len(), ends });
    }

    /// Sends the head and what was gathered; `ends`: it is the last of the body.
    async fn send_gathered(&mut self, ends: bool) -> Result<(), Failure> {
        let mut from = 0;
        if let Some(StagedHead { bytes, ends }) = self.staged {
            self.sink.head_room().await?;
            self.sink.stream.send_head(&self.gathered[..bytes], false, ends);
            self.staged = None;
            self.stage = if ends { ReplyStage::Ended } else { ReplyStage::Begun };
            from = bytes;
        }
        let data = &self.gathered[from..];
        if !data.is_empty() {
            self.sink.send(data, ends).await?;
            if ends {
                self.stage = ReplyStage::Ended;
            }
        }
        self.gathered.clear();
        Ok(())
    }

    async fn send_interim(&mut self, status: u16, fields: &FieldList) -> Result<(), Failure> {
        self.sink.head_room().await?;
        let mut block = OutBuffer::take();
        encode::interim(&mut block, status, fields);
        self.sink.stream.send_head(&block, true, false);
        Ok(())
    }
}

impl Outgoing for Http2Reply<'_> {
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        self.send_interim(head.status, &head.fields).await
    }

    async fn proceed(&mut self) -> Result<(), Failure> {
        self.send_interim(100, &FieldList::default()).await
    }

    async fn head(&mut self, head: &ResponseHead, _: bool) -> Result<(), Failure> {
        // RFC 8441 section 4: any 2xx would mean that the WebSocket is open.
        if self.is_connect && (200..300).contains(&head.status) {
            return Err(Failure::NoSwitch(head.status));
        }
        encode::response(&mut self.gathered, head);
        self.stage_head(head.status, matches!(head.length, BodyLength::None | BodyLength::Known(0)));
        Ok(())
    }

    async fn data(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.sent += data.len() as u64;
        if self.gathered.len() + data.len() < WORTH_SENDING {
            self.gathered.extend_from_slice(data);
            return Ok(());
        }
        self.send_gathered(false).await?;
        self.sink.send(data, false).await
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        self.send_gathered(false).await
    }

    async fn end(&mut self, trailers: &FieldList) -> Result<(), Failure> {
        self.send_gathered(trailers.is_empty()).await?;
        // The last piece, or a head without a body, has ended the stream already.
        if self.stage != ReplyStage::Ended {
            let is_open = self.sink.stream.send_end(trailers);
            self.stage = ReplyStage::Ended;
            if !is_open {
                return Err(Failure::ClientGone);
            }
        }
        Ok(())
    }
}

/// The sending direction of a stream, with the client's time limits.
struct Sink<'a> {
    stream: &'a StreamHandle,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    pace: Pace,
}

impl Sink<'_> {
    /// Sends data as there is room for it; `ends`: it is the last of the stream.
    async fn send(&mut self, mut data: &[u8], ends: bool) -> Result<(), Failure> {
        while !data.is_empty() {
            let (stream, wanted) = (self.stream, data.len());
            let room = self.room(|cx| stream.poll_room(cx, wanted)).await?;
            let (now, later) = data.split_at(room.min(wanted));
            stream.send_data(now, ends && later.is_empty());
            data = later;
        }
        Ok(())
    }

    async fn head_room(&mut self) -> Result<(), Failure> {
        let stream = self.stream;
        self.room(|cx| stream.poll_head_room(cx).map(|is_open| is_open.then_some(0))).await.map(|_| ())
    }

    /// Waits for room. A client may take the responses of other streams first: then it is as fast as it takes
    /// those. The rate counts during the wait, too: otherwise one byte before each timeout would keep all
    /// streams that wait.
    async fn room(&mut self, poll: impl Fn(&Context<'_>) -> Poll<Option<usize>>) -> Result<usize, Failure> {
        let (limit, min_rate) = (self.settings.timeouts.send, self.settings.min_rate);
        let (began, before) = (self.time_limit.now(), self.stream.taken_before_this());
        let moved = || match (before, self.stream.taken_before_this()) {
            (Some(before), Some(now)) => now - before,
            _ => 0,
        };
        let least = u128::from(min_rate) * limit.as_millis() / 1000;
        let mut moved_before = 0;
        let room = loop {
            match self.time_limit.limit(limit, poll_fn(|cx| poll(cx))).await {
                Ok(room) => break room.ok_or(Failure::ClientGone)?,
                Err(_) => match moved().saturating_sub(moved_before) {
                    0 => return Err(Failure::ClientStalled(limit)),
                    more if u128::from(more) < least => return Err(Failure::ClientTooSlow(min_rate)),
                    more => moved_before += more,
                },
            }
        };
        let moved = usize::try_from(moved()).unwrap_or(usize::MAX);
        self.pace.note(self.time_limit.now() - began, moved.max(room));
        let is_too_slow = self.pace.is_too_slow(limit, min_rate);
        if is_too_slow { Err(Failure::ClientTooSlow(min_rate)) } else { Ok(room) }
    }
}
