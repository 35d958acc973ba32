//! Passing a client's requests to the origin and the responses back. Bodies are streamed, and every wait has
//! a timeout.
//!
//! ```text
//! connection: request after request ──▶ serve: checks, retry ──▶ run: one request over one origin's connection
//!      │ Http1Body, Http1Reply             │ Pool, Dial                 │ up and down at once
//! ```

mod after_101;
mod client;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed;
mod journal;
mod pace;
mod probe;
mod redirect;
mod serve;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use client::{Remainder, ReplyStage, linger, words};
pub use connection::serve_http1;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzed::any_exchanges;
pub use journal::RequestJournal;
pub(crate) use journal::Served;
pub(crate) use pace::Pace;
pub(crate) use probe::ProbeFailure;
pub(crate) use serve::{Requester, ServeEnd};
pub use serve::{Service, Sharing};
