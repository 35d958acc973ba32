//! HTTP/2 with the origin: several requests at once over one connection.
//!
//! ```text
//! request's task ─▶ Http2Pool: a connection that it may use, with a stream free ─▶ Lease ─▶ exchange::run: head, body, answer
//!                                        │ none: one of the waiting requests dials for all
//!                                        ▼
//!                   connection's task: reads frames and sends those of one turn in one record; pings (`truepeer_http::http2`: the protocol)
//! ```
//! As with HTTP/1.1, all clients, one client, or one client connection share a connection
//! ([`KeptBy`](crate::KeptBy)).
//!
//! The origin is less trusted than truepeer: it can delay, reset and break off. It can't make truepeer hold
//! more than twice a stream's window and `BodyStart` for each request, and its connection is given up when it
//! stops answering pings. A slow client stops its own stream alone: the connection's window has room for all
//! streams' windows, and is opened before what slow clients hold fills it. Bodies towards the origin share
//! the window that it gives the connection: if it stops reading one of them, it can hold up the others.

mod attempt;
mod connection;
mod exchange;
mod ping_watch;
mod pool;

use truepeer_http::http2::Preface;

pub use connection::Lease;
pub use exchange::{StreamLink, run};
pub use pool::Http2Pool;
pub use pool::Joined;

/// Whether an origin whose first bytes are these speaks HTTP/2.
pub fn is_spoken(first: &[u8]) -> bool {
    Preface::of(first) == Preface::Settings
}
