//! Writes a response to HTTP/2.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use truepeer_http::fields::{Field, FieldList, hop};
use truepeer_http::{BodyLength, ResponseHead};

use super::uploads::Upload;
use super::websocket;
use crate::exchange::{Failure, HttpSettings, Outgoing, Pace, ReplyStage, TimeLimit, words};

/// How many bytes of a response are gathered before they are sent: one frame of the default maximum size.
const WORTH_SENDING: usize = 16 << 10;

/// The sending direction of a stream.
pub(super) enum Sender {
    /// The head has not been sent.
    Head(SendResponse<Bytes>),
    /// The head has been sent.
    Body(SendStream<Bytes>),
}

impl Sender {
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        match self {
            Self::Head(respond) => respond.poll_reset(cx),
            Self::Body(stream) => stream.poll_reset(cx),
        }
    }

    fn reset(&mut self, reason: Reason) {
        match self {
            Self::Head(respond) => respond.send_reset(reason),
            Self::Body(stream) => stream.send_reset(reason),
        }
    }
}

/// Writes a response to its stream.
pub(super) struct Http2Reply<'a> {
    sender: &'a RefCell<Sender>,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    /// Gathered bytes, fewer than a frame.
    gathered: BytesMut,
    pace: Pace,
    /// The request was HEAD: its response has no body.
    is_head: bool,
    /// The request was CONNECT: only a change of protocol is a success.
    is_connect: bool,
    upload: &'a Upload<'a>,
    /// The head, and whether the stream ends with it. `h2` would discard a head that was not sent before a
    /// reset.
    staged: Option<(Response<()>, bool)>,
    pub(super) stage: ReplyStage,
    pub(super) status: u16,
    pub(super) sent: u64,
}

impl<'a> Http2Reply<'a> {
    pub(super) fn new(
        sender: &'a RefCell<Sender>,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
        method: &Method,
        upload: &'a Upload<'a>,
    ) -> Self {
        let (is_head, is_connect) = (method == Method::HEAD, method == Method::CONNECT);
        let (gathered, pace) = (BytesMut::new(), Pace::default());
        Self {
            sender,
            settings,
            time_limit,
            gathered,
            pace,
            is_head,
            is_connect,
            upload,
            staged: None,
            stage: ReplyStage::Waiting,
            status: 0,
            sent: 0,
        }
    }

    /// Sends an error response. If the response has already started, resets the stream, so that the client
    /// knows it is incomplete.
    pub(super) async fn refuse(&mut self, failure: &Failure) {
        self.staged = None;
        match failure.status() {
            Some(status) if self.stage == ReplyStage::Waiting => {
                let text = format!("{status} {}\n", words(status));
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
                response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
                (self.status, self.sent) = (status, 0);
                // The client may be gone; then the error doesn't matter.
                if self.begin(response, self.is_head).is_ok() && !self.is_head {
                    let _ = self.send(Bytes::from(text), true).await;
                }
            }
            _ if self.stage != ReplyStage::Ended => {
                let is_malformed = *failure == Failure::Http2Malformed;
                let reason = if is_malformed { Reason::PROTOCOL_ERROR } else { Reason::INTERNAL_ERROR };
                self.sender.borrow_mut().reset(reason);
            }
            _ => {}
        }
    }

    /// Tells the client of CONNECT that the origin has changed the protocol.
    pub(super) fn switch(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        let onward = hop::onward(&head.fields).filter(|field| !websocket::is_of_http1(field.spelt));
        let mut response = Response::new(());
        *response.headers_mut() = fields(onward);
        self.status = 200;
        self.begin(response, false)
    }

    fn send_head(&mut self) -> Result<(), Failure> {
        self.staged.take().map_or(Ok(()), |(response, is_end)| self.begin(response, is_end))
    }

    fn begin(&mut self, response: Response<()>, is_end: bool) -> Result<(), Failure> {
        let mut sender = self.sender.borrow_mut();
        let Sender::Head(respond) = &mut *sender else { return Err(Failure::ClientGone) };
        let stream = respond.send_response(response, is_end).map_err(|_| Failure::ClientGone)?;
        *sender = Sender::Body(stream);
        self.upload.on_response();
        self.stage = if is_end { ReplyStage::Ended } else { ReplyStage::Begun };
        Ok(())
    }

    /// Sends data as the client's window opens; `is_end`: it is the last.
    async fn send(&mut self, mut data: Bytes, is_end: bool) -> Result<(), Failure> {
        let (limit, min_rate) = (self.settings.timeouts.send, self.settings.min_rate);
        while !data.is_empty() {
            let began = self.time_limit.now();
            let room = poll_fn(|cx| self.poll_room(cx, data.len()));
            let room =
                self.time_limit.limit(limit, room).await.map_err(|_| Failure::ClientStalled(limit))??;
            self.pace.note(self.time_limit.now() - began, room.min(data.len()));
            if self.pace.is_too_slow(limit, min_rate) {
                return Err(Failure::ClientTooSlow(min_rate));
            }
            let now = data.split_to(room.min(data.len()));
            let is_last = is_end && data.is_empty();
            let Sender::Body(stream) = &mut *self.sender.borrow_mut() else {
                return Err(Failure::ClientGone);
            };
            stream.send_data(now, is_last).map_err(|_| Failure::ClientGone)?;
            if is_last {
                self.stage = ReplyStage::Ended;
            }
        }
        Ok(())
    }

    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<usize, Failure>> {
        let Sender::Body(stream) = &mut *self.sender.borrow_mut() else {
            return Poll::Ready(Err(Failure::ClientGone));
        };
        stream.reserve_capacity(wanted);
        while stream.capacity() == 0 {
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => return Poll::Ready(Err(Failure::ClientGone)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(stream.capacity()))
    }

    fn finish(&mut self, trailers: HeaderMap) -> Result<(), Failure> {
        let Sender::Body(stream) = &mut *self.sender.borrow_mut() else { return Err(Failure::ClientGone) };
        let sent = if trailers.is_empty() {
            stream.send_data(Bytes::new(), true)
        } else {
            stream.send_trailers(trailers)
        };
        self.stage = ReplyStage::Ended;
        sent.map_err(|_| Failure::ClientGone)
    }
}

impl Outgoing for Http2Reply<'_> {
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failure> {
        self.inform(head.status, fields(hop::onward(&head.fields)))
    }

    async fn proceed(&mut self) -> Result<(), Failure> {
        self.inform(100, HeaderMap::new())
    }

    async fn head(&mut self, head: &ResponseHead, _: bool) -> Result<(), Failure> {
        // RFC 8441 section 4: any 2xx would mean that the WebSocket is open.
        if self.is_connect && (200..300).contains(&head.status) {
            return Err(Failure::NoSwitch(head.status));
        }
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut headers = fields(hop::onward(&head.fields));
        if let (BodyLength::Known(length), _) | (BodyLength::None, Some(length)) =
            (head.length, head.announced)
        {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        *response.headers_mut() = headers;
        self.status = head.status;
        self.staged = Some((response, matches!(head.length, BodyLength::None | BodyLength::Known(0))));
        Ok(())
    }

    async fn data(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.sent += data.len() as u64;
        self.gathered.extend_from_slice(data);
        if self.gathered.len() >= WORTH_SENDING { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        self.send_head()?;
        let data = self.gathered.split().freeze();
        self.send(data, false).await
    }

    async fn end(&mut self, trailers: &FieldList) -> Result<(), Failure> {
        self.send_head()?;
        let data = self.gathered.split().freeze();
        self.send(data, trailers.is_empty()).await?;
        // The last piece, or a head without a body, has ended the stream already.
        if self.stage == ReplyStage::Ended { Ok(()) } else { self.finish(fields(trailers.iter())) }
    }
}

impl Http2Reply<'_> {
    fn inform(&mut self, status: u16, headers: HeaderMap) -> Result<(), Failure> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::CONTINUE);
        *response.headers_mut() = headers;
        match &mut *self.sender.borrow_mut() {
            Sender::Head(respond) => respond.send_informational(response).map_err(|_| Failure::ClientGone),
            Sender::Body(_) => Ok(()),
        }
    }
}

/// Leaves out fields that HTTP/2 can't carry.
pub(crate) fn fields<'a>(fields: impl Iterator<Item = Field<'a>>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for field in fields {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(field.spelt), HeaderValue::from_bytes(field.value))
        {
            headers.append(name, value);
        }
    }
    headers
}
