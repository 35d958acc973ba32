//! The client's side of an exchange, independent of the HTTP version.

use std::cell::Cell;
use std::future::pending;

use truepeer_http::ResponseHead;
use truepeer_http::fields::FieldList;

use super::failure::Failure;
use super::settings::HttpSettings;
use super::time_limit::TimeLimit;

/// The source of a request's body.
#[expect(async_fn_in_trait, reason = "all futures of a worker stay on its thread")]
pub trait Incoming {
    /// The next piece of the body, at least one byte; `None`: the end.
    ///
    /// # Errors
    /// The client left, is too slow, or sent something invalid.
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
pub enum Departure {
    /// The connection broke, or the client cancelled the request.
    Gone,
    /// It ended its direction with FIN, and may still read the response.
    HalfClosed,
}

/// Waits until the client has left. If it has only ended its direction, the response must start soon
/// (`has_begun`). After that, only sending shows whether the client is still there.
pub async fn left(
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

/// The sink of a response.
#[expect(async_fn_in_trait, reason = "all futures of a worker stay on its thread")]
pub trait Outgoing {
    /// Sends a 1xx response at once, unless the client's version has none.
    ///
    /// # Errors
    /// The client left, or takes no bytes.
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failure>;

    /// Tells the client to send the body that it is holding back.
    ///
    /// # Errors
    /// Those of [`Self::interim`].
    async fn proceed(&mut self) -> Result<(), Failure>;

    /// Starts the response. `request_is_whole`: the whole request has been received.
    ///
    /// # Errors
    /// Those of [`Self::interim`].
    async fn head(&mut self, head: &ResponseHead, request_is_whole: bool) -> Result<(), Failure>;

    /// Sends a part of its body. Returns once there is room for more.
    ///
    /// # Errors
    /// Those of [`Self::interim`].
    async fn data(&mut self, data: &[u8]) -> Result<(), Failure>;

    /// Sends gathered bytes. Call it before waiting for the origin.
    ///
    /// # Errors
    /// Those of [`Self::interim`].
    async fn flush(&mut self) -> Result<(), Failure>;

    /// Ends the response.
    ///
    /// # Errors
    /// Those of [`Self::interim`].
    async fn end(&mut self, trailers: &FieldList) -> Result<(), Failure>;
}
