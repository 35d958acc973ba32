//! HTTP/1.1 as bytes: heads, bodies, and how we write them; and HTTP/2 ([`http2`]). Pure: no I/O, no clock.
//!
//! Strict: if two programs in a row read a message differently, a client can smuggle a request past the first
//! one. So what RFC 9112 lets a recipient repair is refused, from clients (400) and from origins (502). The
//! framing of a message is never passed on; it is written anew.
//!
//! ```text
//! bytes ─▶ HeadEnd (where the head ends) ─▶ RequestHead / ResponseHead ─▶ Length (how the body ends) ─▶ Decoder ─▶ data
//!                                                                                        write::… ─▶ bytes
//! ```
#![forbid(unsafe_code)]

mod authority;
mod body;
#[cfg(test)]
mod border_tests;
mod chunked;
mod decimal;
mod error;
pub mod fields;
mod framing;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod http2;
#[cfg(test)]
mod http2_tests;
mod limits;
mod piece;
pub mod query;
mod request;
mod response;
mod scan;
mod status;
#[cfg(test)]
mod tests;
pub mod write;

pub use authority::is_valid_host;
pub use body::BodyDecoder;
pub use error::{BodyError, HeadError};
pub use framing::BodyLength;
pub use limits::HttpLimits;
pub use piece::Piece;
pub use request::{Expectation, HttpVersion, RequestHead};
pub use response::ResponseHead;
pub use scan::HeadEnd;
pub use status::status_words;
