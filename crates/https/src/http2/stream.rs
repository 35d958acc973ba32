//! One stream: one request, and its response.

use std::cell::RefCell;
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request};
use truepeer_http1::{RequestHead, ResponseHead};

use super::malformed::Malformed;
use super::request::{self, Body};
use super::response::{Reply, Sender};
use crate::exchange::{Failure, Guest, Patience, Served, Service, Stage, Visit};
use crate::origin::{Access, Dial};

/// Serves a stream; returns whether its client has taken the request back.
pub(super) async fn serve<O: Dial>(
    service: &Service<O>,
    visit: &Visit,
    access: &Access<O::Stream>,
    malformed: &Malformed,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> bool {
    let began = Instant::now();
    let (settings, reactor) = (&service.settings, &service.reactor);
    let patience = (Patience::new(reactor), Patience::new(reactor));
    let sender = RefCell::new(Sender::Head(respond));
    let (parts, body) = request.into_parts();
    let head = request::head(&parts, !body.is_end_stream(), settings);
    let mut body = Body::new(body, &sender, settings, &patience.0, malformed);
    let mut reply = Reply::new(&sender, settings, &patience.1, parts.method == Method::HEAD);
    let (head, outcome) = match head {
        Ok(head) => {
            let guest = Guest { visit, access };
            let mut response = ResponseHead::default();
            let served = service.serve(&guest, &head, &mut response, &patience, &mut body, &mut reply).await;
            (head, served.map(|_| ()))
        }
        Err(error) => (RequestHead::default(), Err(Failure::BadRequest(error))),
    };
    let failure = outcome.err();
    if let Some(failure) = &failure {
        reply.refuse(failure).await;
    }
    let served = Served {
        visit,
        request: &head,
        status: reply.status,
        bytes_up: body.received,
        bytes_down: reply.sent,
        began,
        failure: failure.as_ref(),
    };
    service.note(&served);
    if reply.stage == Stage::Ended {
        body.discard().await;
    }
    failure == Some(Failure::ClientGone)
}
