//! A small HTTP/2 client (RFC 9113). `h2` could do the same, but its types, allocations and wake-ups took more time than all else that
//! truepeer does for a request.
//!
//! ```text
//! RequestStream::begin ─ HEADERS, DATA ─▶ State::out ─▶ one record and one send, at the end of the turn
//! RequestStream ◀─ head, data, trailers ─ State::take_frames ◀─ one read
//! ```
//! A connection has one task, which reads and sends ([`super::connection`]); requests have others. They share the state,
//! without locks: all belong to one thread. Memory is bounded: a stream's data by its window, a block of header
//! fields by 1 MiB, what waits to be sent by a few times [`state::MOST_OUT_BYTES`], since neither bodies nor answers to the origin go beyond that.
//! Server push is refused, priorities are ignored.

mod frames;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed;
mod head;
mod hpack;
mod receive;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub(super) use self::frames::Preface;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::fuzzed::any_origin;
pub(super) use self::head::{is_in_value, is_name};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::hpack::Decoder as HpackText;
pub(super) use self::hpack::{begin_field, write_field, write_indexed, write_text};
pub(super) use self::state::State;
pub(super) use self::stream::{NotBegun, RequestStream, StreamError};
