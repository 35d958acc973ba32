//! A client's requests, answered with what the origin says: streamed both ways, each part with a time-out, never a hang.
//!
//! ```text
//! connection: request after request ──▶ serve: checks, retry ──▶ run: one request over one origin's connection
//!      │ Body, Reply (HTTP/1)              │ Pool, Dial                 │ up and down at once
//! ```

mod buffer;
mod client;
mod connection;
mod failure;
mod journal;
mod pace;
mod parties;
mod patience;
mod run;
mod serve;
mod settings;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod visit;

pub(crate) use buffer::Buffer;
pub(crate) use client::{Stage, linger, words};
pub use connection::serve_http1;
pub use failure::Failure;
pub(crate) use journal::Served;
pub use journal::{ACCESS, Journal};
pub(crate) use pace::Pace;
pub(crate) use parties::{Departure, Incoming, Outgoing};
pub(crate) use patience::Patience;
pub(crate) use serve::Guest;
pub use serve::{Service, Sharing};
pub use settings::{Settings, Timeouts};
pub(crate) use shared::Shared;
pub use visit::Visit;
