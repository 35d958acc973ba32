//! One stream: one request and its response.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use truepeer_http::RequestHead;
use truepeer_http::http2::StreamHandle;
use truepeer_origin::{Accesses, ClientInfo, Dial, Failure, TimeLimit};
use truepeer_session::budget::Budget;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;

use super::request::{Http2Body, failure};
use super::response::Http2Reply;
use super::websocket::{self, StreamConnection};
use crate::exchange::{ReplyStage, Requester, ServeEnd, Served, Service};

/// What the requests of a connection share.
pub(super) struct Client<O: Dial> {
    pub(super) service: Rc<Service<O>>,
    pub(super) client_info: ClientInfo,
    pub(super) access: Accesses<O::Stream>,
    /// See [`super::serve_http2`].
    pub(super) share: Option<Budget>,
}

/// Serves a stream.
pub(super) async fn serve<O: Dial>(client: &Client<O>, stream: StreamHandle) {
    let Client { service, client_info, access, .. } = client;
    let began = service.reactor.now();
    let (settings, reactor) = (&service.settings, &service.reactor);
    let time_limit = (TimeLimit::new(reactor), TimeLimit::new(reactor));
    let (mut head, refused) = match stream.take_request() {
        Ok(head) => (head, None),
        Err(error) => (RequestHead::default(), Some(Failure::BadRequest(error))),
    };
    let is_websocket = head.wants_upgrade;
    if is_websocket {
        websocket::make_upgrade(&mut head);
    }
    let mut response = stream.take_response();
    let mut body = Http2Body::new(&stream, settings, &time_limit.0);
    let mut reply = Http2Reply::new(&stream, settings, &time_limit.1, is_websocket);
    let mut switched = None;
    let outcome = match refused.or_else(|| failed(&stream)) {
        Some(failure) => Err(failure),
        None => {
            let requester = Requester { client_info, access };
            let served =
                service.serve(&requester, &head, &mut response, &time_limit, &mut body, &mut reply).await;
            match served {
                Ok(ServeEnd::Switched(origin)) => {
                    switched = Some(origin);
                    reply.switch(&response).await
                }
                served => served.map(|_| ()),
            }
        }
    };
    let failure = outcome.err().map(|failure| match failure {
        Failure::ClientGone => failed(&stream).unwrap_or(failure),
        failure => failure,
    });
    if let Some(failure) = &failure {
        reply.refuse(failure).await;
    }
    let (status, stage) = (reply.status, reply.stage);
    let (mut bytes_up, mut bytes_down) = (body.received, reply.sent);
    drop(reply);
    service.journal.add_bytes(client_info, bytes_up, bytes_down);
    let mut rest = None;
    if let Some(origin) = switched.filter(|_| failure.is_none()) {
        drop(body);
        let stream = SharedStream::new(StreamConnection::new(stream));
        // Boxed: few streams are tunnels.
        let tunnel = Box::pin(service.tunnel(client_info, Buffer::default(), &stream, origin));
        let (delivered, _) = tunnel.await;
        (bytes_up, bytes_down) = delivered;
    } else {
        if stage == ReplyStage::Ended {
            body.discard().await;
        } else {
            drop(body);
        }
        rest = Some(stream);
    }
    service.note(&Served {
        client_info,
        origin: service.origin_of(client_info, &head),
        request: &head,
        status,
        bytes_up,
        bytes_down,
        began,
        failure: failure.as_ref(),
    });
    if let Some(stream) = rest {
        stream.give_back(head, response);
    }
}

/// Why the stream has ended before its time, if it has.
fn failed(stream: &StreamHandle) -> Option<Failure> {
    match stream.poll_failed(&Context::from_waker(Waker::noop())) {
        Poll::Ready(error) => Some(failure(error)),
        Poll::Pending => None,
    }
}
