//! What an exchange needs from its client, independent of the HTTP version.

use std::cell::Cell;
use std::future::pending;

use truepeer_http1::ResponseHead;
use truepeer_http1::fields::FieldList;

use super::Failure;
use super::settings::HttpSettings;
use super::time_limit::TimeLimit;

/// Where a request's body comes from.
pub(crate) trait Incoming {
    /// The next piece of the body, at least one byte; `None`: it has ended.
    ///
    /// # Errors
    /// The client left or is too slow, or what it sends is refused.
    ///
    /// Dropping the future before it is ready loses nothing.
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure>;

    /// The trailers. Empty until the body has ended.
    fn trailers(&self) -> &FieldList;

    /// Waits until the client leaves. Bytes that it sends meanwhile are kept.
    async fn departure(&mut self) -> Departure;
}

/// How a client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The connection broke, or the client cancelled the request.
    Gone,
    /// It closed its direction in order, and may still read the response.
    HalfClosed,
}

/// Waits until the client has left. If it has only closed its direction, the response must begin soon (`has_begun`); from then
/// on, sending tells whether the client is still there.
pub(crate) async fn left(
    incoming: &mut impl Incoming,
    time_limit: &TimeLimit,
    settings: &HttpSettings,
    has_begun: &Cell<bool>,
) -> Failure {
    if incoming.departure().await == Departure::HalfClosed {
        let _ = time_limit.limit(settings.timeouts.half_closed, pending::<()>()).await;
        if has_begun.get() {
            pending::<()>().await;
        }
    }
    Failure::ClientGone
}

/// Where a response goes.
pub(crate) trait Outgoing {
    /// Sends a 1xx response at once, unless the client's version has none.
    ///
    /// # Errors
    /// The client left or takes nothing.
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failure>;

    /// Tells the client to go on with the body that it holds back.
    ///
    /// # Errors
    /// As above.
    async fn proceed(&mut self) -> Result<(), Failure>;

    /// Begins the response. `request_is_whole`: the whole request has been received.
    ///
    /// # Errors
    /// As above.
    async fn head(&mut self, head: &ResponseHead, request_is_whole: bool) -> Result<(), Failure>;

    /// Goes on with its body. Returns once there is room for more.
    ///
    /// # Errors
    /// As above.
    async fn data(&mut self, data: &[u8]) -> Result<(), Failure>;

    /// Sends what was gathered. To be called before waiting for the origin.
    ///
    /// # Errors
    /// As above.
    async fn flush(&mut self) -> Result<(), Failure>;

    /// Ends the response.
    ///
    /// # Errors
    /// As above.
    async fn end(&mut self, trailers: &FieldList) -> Result<(), Failure>;
}
