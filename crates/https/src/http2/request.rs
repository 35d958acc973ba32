//! Reads a request's head and body from HTTP/2.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, header};
use truepeer_http::fields::{FieldList, FieldName};
use truepeer_http::{BodyLength, HeadError, HttpLimits, RequestHead};

use super::malformed::Malformed;
use super::response::Sender;
use super::uploads::Upload;
use super::websocket;
use crate::exchange::{Departure, Failure, HttpSettings, Incoming, Pace, Remainder, TimeLimit};

/// Builds the request's head. `odd_path`: the path as it was sent, if `h2` got another one.
///
/// # Errors
/// The request's fault.
pub(super) fn head(
    parts: &Parts,
    odd_path: Option<&[u8]>,
    has_body: bool,
    settings: &HttpSettings,
) -> Result<RequestHead, HeadError> {
    let is_websocket = websocket::is_asked_for(parts);
    if parts.method == Method::CONNECT && !is_websocket {
        return Err(HeadError::Target);
    }
    let mut names = parts.headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let named = names.next();
    if names.next().is_some() {
        return Err(HeadError::HostRepeated);
    }
    let host = match (parts.uri.authority(), named) {
        // RFC 9113 8.3.1: they must not differ.
        (Some(authority), Some(host)) if !host.eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
            return Err(HeadError::HostDisagrees);
        }
        (Some(authority), _) => authority.as_str().as_bytes(),
        (None, Some(host)) => host,
        (None, None) => return Err(HeadError::HostMissing),
    };
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes();
    let target = odd_path.unwrap_or(target);
    if target.len() > settings.limits.target_bytes {
        return Err(HeadError::TargetTooLong);
    }
    let mut head = RequestHead::default();
    let method = if is_websocket { &Method::GET } else { &parts.method };
    head.begin_http2(method.as_str().as_bytes(), target, host);
    for (name, value) in &parts.headers {
        let is_replaced = is_websocket && websocket::is_of_http1(name.as_str().as_bytes());
        if name != header::COOKIE && !is_replaced {
            head.fields.push(name.as_str().as_bytes(), trimmed(value));
        }
    }
    // RFC 9113 8.2.3: cookies may come as several fields. HTTP/1.1 has one.
    let crumbs: Vec<_> = parts.headers.get_all(header::COOKIE).iter().map(trimmed).collect();
    if !crumbs.is_empty() {
        head.fields.push(b"cookie", &crumbs.join(&b"; "[..]));
    }
    check_size(&head, &settings.limits)?;
    // The bytes of a WebSocket are no body.
    head.finish_http2(has_body && !is_websocket)?;
    if is_websocket {
        // A length would make a body of the first bytes.
        if head.length != BodyLength::None {
            return Err(HeadError::Target);
        }
        websocket::make_upgrade(&mut head);
    }
    Ok(head)
}

/// Holds the head to the limits of the same one in HTTP/1.1.
fn check_size(head: &RequestHead, limits: &HttpLimits) -> Result<(), HeadError> {
    if head.fields.len() > limits.fields {
        return Err(HeadError::TooManyFields);
    }
    let line = head.method().len() + head.target().len() + "  HTTP/1.1\r\n".len();
    let host = "Host: \r\n".len() + head.host().len();
    let fields = head.fields.iter().map(|field| field.spelt.len() + field.value.len() + ": \r\n".len());
    let bytes = line + host + fields.sum::<usize>() + "\r\n".len();
    if bytes > limits.head_bytes { Err(HeadError::TooLong) } else { Ok(()) }
}

/// A request's body, from its stream.
pub(super) struct Http2Body<'a> {
    stream: RecvStream,
    sender: &'a RefCell<Sender>,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    malformed: &'a Malformed,
    upload: &'a Upload<'a>,
    piece: Bytes,
    trailers: FieldList,
    pace: Pace,
    pub(super) received: u64,
}

impl<'a> Http2Body<'a> {
    pub(super) fn new(
        stream: RecvStream,
        sender: &'a RefCell<Sender>,
        settings: &'a HttpSettings,
        time_limit: &'a TimeLimit,
        malformed: &'a Malformed,
        upload: &'a Upload<'a>,
    ) -> Self {
        let (piece, trailers) = (Bytes::new(), FieldList::default());
        let pace = Pace::default();
        Self { stream, sender, settings, time_limit, malformed, upload, piece, trailers, pace, received: 0 }
    }

    /// The next DATA frame that is not empty. Empty ones don't extend the timeout.
    async fn frame(&mut self) -> Result<Option<Bytes>, Failure> {
        let (limit, stream, upload) = (self.settings.timeouts.body, &mut self.stream, self.upload);
        let frame = async {
            loop {
                match poll_fn(|cx| poll_data(stream, upload, cx)).await {
                    Came::Frame(Some(Ok(data))) if data.is_empty() => {}
                    came => return came,
                }
            }
        };
        let (began, min_rate) = (self.time_limit.now(), self.settings.min_rate);
        match self.time_limit.limit(limit, frame).await {
            Ok(Came::Frame(Some(Ok(data)))) => {
                self.pace.note(self.time_limit.now() - began, data.len());
                let is_too_slow = self.pace.is_too_slow(limit, min_rate);
                if is_too_slow { Err(Failure::BodyTooSlow(min_rate)) } else { Ok(Some(data)) }
            }
            Ok(Came::Frame(None)) => Ok(None),
            Ok(Came::Frame(Some(Err(_)))) => Err(Failure::ClientGone),
            Ok(Came::Cut) => {
                // The response may go on for long.
                self.departure().await;
                Err(Failure::ClientGone)
            }
            Err(_) => Err(Failure::BodyTimeout(limit)),
        }
    }

    async fn read_trailers(&mut self) -> Result<(), Failure> {
        let limit = self.settings.timeouts.body;
        match self.time_limit.limit(limit, poll_fn(|cx| self.stream.poll_trailers(cx))).await {
            Ok(Ok(_)) if self.malformed.take(self.stream.stream_id().as_u32()) => {
                Err(Failure::Http2Malformed)
            }
            Ok(Ok(trailers)) => {
                keep(&mut self.trailers, &trailers.unwrap_or_default());
                Ok(())
            }
            Ok(Err(_)) => Err(Failure::ClientGone),
            Err(_) => Err(Failure::BodyTimeout(limit)),
        }
    }
}

impl Http2Body<'_> {
    /// The stream, of which nothing was read.
    pub(super) fn into_stream(self) -> RecvStream {
        self.stream
    }

    /// Discards the rest of a request that already has its response. Many clients read no response until they
    /// have sent everything, and treat an early reset as an error. If the client is too slow or continues for
    /// too long, dropping the stream makes `h2` send RST_STREAM(NO_ERROR) (RFC 9113 section 8.1).
    pub(super) async fn discard(mut self) {
        let (stream, upload, timeouts) = (&mut self.stream, self.upload, &self.settings.timeouts);
        let unused = std::mem::take(&mut self.piece).len();
        let _ = stream.flow_control().release_capacity(unused);
        let mut rest = Remainder::new(timeouts, timeouts.linger_total, self.time_limit);
        while let Some(came) = rest.next(poll_fn(|cx| poll_data(stream, upload, cx))).await {
            let Came::Frame(Some(Ok(data))) = came else { return };
            let _ = stream.flow_control().release_capacity(data.len());
            if !rest.may_go_on(data.len()) {
                return;
            }
        }
    }
}

/// What a stream gives.
enum Came {
    /// A DATA frame, or the end.
    Frame(Option<Result<Bytes, h2::Error>>),
    /// The request has ended before its length: nothing more comes.
    Cut,
}

fn poll_data(stream: &mut RecvStream, upload: &Upload<'_>, cx: &mut Context<'_>) -> Poll<Came> {
    match stream.poll_data(cx) {
        Poll::Ready(frame) => Poll::Ready(Came::Frame(frame)),
        Poll::Pending => upload.poll_cut(cx).map(|()| Came::Cut),
    }
}

/// RFC 9110 6.5.1: a trailer must not change the framing, the routing, or the client's identity.
pub(crate) fn keep(list: &mut FieldList, trailers: &HeaderMap) {
    for (name, value) in trailers {
        if FieldName::of(name.as_str().as_bytes()) == FieldName::Other {
            list.push(name.as_str().as_bytes(), trimmed(value));
        }
    }
}

/// RFC 9113 8.2.1: a value has no white space at its ends. `h2` accepts it, and an origin by HTTP/2 may
/// refuse it.
fn trimmed(value: &HeaderValue) -> &[u8] {
    value.as_bytes().trim_ascii()
}

impl Incoming for Http2Body<'_> {
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        // The origin has taken the last piece: open the window by its size.
        let used = std::mem::take(&mut self.piece).len();
        if used > 0 {
            self.stream.flow_control().release_capacity(used).map_err(|_| Failure::ClientGone)?;
        }
        let Some(data) = self.frame().await? else {
            self.read_trailers().await?;
            return Ok(None);
        };
        self.received += data.len() as u64;
        if self.settings.max_body.is_some_and(|most| self.received > most) {
            return Err(Failure::BodyTooLarge);
        }
        self.piece = data;
        Ok(Some(&self.piece))
    }

    fn trailers(&self) -> &FieldList {
        &self.trailers
    }

    async fn departure(&mut self) -> Departure {
        // Ready when the client resets the stream, or the connection ends.
        let _ = poll_fn(|cx| self.sender.borrow_mut().poll_reset(cx)).await;
        Departure::Gone
    }
}
