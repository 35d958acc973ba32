//! One HTTP/1 connection of a client: request after request, until either side ends it.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use truepeer_http::{HeadEnd, RequestHead, ResponseHead};
use truepeer_origin::{ClientInfo, Dial, Failure, TimeLimit};
use truepeer_session::registry::SessionStage;
use truepeer_stream::buffers::OutBuffer;
use truepeer_stream::pump::PumpEnd;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use super::client::{Http1Body, Http1Reply, ReplyStage, linger};
use super::journal::Served;
use super::serve::{Requester, ServeEnd, Service};
use crate::downstream::LEAST_IDLE;

/// Serves a client until its connection ends. `first`: bytes of the stream that were read already.
///
/// Not an async fn: that keeps each argument twice, and each idle connection would be larger by that.
pub fn serve_http1<C, O>(
    stream: C,
    first: Vec<u8>,
    client_info: ClientInfo,
    service: Rc<Service<O>>,
) -> impl Future<Output = ()>
where
    C: Connection,
    O: Dial,
{
    let access = service.access(&client_info);
    let stream = SharedStream::new(stream);
    let mut buffer = Buffer::holding(&first);
    drop(first);
    async move {
        let mut connection = Http1Connection {
            stream: &stream,
            service: &service,
            requester: Requester { client_info: &client_info, access: &access },
            time_limit: (TimeLimit::new(&service.reactor), TimeLimit::new(&service.reactor)),
            buffer: &mut buffer,
            requests: 0,
        };
        connection.run().await;
    }
}

struct Http1Connection<'a, C, O: Dial> {
    stream: &'a SharedStream<C>,
    service: &'a Service<O>,
    requester: Requester<'a, O::Stream>,
    time_limit: (TimeLimit, TimeLimit),
    buffer: &'a mut Buffer,
    requests: u64,
}

/// What to do with the connection next.
enum Next {
    /// Another request.
    Request,
    /// Close it so that the client can still read the response (see [`linger`]). `pauses`: it may send the
    /// rest of its request, with pauses.
    Linger { pauses: bool },
    /// Close it with FIN, at once.
    Close,
    /// Reset it, so that the client knows that the response is incomplete.
    Abort,
}

impl<C: Connection, O: Dial> Http1Connection<'_, C, O> {
    async fn run(&mut self) {
        let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
        loop {
            if self.buffer.is_empty() {
                request.fields.rest();
                response.fields.rest();
            }
            let next = match self.await_request(&mut request).await {
                Ok(true) => Box::pin(self.exchange(&request, &mut response)).await,
                // A close with FIN alone would become a reset if the client sent something more, and the
                // reset would discard them.
                Ok(false) if self.stream.unacknowledged() > 0 => Next::Linger { pauses: false },
                Ok(false) => Next::Close,
                Err(failure) => self.refuse(&failure).await,
            };
            // A reset could overtake the alert.
            let next = if self.stream.is_broken() { Next::Linger { pauses: false } } else { next };
            match next {
                Next::Request => {}
                Next::Linger { pauses } => {
                    let timeouts = &self.service.settings.timeouts;
                    let silence = if pauses { timeouts.linger_pause } else { timeouts.linger };
                    let limits = (silence, timeouts.linger_total);
                    return linger(self.stream, self.buffer, timeouts, limits, &self.time_limit.0).await;
                }
                Next::Close => {
                    let limit = self.service.settings.timeouts.linger;
                    let _ = self.time_limit.0.limit(limit, self.stream.shutdown()).await;
                    return;
                }
                Next::Abort => return self.stream.reset_when_closed(),
            }
        }
    }

    /// Reads a request's head. `false`: no further request comes.
    async fn await_request(&mut self, request: &mut RequestHead) -> Result<bool, Failure> {
        if self.buffer.is_empty() && !self.await_bytes().await {
            return Ok(false);
        }
        let limit = self.service.settings.timeouts.head;
        let limits = &self.service.settings.limits;
        let (stream, buffer, mut end) = (self.stream, &mut *self.buffer, HeadEnd::default());
        let whole = self.time_limit.0.limit(limit, async {
            loop {
                let read = request.read(buffer.data(), &mut end, limits).map_err(Failure::BadRequest)?;
                if let Some(len) = read {
                    buffer.consume(len);
                    return Ok(true);
                }
                if buffer.is_full() {
                    buffer.grow();
                }
                match stream.fill(buffer).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) if end.has_begun() => return Err(Failure::ClientGone),
                    Ok(0) | Err(_) => return Ok(false),
                }
            }
        });
        let whole = whole.await.unwrap_or(Err(Failure::HeadTimeout(limit)));
        self.time_limit.0.rest();
        whole
    }

    /// Waits for the first bytes of a request, without a buffer. `false`: the connection must end.
    async fn await_bytes(&mut self) -> bool {
        let came = match self.await_first_bytes().await {
            Some(came) => came,
            None => self.await_last_bytes().await,
        };
        self.time_limit.0.rest();
        came
    }

    /// The same; `None`: the loop drains.
    async fn await_first_bytes(&mut self) -> Option<bool> {
        let (reactor, time_limit) = (&self.service.reactor, &self.time_limit.0);
        let (stream, buffer, idle_list) = (self.stream, &mut *self.buffer, &self.service.idle);
        let (began, may_be_closed, mut idle) = (reactor.now(), Cell::new(false), None);
        let mut bytes = pin!(poll_fn(|cx| {
            if let Poll::Ready(filled) = stream.poll_fill(cx, buffer) {
                return Poll::Ready(Some(filled.is_ok_and(|len| len > 0)));
            }
            // Draining wakes all tasks.
            if reactor.is_draining() {
                return Poll::Ready(None);
            }
            if !may_be_closed.get() {
                return Poll::Pending;
            }
            let idle = idle.get_or_insert_with(|| idle_list.enter_late(began, cx.waker()));
            if !idle.shall_end() {
                return Poll::Pending;
            }
            stream.look_again();
            poll_last(stream, buffer, cx).map(Some)
        }));
        let limit = self.service.settings.timeouts.keep_alive;
        // Most requests come within the first second, in which the connection is on no list: it may not be
        // closed for another one yet.
        let first = limit.min(LEAST_IDLE);
        if let Ok(came) = time_limit.limit(first, bytes.as_mut()).await {
            return came;
        }
        may_be_closed.set(true);
        time_limit.limit(limit - first, bytes).await.unwrap_or(Some(false))
    }

    /// The same while the loop drains, for a short time. In the end it asks the kernel itself: a request that
    /// has arrived is answered.
    async fn await_last_bytes(&mut self) -> bool {
        let limit = self.service.settings.timeouts.last_request;
        let (stream, buffer) = (self.stream, &mut *self.buffer);
        stream.look_again();
        let bytes = poll_fn(|cx| stream.poll_fill(cx, buffer).map(|filled| filled.is_ok_and(|len| len > 0)));
        if let Ok(came) = self.time_limit.0.limit(limit, bytes).await {
            return came;
        }
        stream.look_again();
        poll_fn(|cx| poll_last(stream, buffer, cx)).await
    }

    async fn exchange(&mut self, request: &RequestHead, response: &mut ResponseHead) -> Next {
        self.requests += 1;
        self.requester.client_info.set_stage(SessionStage::Relaying);
        let (service, settings) = (self.service, &self.service.settings);
        let began = service.reactor.now();
        let keep_alive = request.keep_alive
            && !service.reactor.is_draining()
            && settings.max_requests.is_none_or(|most| self.requests < most);
        let mut body = Http1Body::new(self.stream, self.buffer, settings, &self.time_limit.0, request.length);
        let mut out = OutBuffer::take();
        let mut reply =
            Http1Reply::new(self.stream, settings, &self.time_limit.1, &mut out, request, keep_alive);
        let mut served =
            service.serve(&self.requester, request, response, &self.time_limit, &mut body, &mut reply).await;
        if let Err(failure) = &served {
            reply.refuse(failure).await;
        } else if let Ok(ServeEnd::Switched(_)) = &served
            && let Err(failure) = reply.switch(response).await
        {
            served = Err(failure);
        }
        let (stage, keep_alive, status) = (reply.stage, reply.keep_alive, reply.status);
        let (mut bytes_up, mut bytes_down) = (body.received, reply.sent);
        let was_slow = matches!(served, Err(Failure::BodyTimeout(_) | Failure::BodyTooSlow(_)));
        let pauses = !(was_slow || body.is_whole());
        drop(body);
        let client_info = self.requester.client_info;
        service.journal.add_bytes(client_info, bytes_up, bytes_down);
        let mut is_in_order = true;
        let failure = match served {
            Ok(ServeEnd::Switched(origin)) => {
                let early = std::mem::take(self.buffer);
                // Boxed: only connections that change their protocol need its memory.
                let tunnel = Box::pin(service.tunnel(client_info, early, self.stream, origin));
                let (delivered, end) = tunnel.await;
                (bytes_up, bytes_down) = delivered;
                is_in_order = matches!(end, PumpEnd::Finished);
                None
            }
            Ok(ServeEnd::Answered) => None,
            Err(failure) => Some(failure),
        };
        client_info.set_stage(SessionStage::Idle);
        let failure = failure.as_ref();
        let origin = service.origin_of(client_info, request);
        service.note(&Served { client_info, origin, request, status, bytes_up, bytes_down, began, failure });
        match (stage, keep_alive) {
            (ReplyStage::Ended, true) => Next::Request,
            (ReplyStage::Ended, false) if !is_in_order => Next::Abort,
            (ReplyStage::Ended, false) if status == 101 => Next::Close,
            (ReplyStage::Ended, false) => Next::Linger { pauses },
            (ReplyStage::Waiting | ReplyStage::Begun, _) => Next::Abort,
        }
    }

    /// Answers bytes that are not a valid request.
    async fn refuse(&mut self, failure: &Failure) -> Next {
        let (service, client_info) = (self.service, self.requester.client_info);
        let origin = client_info.route.backend;
        service.journal.on_failure(client_info, origin, failure, service.reactor.now());
        let mut out = Vec::new();
        let request = RequestHead::default();
        let mut reply =
            Http1Reply::new(self.stream, &service.settings, &self.time_limit.1, &mut out, &request, false);
        // The head is invalid, but a client that sent HEAD still expects no body.
        reply.is_head = self.buffer.data().trim_ascii_start().starts_with(b"HEAD ");
        reply.refuse(failure).await;
        let pauses = !matches!(failure, Failure::HeadTimeout(_));
        if reply.stage == ReplyStage::Ended { Next::Linger { pauses } } else { Next::Abort }
    }
}

/// Whether bytes have come that the kernel was asked for (`look_again`).
fn poll_last<C: Connection>(
    stream: &SharedStream<C>,
    buffer: &mut Buffer,
    cx: &mut Context<'_>,
) -> Poll<bool> {
    match stream.poll_fill(cx, buffer) {
        Poll::Ready(filled) => Poll::Ready(filled.is_ok_and(|len| len > 0)),
        Poll::Pending if stream.is_read_out() => Poll::Ready(false),
        // The read has stopped at this turn's allowance.
        Poll::Pending => Poll::Pending,
    }
}
