//! HTTP/2 with the origin: several requests at once over one connection.
//!
//! ```text
//! request's task ─▶ Http2Pool: a connection that it may use, with a stream free ─▶ Lease ─▶ exchange::run: head, body, answer
//!                                        │ none: one of the waiting requests dials for all
//!                                        ▼
//!                   connection's task: h2's protocol, pings, GatheringStream: the frames of one turn in one send
//! ```
//! Who shares a connection is the same as for HTTP/1.1 ([`KeptBy`](crate::origin::KeptBy)): all clients, one client, or one client connection.
//!
//! The origin is less trusted than truepeer: it can delay, reset and break off. It can't make truepeer hold more than a stream's
//! window for each request, and its connection is given up when it stops answering pings. A slow client stops its own stream
//! alone: the connection's window has room for all streams' windows.

mod connection;
mod exchange;
mod flight;
mod gathering;
mod pool;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use connection::Lease;
pub(crate) use exchange::{Exchange, run};
pub use pool::Http2Pool;
pub(crate) use pool::Joined;
pub(crate) use request::fits;
