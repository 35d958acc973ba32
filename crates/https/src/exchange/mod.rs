//! Passing a client's requests to the origin and the responses back. Bodies are streamed, and every wait has
//! a timeout.
//!
//! ```text
//! connection: request after request ──▶ serve: checks, retry ──▶ run: one request over one origin's connection
//!      │ Http1Body, Http1Reply             │ Pool, Dial                 │ up and down at once
//! ```

mod after_101;
mod both_ways;
mod client;
mod connection;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed;
mod journal;
mod kept_body;
mod pace;
mod parties;
mod probe;
mod redirect;
mod run;
mod serve;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod time_limit;

pub(crate) use both_ways::{Progress, both};
pub(crate) use client::{Remainder, ReplyStage, linger, words};
pub use connection::serve_http1;
pub use failure::Failure;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzed::any_exchanges;
pub use journal::RequestJournal;
pub(crate) use journal::Served;
pub(crate) use kept_body::BodyStart;
pub(crate) use pace::Pace;
pub(crate) use parties::{Departure, Incoming, Outgoing, left};
pub(crate) use probe::ProbeFailure;
pub(crate) use serve::{Requester, ServeEnd};
pub use serve::{Service, Sharing};
pub use settings::{HttpSettings, HttpTimeouts};
pub(crate) use time_limit::TimeLimit;
