//! One request and its response, both directions at once, over either version of HTTP.
//!
//! ```text
//! client ── Incoming ──▶ up ───▶ ToOrigin        up: the head; then the body, once it may (Expect)
//! client ◀─ Outgoing ─── down ◀─ FromOrigin      down: 1xx … the head, the body, trailers
//! ```

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use truepeer_http::ResponseHead;
use truepeer_http::http2::MOST_INTERIM;

use crate::both_ways::{Progress, both};
use crate::failure::Failure;
use crate::parties::{Incoming, Outgoing, left};
use crate::settings::HttpSettings;
use crate::time_limit::TimeLimit;

/// How an exchange succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The response was passed on.
    Whole {
        /// The connection to the origin can carry another request.
        reusable: bool,
    },
    /// The origin has switched to the protocol that the client asked for.
    Switched,
}

/// What both directions know.
pub(crate) struct Exchange<'a> {
    pub(crate) settings: &'a HttpSettings,
    /// One timer for each direction.
    pub(crate) time_limit: &'a (TimeLimit, TimeLimit),
    pub(crate) state: Progress,
}

/// A request in its version.
pub(crate) trait ToOrigin {
    /// Sends what there is to send. `false`: the origin has stopped reading.
    async fn send_all(
        &mut self,
        exchange: &Exchange<'_>,
        incoming: &mut impl Incoming,
    ) -> Result<bool, Failure>;
}

/// A response in its version.
pub(crate) trait FromOrigin {
    /// Reads a head, an interim one or the final one. `false`: a part of it has come.
    fn poll_head(&mut self, cx: &mut Context<'_>, response: &mut ResponseHead)
    -> Poll<Result<bool, Failure>>;

    /// Whether the origin may change the protocol.
    fn may_switch(&self) -> bool;

    /// Passes on what follows the final head.
    async fn body(
        self,
        exchange: &Exchange<'_>,
        response: &ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure>;
}

/// Sends the request and passes the response on, whose head is left in `response`.
pub(crate) async fn run(
    exchange: Exchange<'_>,
    to_origin: impl ToOrigin,
    from_origin: impl FromOrigin,
    response: &mut ResponseHead,
    incoming: &mut impl Incoming,
    outgoing: &mut impl Outgoing,
) -> Result<Answered, Failure> {
    let (up, down) = (exchange.up(to_origin, incoming), exchange.down(from_origin, response, outgoing));
    let answered = both(&exchange.state, up, down).await;
    exchange.time_limit.0.rest();
    exchange.time_limit.1.rest();
    answered
}

impl Exchange<'_> {
    /// Returns only if the client fails. If the origin stops reading, `down` reads its response or its end.
    async fn up(&self, mut origin: impl ToOrigin, incoming: &mut impl Incoming) -> Failure {
        match origin.send_all(self, incoming).await {
            Ok(is_sent) => {
                self.state.is_sent.set(is_sent);
                self.state.is_sending.set(false);
                left(incoming, &self.time_limit.0, self.settings, &self.state.has_begun).await
            }
            Err(failure) => failure,
        }
    }

    async fn down(
        &self,
        mut origin: impl FromOrigin,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<Answered, Failure> {
        let mut interim = 0;
        loop {
            while !self.head(&mut origin, response, outgoing).await? {}
            interim += 1;
            match response.status {
                101 if origin.may_switch() => {
                    self.rest_of_request(outgoing).await?;
                    return Ok(Answered::Switched);
                }
                101 => return Err(Failure::UnaskedSwitch),
                100..200 if interim > MOST_INTERIM => return Err(Failure::TooManyInterim(MOST_INTERIM)),
                100 if self.state.may_send_body.replace(true) => {} // the client did not ask for it
                100..200 => outgoing.interim(response).await?,
                _ => break,
            }
        }
        outgoing.head(response, self.state.is_sent.get()).await?;
        self.state.has_begun.set(true);
        origin.body(self, response, outgoing).await
    }

    /// Waits for the origin. If it does not answer `Expect` in time, the body is sent anyway: not every
    /// origin supports `Expect` (RFC 9110 section 10.1.1).
    async fn head(
        &self,
        origin: &mut impl FromOrigin,
        response: &mut ResponseHead,
        outgoing: &mut impl Outgoing,
    ) -> Result<bool, Failure> {
        let time_limit = &self.time_limit.1;
        if !self.state.may_send_body.get() {
            let proceed = self.settings.timeouts.proceed;
            let head = poll_fn(|cx| origin.poll_head(cx, response));
            if let Ok(head) = time_limit.limit(proceed, head).await {
                return head;
            }
            outgoing.proceed().await?;
            self.state.may_send_body.set(true);
        }
        let limit = self.settings.timeouts.response;
        loop {
            let was_sending = self.state.is_sending.get();
            match time_limit.limit(limit, poll_fn(|cx| origin.poll_head(cx, response))).await {
                Ok(head) => return head,
                // The response timeout starts when the request has been sent.
                Err(_) if was_sending => {}
                Err(_) => return Err(Failure::OriginTimeout(limit)),
            }
        }
    }

    /// Waits until the request has been sent whole. RFC 9110 7.8: an origin may switch early, but its client
    /// can't in the middle of a message.
    async fn rest_of_request(&self, outgoing: &mut impl Outgoing) -> Result<(), Failure> {
        if !self.state.may_send_body.get() {
            outgoing.proceed().await?;
            self.state.may_send_body.set(true);
        }
        // No waker is stored: `both` polls this again after `up`.
        poll_fn(|_| if self.state.is_sending.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        if self.state.is_sent.get() { Ok(()) } else { Err(Failure::OriginTruncated) }
    }

    /// Waits for more of a body. Sends gathered bytes before.
    pub(crate) async fn more<T>(
        &self,
        outgoing: &mut impl Outgoing,
        more: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        outgoing.flush().await?;
        let limit = self.settings.timeouts.response;
        self.time_limit.1.limit(limit, more).await.map_err(|_| Failure::OriginTimeout(limit))
    }
}
