//! HTTP/2 (RFC 9113) for both ends: bytes in, requests and responses out. No I/O, no clock.
//!
//! ```text
//! bytes ─▶ Connection::receive ─▶ requests (StreamHandle::next_request), heads, data, trailers ─▶ StreamHandle::poll_…
//! bytes ◀─ Connection::unsent ◀─ HEADERS, DATA, RST_STREAM … ◀─ StreamHandle::begin, send_…
//! ```
//! A connection has one task, which reads and sends; streams have others. They share the state without locks:
//! all belong to one thread. What the streams of one turn write leaves together, in as few records and calls
//! as hold it.
//!
//! Memory is bounded, whatever the other end sends: a stream's data by its window, a header block by 1 MiB,
//! what waits to be sent by a few times [`MOST_OUT_BYTES`], since neither bodies nor heads nor answers to the
//! other end go beyond that. A client's streams are 128 at a time; frames that carry no request, streams that
//! it cancels, and blocks without end are counted ([`Fault`]).
//!
//! Nothing that two programs could read differently passes: heads are held to RFC 9113 section 8, and to the
//! rules of HTTP/1.1 in this crate. Server push is refused. Priorities are those of RFC 9218.

mod blocks;
mod connection;
pub mod encode;
mod ending;
mod flood;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed_client;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed_origin;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed_peer;
mod handle;
mod heads;
mod hpack;
mod huffman;
mod out;
mod priority;
mod reason;
mod receive;
mod static_table;
mod stream;
#[cfg(test)]
mod tests;
mod text;

pub use blocks::MOST_INTERIM;
pub use connection::{Connection, MOST_STREAMS, Role};
pub use frame::Preface;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzed_client::any_client;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzed_origin::any_origin;
pub use handle::StreamHandle;
#[cfg(any(test, feature = "fuzzing"))]
pub use huffman::encode as huffman_coded;
pub use out::MOST_OUT_BYTES;
pub use reason::{Fault, Reason};
pub use stream::{NotBegun, StreamError};
