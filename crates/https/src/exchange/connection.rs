//! One client's connection of HTTP/1: request after request, until one of the two ends it.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use truepeer_http1::{HeadEnd, RequestHead, ResponseHead};

use super::buffer::Buffer;
use super::client::{Body, Reply, Stage, linger};
use super::journal::Served;
use super::patience::Patience;
use super::serve::{Ended, Guest, Service};
use super::shared::Shared;
use super::{Failure, Visit};
use crate::origin::Dial;
use crate::pump::{End, IdleTimeouts, Pump};
use crate::stream::Connection as ClientConnection;

/// Serves a client until its connection ends.
pub async fn serve_http1<C, O>(stream: C, visit: Visit, service: Rc<Service<O>>)
where
    C: ClientConnection,
    O: Dial,
{
    let access = service.access(&visit);
    let stream = Shared::new(stream);
    let mut connection = Connection {
        stream: &stream,
        service: &service,
        guest: Guest { visit: &visit, access: &access },
        patience: (Patience::new(&service.reactor), Patience::new(&service.reactor)),
        buffer: Buffer::default(),
        requests: 0,
    };
    connection.run().await;
}

struct Connection<'a, C, O: Dial> {
    stream: &'a Shared<C>,
    service: &'a Service<O>,
    guest: Guest<'a, O::Stream>,
    patience: (Patience, Patience),
    buffer: Buffer,
    requests: u64,
}

/// What to do with the connection next.
enum Next {
    /// Another request.
    Request,
    /// Close it, and take care that the client gets what was sent.
    Linger,
    /// Close it at once, in order.
    Close,
    /// Close it in such a way that nobody takes what was sent for the whole.
    Abort,
}

impl<C: ClientConnection, O: Dial> Connection<'_, C, O> {
    async fn run(&mut self) {
        let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
        loop {
            if self.buffer.is_empty() {
                request.fields.rest();
                response.fields.rest();
            }
            let next = match self.await_request(&mut request).await {
                Ok(true) => Box::pin(self.exchange(&request, &mut response)).await,
                Ok(false) => Next::Close,
                Err(failure) => self.refuse(&failure).await,
            };
            match next {
                Next::Request => {}
                Next::Linger => {
                    let settings = &self.service.settings;
                    return linger(self.stream, &mut self.buffer, settings, &self.patience.0).await;
                }
                Next::Close => {
                    let limit = self.service.settings.timeouts.linger;
                    let _ = self.patience.0.limit(limit, self.stream.shutdown()).await;
                    return;
                }
                Next::Abort => return self.stream.reset_when_closed(),
            }
        }
    }

    /// Waits for a request's head; `false`: there will be none.
    async fn await_request(&mut self, request: &mut RequestHead) -> Result<bool, Failure> {
        if self.buffer.is_empty() && !self.await_bytes().await {
            return Ok(false);
        }
        let limit = self.service.settings.timeouts.head;
        let limits = &self.service.settings.limits;
        let (stream, buffer, mut end) = (self.stream, &mut self.buffer, HeadEnd::default());
        let whole = self.patience.0.limit(limit, async {
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
        self.patience.0.rest();
        whole
    }

    /// Waits for the first bytes of a request, in no memory; `false`: they won't come, or are not wanted any more.
    async fn await_bytes(&mut self) -> bool {
        let reactor = &self.service.reactor;
        let limit = self.service.settings.timeouts.keep_alive;
        let (stream, buffer) = (self.stream, &mut self.buffer);
        let (mut has_looked, mut idle) = (false, None);
        let bytes = poll_fn(|cx| {
            loop {
                if let Poll::Ready(filled) = stream.poll_fill(cx, buffer) {
                    return Poll::Ready(filled.is_ok_and(|len| len > 0));
                }
                let idle = idle.get_or_insert_with(|| self.service.idle.enter(reactor.now(), cx.waker()));
                // The end wakes all tasks.
                if !reactor.is_draining() {
                    return if idle.shall_end() { Poll::Ready(false) } else { Poll::Pending };
                }
                if has_looked {
                    // It may only have been enough for this turn: a request that has come is still answered.
                    return if stream.is_read_out() { Poll::Ready(false) } else { Poll::Pending };
                }
                has_looked = true;
                stream.look_again();
            }
        });
        let came = self.patience.0.limit(limit, bytes).await;
        self.patience.0.rest();
        came.unwrap_or(false)
    }

    async fn exchange(&mut self, request: &RequestHead, response: &mut ResponseHead) -> Next {
        self.requests += 1;
        let (service, settings) = (self.service, &self.service.settings);
        let began = std::time::Instant::now();
        let keep_alive = request.keep_alive
            && !service.reactor.is_draining()
            && settings.max_requests.is_none_or(|most| self.requests < most);
        let mut body = Body::new(self.stream, &mut self.buffer, settings, &self.patience.0, request.length);
        let mut out = Vec::with_capacity(1024);
        let mut reply = Reply::new(self.stream, settings, &self.patience.1, &mut out, request, keep_alive);
        let mut served =
            service.serve(&self.guest, request, response, &self.patience, &mut body, &mut reply).await;
        if let Err(failure) = &served {
            reply.refuse(failure).await;
        } else if let Ok(Ended::Switched(_)) = &served
            && let Err(failure) = reply.switch(response).await
        {
            served = Err(failure);
        }
        let (stage, keep_alive, status) = (reply.stage, reply.keep_alive, reply.status);
        let (mut bytes_up, mut bytes_down) = (body.received, reply.sent);
        drop(body);
        let mut is_in_order = true;
        let failure = match served {
            Ok(Ended::Switched(mut origin)) => {
                let timeouts = IdleTimeouts {
                    both: Some(settings.timeouts.tunnel),
                    half: Some(settings.timeouts.half_tunnel),
                };
                let (up, down) = (self.buffer.take(), origin.buffer.take());
                let mut pump = Pump::new(up, down, service.backlog.clone());
                let end = pump.run(&service.reactor, timeouts, self.stream, &origin.stream).await;
                (bytes_up, bytes_down) = pump.delivered();
                is_in_order = matches!(end, End::Finished);
                None
            }
            Ok(Ended::Answered) => None,
            Err(failure) => Some(failure),
        };
        let visit = self.guest.visit;
        let failure = failure.as_ref();
        service.note(&Served { visit, request, status, bytes_up, bytes_down, began, failure });
        match (stage, keep_alive) {
            (Stage::Ended, true) => Next::Request,
            (Stage::Ended, false) if !is_in_order => Next::Abort,
            (Stage::Ended, false) if status == 101 => Next::Close,
            (Stage::Ended, false) => Next::Linger,
            (Stage::Waiting | Stage::Begun, _) => Next::Abort,
        }
    }

    /// Answers what is no request.
    async fn refuse(&mut self, failure: &Failure) -> Next {
        let (service, visit) = (self.service, self.guest.visit);
        service.journal.on_failure(visit, failure, service.reactor.now());
        let mut out = Vec::new();
        let request = RequestHead::default();
        let mut reply =
            Reply::new(self.stream, &service.settings, &self.patience.1, &mut out, &request, false);
        // No head was understood, but the client reads the answer as one to what it has sent.
        reply.is_head = self.buffer.data().trim_ascii_start().starts_with(b"HEAD ");
        reply.refuse(failure).await;
        if reply.stage == Stage::Ended { Next::Linger } else { Next::Abort }
    }
}
