//! A client's connection and its task.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use truepeer_http::http2::{Fault, Preface, Reason, Role, StreamHandle};
use truepeer_origin::{ClientInfo, Dial, Failure, Http2Wire, SharedState, TimeLimit};
use truepeer_session::budget::{Budget, Permit};
use truepeer_stream::reactor::Timer;
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use super::rest::{Rest, RestEnd};
use super::stream::{self, Client};
use crate::exchange::{Service, linger};

/// Of all sessions, this part is left to new connections: streams don't take it.
const RESERVE: usize = 64;

/// Serves a client until its connection ends. `share`: the streams that all its connections may have open
/// beside their first ones; `None`: any number.
pub async fn serve_http2<C, O>(
    stream: C,
    client_info: ClientInfo,
    service: Rc<Service<O>>,
    share: Option<Budget>,
) where
    C: Connection,
    O: Dial,
{
    let access = service.access(&client_info);
    let wire = Http2Wire::new(stream, Role::Server, &service.settings.limits, &service.reactor);
    let client = Rc::new(Client { service, client_info, access, share });
    let service = &client.service;
    let (rest, head) = (Rest::new(service), HeadLimit::default());
    let mut connection = ClientConnection { wire, client: &client, rest, head };
    let preface = poll_fn(|cx| connection.poll_preface(cx));
    let ended = match service.reactor.timeout(service.settings.timeouts.head, preface).await {
        Ok(Some(ended)) => ended,
        Ok(None) => poll_fn(|cx| connection.poll(cx)).await,
        Err(_) => return,
    };
    connection.close(&ended).await;
}

/// How a connection ended.
enum ConnectionEnd {
    /// The client ended it, or is gone.
    Theirs,
    /// truepeer ended it normally.
    Ours,
    /// truepeer ended it for a new one, which needs its descriptor now. The client has acknowledged all bytes
    /// before the GOAWAY.
    GivesWay,
    /// truepeer ended it because of the client's behaviour.
    Refused(Fault),
    /// A header block was not complete in time.
    HeadTimedOut,
}

/// The time limit of a header block that came in part: its request has no task yet that could have one.
#[derive(Default)]
struct HeadLimit {
    /// The block's stream.
    stream: Option<u32>,
    /// Made for the first such block: few clients send one.
    timer: Option<Timer>,
}

struct ClientConnection<'a, C, O: Dial> {
    wire: Http2Wire<C>,
    client: &'a Rc<Client<O>>,
    rest: Rest<'a>,
    head: HeadLimit,
}

impl<C: Connection, O: Dial> ClientConnection<'_, C, O> {
    /// Ready once the client's first SETTINGS have come, or with the connection's end.
    fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        match self.poll_frames(cx) {
            Poll::Pending if self.wire.state.borrow().preface() == Preface::Settings => Poll::Ready(None),
            ended => ended.map(Some),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        if let Poll::Ready(ended) = self.poll_frames(cx) {
            return Poll::Ready(ended);
        }
        if self.poll_head_timeout(cx).is_ready() {
            return Poll::Ready(ConnectionEnd::HeadTimedOut);
        }
        let (reactor, begun) = (&self.client.service.reactor, self.wire.state.borrow().begun());
        if !self.rest.is_last && reactor.is_draining() && self.rest.may_drain(cx, begun) {
            self.rest.drain();
            // This wakes the task, which sends it.
            self.wire.state.borrow_mut().shut_down();
        }
        if self.wire.is_sent && self.wire.state.borrow().is_done() {
            return Poll::Ready(ConnectionEnd::Ours);
        }
        match ready!(self.poll_rest(cx)) {
            RestEnd::TimedOut => return Poll::Ready(ConnectionEnd::Ours),
            RestEnd::IsWanted => {}
        }
        // Ask the kernel for a request that has come meanwhile: it is served.
        self.wire.stream.look_again();
        if let Poll::Ready(ended) = self.poll_frames(cx) {
            return Poll::Ready(ended);
        }
        if self.wire.state.borrow().handles() > 0 {
            return self.poll_rest(cx).map(|_| ConnectionEnd::Ours);
        }
        if !self.wire.stream.is_read_out() {
            // The end of this turn's allowance.
            return Poll::Pending;
        }
        let is_taken = self.wire.stream.unacknowledged() == 0;
        Poll::Ready(if is_taken { ConnectionEnd::GivesWay } else { ConnectionEnd::Ours })
    }

    /// Reads frames, begins to serve requests, and sends.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let (state, client) = (Rc::clone(&self.wire.state), self.client);
        state.borrow_mut().set_task(cx.waker());
        loop {
            match self.wire.poll_receive(cx, || begin_requests(&state, client)) {
                Poll::Ready(None) => return Poll::Ready(ConnectionEnd::Theirs),
                Poll::Ready(Some(fault)) => return Poll::Ready(ConnectionEnd::Refused(fault)),
                Poll::Pending => {}
            }
            let was_full = state.borrow().is_owed_too_much();
            match self.wire.poll_send(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEnd::Theirs),
                // Nothing was read, because the client had to take answers first.
                Poll::Ready(Ok(())) if was_full => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Ready once a header block has been incomplete for too long.
    fn poll_head_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (open, head, service) =
            (self.wire.state.borrow().open_block(), &mut self.head, &self.client.service);
        let changed = std::mem::replace(&mut head.stream, open) != open;
        if open.is_none() {
            return Poll::Pending;
        }
        let timer = head.timer.get_or_insert_with(|| service.reactor.timer());
        if changed {
            timer.arm(service.settings.timeouts.head);
        }
        timer.poll_expired(cx)
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<RestEnd> {
        let (open, is_quiet) = {
            let state = self.wire.state.borrow();
            (state.handles(), state.is_quiet() && self.wire.is_sent)
        };
        self.rest.poll_end(cx, open, is_quiet, self.client.service.reactor.now())
    }

    fn refuse(&self, reason: Reason, failure: &Failure) {
        let Client { service, client_info, .. } = &**self.client;
        self.wire.state.borrow_mut().go_away(reason);
        let (origin, now) = (client_info.route.backend, service.reactor.now());
        service.journal.on_failure(client_info, origin, failure, now);
    }

    /// Sends what waits to be sent, GOAWAY at its end, if the client takes it in time, and closes.
    async fn close(mut self, ended: &ConnectionEnd) {
        let Client { service, .. } = &**self.client;
        let (reactor, timeouts) = (&service.reactor, &service.settings.timeouts);
        let state = Rc::clone(&self.wire.state);
        match ended {
            ConnectionEnd::Theirs => state.borrow_mut().end(),
            ConnectionEnd::Ours | ConnectionEnd::GivesWay if state.borrow().is_over() => {}
            ConnectionEnd::Ours | ConnectionEnd::GivesWay => state.borrow_mut().go_away(Reason::NO_ERROR),
            ConnectionEnd::Refused(fault) => self.refuse(fault.reason(), &failure(*fault)),
            ConnectionEnd::HeadTimedOut => {
                self.refuse(Reason::ENHANCE_YOUR_CALM, &Failure::HeadTimeout(timeouts.head));
            }
        }
        let wire = &mut self.wire;
        let closed = poll_fn(|cx| {
            let sent = ready!(wire.poll_send(cx));
            Poll::Ready(sent.and(ready!(Pin::new(&mut wire.stream).poll_shutdown(cx))))
        });
        let _ = reactor.timeout(timeouts.linger, closed).await;
        let stream = SharedStream::new(self.wire.stream);
        if !matches!(ended, ConnectionEnd::Theirs | ConnectionEnd::GivesWay) || stream.is_broken() {
            // Closing with unread bytes would reset the connection, and the client would lose the GOAWAY, or
            // TLS' alert.
            let time_limit = TimeLimit::new(reactor);
            let limits = (timeouts.linger, timeouts.linger);
            linger(&stream, &mut Buffer::default(), timeouts, limits, &time_limit).await;
        }
    }
}

fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Protocol(reason) => Failure::Http2(reason),
        Fault::Excess => Failure::Http2Excess,
        Fault::RapidReset => Failure::Http2TakenBack,
    }
}

/// Begins to serve the requests that have come, each in a task of its own.
fn begin_requests<O: Dial>(state: &SharedState, client: &Rc<Client<O>>) {
    let Client { service, client_info, .. } = &**client;
    let (origin, now) = (client_info.route.backend, service.reactor.now());
    let malformed = state.borrow_mut().take_malformed();
    for _ in 0..malformed {
        service.journal.on_failure(client_info, origin, &Failure::Http2Malformed, now);
    }
    while let Some(stream) = StreamHandle::next_request(state) {
        // Each stream may need a connection to the origin. The client connection's own permit covers one.
        let needs_permit = state.borrow().handles() > 1;
        let permits = if needs_permit { further_stream(client) } else { None };
        if needs_permit && permits.is_none() {
            // RFC 9113 8.7: the client may repeat the request.
            stream.reset(Reason::REFUSED_STREAM);
            continue;
        }
        let client = Rc::clone(client);
        service.reactor.spawn(async move {
            stream::serve(&client, stream).await;
            drop(permits);
        });
    }
}

/// Takes a session for a stream, and one of its client's share. `None`: too few are left.
fn further_stream<O: Dial>(client: &Client<O>) -> Option<(Permit, Option<Permit>)> {
    let (sessions, share) = (&client.service.sessions, &client.share);
    let of_share = match share {
        Some(share) => Some(share.take(1)?),
        None => None,
    };
    if !sessions.has(1 + sessions.limit() / RESERVE) {
        return None;
    }
    sessions.take(1).map(|session| (session, of_share))
}
