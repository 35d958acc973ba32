//! One request and its response over one stream, both directions at once. The counterpart of `exchange::run` for HTTP/1.1.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::Response;
use truepeer_http1::fields::FieldList;
use truepeer_http1::fields::forwarded::Forwarding;
use truepeer_http1::{BodyLength, Expectation, RequestHead, ResponseHead};

use super::connection::Lease;
use super::request;
use crate::exchange::{Failure, HttpSettings, Incoming, MOST_INTERIM, Outgoing, TimeLimit, left};
use crate::http2::{fields, keep_trailers};

/// A stream of the origin's connection, with settings and timers.
pub(crate) struct Exchange<'a> {
    pub(crate) lease: &'a Lease,
    pub(crate) forwarding: Forwarding<'a>,
    pub(crate) uses_tls: bool,
    pub(crate) settings: &'a HttpSettings,
    /// One timer for each direction.
    pub(crate) time_limit: &'a (TimeLimit, TimeLimit),
    /// Whether a part of the client's body was taken: then the request can't be sent a second time.
    pub(crate) has_taken_body: &'a Cell<bool>,
}

/// State that both directions share.
struct State {
    /// The body may be sent.
    may_send_body: Cell<bool>,
    /// The request has been sent whole.
    is_sent: Cell<bool>,
    /// The response has started.
    has_begun: Cell<bool>,
    /// The request is still being sent, so the response timeout does not run yet.
    is_sending: Cell<bool>,
}

/// Sends the request and passes the response on, whose head is left in `response`. Dropping this resets the stream.
///
/// # Errors
/// The failure. `outgoing` knows whether a part of the response has been sent.
pub(crate) async fn run<I: Incoming, O: Outgoing>(
    exchange: Exchange<'_>,
    head: &RequestHead,
    response: &mut ResponseHead,
    incoming: &mut I,
    outgoing: &mut O,
) -> Result<(), Failure> {
    let Exchange { lease, forwarding, uses_tls, settings, time_limit, has_taken_body } = exchange;
    let has_body = !matches!(head.length, BodyLength::None | BodyLength::Known(0));
    let request = request::request(head, &forwarding, uses_tls).map_err(Failure::BadRequest)?;
    let (answer, sender) = lease.sender().send_request(request, !has_body).map_err(|_| {
        // Nothing was sent: the connection is ending, or its stream numbers are used up.
        lease.give_up();
        Failure::OriginRefused
    })?;
    let waits = head.expectation == Expectation::Continue && has_body;
    let state = State {
        may_send_body: Cell::new(!waits),
        is_sent: Cell::new(!has_body),
        has_begun: Cell::new(false),
        is_sending: Cell::new(has_body),
    };
    let sender = RefCell::new(sender);
    let up = Up { sender: &sender, settings, time_limit: &time_limit.0, state: &state, has_taken_body };
    let down = Down { lease, settings, time_limit: &time_limit.1, state: &state };
    let answered = {
        let mut up = pin!(up.run(has_body, incoming));
        let mut down = pin!(down.run(answer, head.method() == b"HEAD", response, outgoing));
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(failure) = up.as_mut().poll(cx) {
                    return Poll::Ready(Err(failure));
                }
                let might_before = state.may_send_body.get();
                if let Poll::Ready(answered) = down.as_mut().poll(cx) {
                    return Poll::Ready(answered);
                }
                if state.may_send_body.get() == might_before {
                    return Poll::Pending;
                }
            }
        })
        .await
    };
    time_limit.0.rest();
    time_limit.1.rest();
    answered
}

struct Up<'a> {
    sender: &'a RefCell<SendStream<Bytes>>,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a State,
    has_taken_body: &'a Cell<bool>,
}

impl Up<'_> {
    /// Returns only if the client fails. If the origin stops reading, `down` reads its response or its end.
    async fn run(self, has_body: bool, incoming: &mut impl Incoming) -> Failure {
        let sent = if has_body { self.send_all(incoming).await } else { Ok(true) };
        match sent {
            Ok(is_sent) => {
                self.state.is_sent.set(is_sent);
                self.state.is_sending.set(false);
                left(incoming, self.time_limit, self.settings, &self.state.has_begun).await
            }
            Err(failure) => failure,
        }
    }

    /// Whether everything was sent. If not, the origin has stopped reading.
    async fn send_all(&self, incoming: &mut impl Incoming) -> Result<bool, Failure> {
        poll_fn(|_| if self.state.may_send_body.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        loop {
            // Before the first piece can be lost: a future that is dropped while it waits has taken nothing.
            let Some(piece) = incoming.next().await? else { break };
            self.has_taken_body.set(true);
            let piece = request::piece(piece);
            if !self.send(piece).await? {
                return Ok(false);
            }
        }
        let mut sender = self.sender.borrow_mut();
        let trailers = incoming.trailers();
        let ended = if trailers.is_empty() {
            sender.send_data(Bytes::new(), true)
        } else {
            sender.send_trailers(fields(trailers.iter()))
        };
        Ok(ended.is_ok())
    }

    /// Sends data as the origin's window opens.
    async fn send(&self, mut data: Bytes) -> Result<bool, Failure> {
        let limit = self.settings.timeouts.send;
        while !data.is_empty() {
            let room = poll_fn(|cx| self.poll_room(cx, data.len()));
            let room = self.time_limit.limit(limit, room).await;
            let Some(room) = room.map_err(|_| Failure::OriginStalled(limit))? else { return Ok(false) };
            let now = data.split_to(room.min(data.len()));
            if self.sender.borrow_mut().send_data(now, false).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `None`: the stream has ended.
    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<Option<usize>> {
        let mut sender = self.sender.borrow_mut();
        sender.reserve_capacity(wanted);
        while sender.capacity() == 0 {
            match sender.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Some(sender.capacity()))
    }
}

struct Down<'a> {
    lease: &'a Lease,
    settings: &'a HttpSettings,
    time_limit: &'a TimeLimit,
    state: &'a State,
}

impl Down<'_> {
    async fn run(
        self,
        mut answer: ResponseFuture,
        is_head: bool,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<(), Failure> {
        let final_response = self.interim(&mut answer, response, outgoing).await?;
        let (parts, body) = final_response.into_parts();
        let head = Response::from_parts(parts, ());
        self.lease.note_response();
        let has_body = !body.is_end_stream();
        request::response(response, &head, has_body, is_head, &self.settings.limits)
            .map_err(Failure::BadResponse)?;
        self.body(body, response, outgoing).await
    }

    /// Passes on 1xx responses until the final one comes.
    async fn interim(
        &self,
        answer: &mut ResponseFuture,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Response<RecvStream>, Failure> {
        let (mut interim, mut queue) = (0, VecDeque::new());
        loop {
            let head = match queue.pop_front() {
                Some(head) => head,
                None => match self.head(answer, &mut queue, outgoing).await? {
                    Head::Final(response) => return Ok(response),
                    Head::Interim(head) => head,
                },
            };
            interim += 1;
            if interim > MOST_INTERIM {
                return Err(Failure::TooManyInterim(MOST_INTERIM));
            }
            request::response(response, &head, false, false, &self.settings.limits)
                .map_err(Failure::BadResponse)?;
            match response.status {
                // RFC 9113 8.6: HTTP/2 has no 101.
                101 => return Err(Failure::UnaskedSwitch),
                100 if self.state.may_send_body.replace(true) => {} // the client did not ask for it
                _ => queueing(answer, &mut queue, outgoing.interim(response)).await?,
            }
        }
    }

    /// Waits for a head. If the origin does not answer `Expect` in time, the body is sent anyway (RFC 9110 section 10.1.1).
    async fn head(
        &self,
        answer: &mut ResponseFuture,
        queue: &mut VecDeque<Response<()>>,
        outgoing: &mut impl Outgoing,
    ) -> Result<Head, Failure> {
        if !self.state.may_send_body.get() {
            let proceed = self.settings.timeouts.proceed;
            if let Ok(head) = self.time_limit.limit(proceed, poll_fn(|cx| self.poll_head(answer, cx))).await {
                return head;
            }
            queueing(answer, queue, outgoing.proceed()).await?;
            self.state.may_send_body.set(true);
        }
        let limit = self.settings.timeouts.response;
        loop {
            let was_sending = self.state.is_sending.get();
            match self.time_limit.limit(limit, poll_fn(|cx| self.poll_head(answer, cx))).await {
                Ok(head) => return head,
                // The response timeout starts when the request has been sent.
                Err(_) if was_sending => {}
                Err(_) => return Err(Failure::OriginTimeout(limit)),
            }
        }
    }

    fn poll_head(&self, answer: &mut ResponseFuture, cx: &mut Context<'_>) -> Poll<Result<Head, Failure>> {
        let polled = match answer.poll_informational(cx) {
            Poll::Ready(Some(head)) => Poll::Ready(head.map(Head::Interim)),
            Poll::Ready(None) | Poll::Pending => pin!(answer).poll(cx).map(|head| head.map(Head::Final)),
        };
        polled.map(|head| {
            head.map_err(|error| {
                if error.is_go_away() {
                    self.lease.give_up();
                }
                request::failure(&error)
            })
        })
    }

    async fn body(
        &self,
        mut body: RecvStream,
        response: &ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<(), Failure> {
        outgoing.head(response, self.state.is_sent.get()).await?;
        self.state.has_begun.set(true);
        let mut left = match response.length {
            BodyLength::None => Some(0),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        while let Some(data) = self.data(&mut body, outgoing).await? {
            if let Some(left) = &mut left {
                // `h2` checks this, too, except for responses that have no body.
                *left = left.checked_sub(data.len() as u64).ok_or(Failure::OriginTruncated)?;
            }
            if !data.is_empty() {
                outgoing.data(&data).await?;
            }
            // The client has taken it: open the window by its size. If the stream has ended, that has no effect.
            let _ = body.flow_control().release_capacity(data.len());
        }
        if left.is_some_and(|left| left > 0) {
            return Err(Failure::OriginTruncated);
        }
        let mut trailers = FieldList::default();
        if let Some(came) = self.trailers(&mut body).await? {
            keep_trailers(&mut trailers, &came);
        }
        outgoing.end(&trailers).await
    }

    /// The next DATA frame; `None`: the end. Gathered bytes are sent before truepeer waits.
    async fn data(
        &self,
        body: &mut RecvStream,
        outgoing: &mut impl Outgoing,
    ) -> Result<Option<Bytes>, Failure> {
        let mut at_hand = poll_fn(|cx| Poll::Ready(body.poll_data(cx))).await;
        if at_hand.is_pending() {
            outgoing.flush().await?;
            let came = self.wait(poll_fn(|cx| body.poll_data(cx))).await?;
            at_hand = Poll::Ready(came);
        }
        match at_hand {
            Poll::Ready(Some(Ok(data))) => Ok(Some(data)),
            Poll::Ready(None) => Ok(None),
            _ => Err(Failure::OriginTruncated),
        }
    }

    async fn trailers(&self, body: &mut RecvStream) -> Result<Option<http::HeaderMap>, Failure> {
        let trailers = self.wait(poll_fn(|cx| body.poll_trailers(cx))).await?;
        trailers.map_err(|_| Failure::OriginTruncated)
    }

    async fn wait<T>(&self, what: impl Future<Output = T>) -> Result<T, Failure> {
        let limit: Duration = self.settings.timeouts.response;
        self.time_limit.limit(limit, what).await.map_err(|_| Failure::OriginTimeout(limit))
    }
}

enum Head {
    Interim(Response<()>),
    Final(Response<RecvStream>),
}

/// Tells the client something. Meanwhile takes further 1xx responses, which `h2` would hold without a limit.
async fn queueing(
    answer: &mut ResponseFuture,
    queue: &mut VecDeque<Response<()>>,
    telling: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let mut telling = pin!(telling);
    poll_fn(|cx| {
        let told = telling.as_mut().poll(cx);
        if told.is_ready() {
            return told;
        }
        while let Poll::Ready(Some(Ok(head))) = answer.poll_informational(cx) {
            queue.push_back(head);
            if queue.len() > MOST_INTERIM {
                return Poll::Ready(Err(Failure::TooManyInterim(MOST_INTERIM)));
            }
        }
        Poll::Pending
    })
    .await
}
