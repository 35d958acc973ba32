//! One stream: one request and its response.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use truepeer_http::{BodyLength, RequestHead, ResponseHead};

use super::malformed::Malformed;
use super::request::{self, Http2Body};
use super::response::{Http2Reply, Sender};
use super::uploads::{Upload, Uploads};
use super::websocket::StreamConnection;
use crate::client_info::ClientInfo;
use crate::exchange::{Failure, ReplyStage, Requester, ServeEnd, Served, Service, TimeLimit};
use crate::origin::{Accesses, Dial};
use crate::read_buffer::Buffer;
use crate::shared_stream::SharedStream;

/// What is known of the connection's frames.
pub(super) struct Watched<'a> {
    pub(super) malformed: &'a Malformed,
    pub(super) uploads: &'a Uploads,
    /// The path as it was sent, if `h2` got another one.
    pub(super) odd_path: Option<Rc<[u8]>>,
}

/// Serves a stream. Returns whether the client has cancelled the request.
pub(super) async fn serve<O: Dial>(
    service: &Service<O>,
    client_info: &ClientInfo,
    access: &Accesses<O::Stream>,
    watched: Watched<'_>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> bool {
    let began = service.reactor.now();
    let (settings, reactor) = (&service.settings, &service.reactor);
    let time_limit = (TimeLimit::new(reactor), TimeLimit::new(reactor));
    let stream = respond.stream_id().as_u32();
    let sender = RefCell::new(Sender::Head(respond));
    let (parts, body) = request.into_parts();
    let head = request::head(&parts, watched.odd_path.as_deref(), !body.is_end_stream(), settings);
    let length = match head.as_ref().map(|head| head.length) {
        Ok(BodyLength::Known(length)) => Some(length),
        _ => None,
    };
    let upload = Upload::new(watched.uploads, stream, length);
    let mut body = Http2Body::new(body, &sender, settings, &time_limit.0, watched.malformed, &upload);
    let mut reply = Http2Reply::new(&sender, settings, &time_limit.1, &parts.method, &upload);
    let mut switched = None;
    let (head, outcome) = match head {
        Ok(head) => {
            let requester = Requester { client_info, access };
            let mut response = ResponseHead::default();
            let served =
                service.serve(&requester, &head, &mut response, &time_limit, &mut body, &mut reply).await;
            let outcome = served.and_then(|end| match end {
                ServeEnd::Answered => Ok(()),
                ServeEnd::Switched(origin) => {
                    switched = Some(origin);
                    reply.switch(&response)
                }
            });
            (head, outcome)
        }
        Err(error) => (RequestHead::default(), Err(Failure::BadRequest(error))),
    };
    let failure = outcome.err();
    if let Some(failure) = &failure {
        if *failure == Failure::Http2Malformed {
            watched.malformed.expect_reset(stream);
        }
        reply.refuse(failure).await;
    }
    let (status, stage) = (reply.status, reply.stage);
    let (mut bytes_up, mut bytes_down) = (body.received, reply.sent);
    drop(reply);
    service.journal.add_bytes(client_info, bytes_up, bytes_down);
    if let Some(origin) = switched.filter(|_| failure.is_none()) {
        let incoming = body.into_stream();
        if let Sender::Body(outgoing) = sender.into_inner() {
            let stream = SharedStream::new(StreamConnection::new(incoming, outgoing));
            let tunnel = Box::pin(service.tunnel(client_info, Buffer::default(), &stream, origin));
            let (delivered, _) = tunnel.await;
            (bytes_up, bytes_down) = delivered;
        }
    } else if stage == ReplyStage::Ended {
        body.discard().await;
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
    failure == Some(Failure::ClientGone)
}
