//! A connection with one request at a time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The result of reading.
pub(super) enum Heard {
    /// The answer is incomplete.
    Part,
    /// The answer, this long after the request.
    Whole(Duration),
    /// A wrong answer.
    Wrong,
}

/// A connection with one request at a time.
pub(super) trait Exchange: AsFd + Send {
    /// Sends a request that is measured from `since`.
    fn ask(&mut self, since: Instant) -> anyhow::Result<()>;

    /// Reads what has arrived.
    fn listen(&mut self) -> anyhow::Result<Heard>;

    /// When the open request was, or should have been, sent; `None`: there is none.
    fn since(&self) -> Option<Instant>;

    /// Gives up the open request, if any.
    fn forget_request(&mut self);

    fn is_busy(&self) -> bool {
        self.since().is_some()
    }
}
