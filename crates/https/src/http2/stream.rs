//! One stream: one request and its response.

use std::cell::RefCell;
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request};
use truepeer_http1::{RequestHead, ResponseHead};

use super::malformed::Malformed;
use super::request::{self, Http2Body};
use super::response::{Http2Reply, Sender};
use crate::client_info::ClientInfo;
use crate::exchange::{Failure, ReplyStage, Requester, Served, Service, TimeLimit};
use crate::origin::{Access, Dial};

/// Serves a stream. Returns whether the client has cancelled the request.
pub(super) async fn serve<O: Dial>(
    service: &Service<O>,
    client_info: &ClientInfo,
    access: &Access<O::Stream>,
    malformed: &Malformed,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> bool {
    let began = Instant::now();
    let (settings, reactor) = (&service.settings, &service.reactor);
    let time_limit = (TimeLimit::new(reactor), TimeLimit::new(reactor));
    let sender = RefCell::new(Sender::Head(respond));
    let (parts, body) = request.into_parts();
    let head = request::head(&parts, !body.is_end_stream(), settings);
    let mut body = Http2Body::new(body, &sender, settings, &time_limit.0, malformed);
    let mut reply = Http2Reply::new(&sender, settings, &time_limit.1, parts.method == Method::HEAD);
    let (head, outcome) = match head {
        Ok(head) => {
            let requester = Requester { client_info, access };
            let mut response = ResponseHead::default();
            let served =
                service.serve(&requester, &head, &mut response, &time_limit, &mut body, &mut reply).await;
            (head, served.map(|_| ()))
        }
        Err(error) => (RequestHead::default(), Err(Failure::BadRequest(error))),
    };
    let failure = outcome.err();
    if let Some(failure) = &failure {
        reply.refuse(failure).await;
    }
    let served = Served {
        client_info,
        request: &head,
        status: reply.status,
        bytes_up: body.received,
        bytes_down: reply.sent,
        began,
        failure: failure.as_ref(),
    };
    service.journal.add_bytes(client_info, served.bytes_up, served.bytes_down);
    service.note(&served);
    if reply.stage == ReplyStage::Ended {
        body.discard().await;
    }
    failure == Some(Failure::ClientGone)
}
