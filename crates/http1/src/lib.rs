//! HTTP/1.1 as bytes: heads, bodies, and how we write them. Pure: no I/O, no clock.
//!
//! Strict, because whatever two programs in a row read differently can be used to smuggle a request past the first one:
//! what RFC 9112 lets a recipient repair is refused here, from clients (400) as from origins (502). What goes on is never
//! the framing that came, but one of our own.
//!
//! ```text
//! bytes ─▶ HeadEnd (where the head ends) ─▶ RequestHead / ResponseHead ─▶ Length (how the body ends) ─▶ Decoder ─▶ data
//!                                                                                        write::… ─▶ bytes
//! ```
#![forbid(unsafe_code)]

mod authority;
mod body;
mod chunked;
mod decimal;
mod error;
pub mod fields;
mod framing;
mod limits;
mod request;
mod response;
mod scan;
#[cfg(test)]
mod tests;
pub mod write;

pub use authority::is_valid_host;
pub use body::{Decoder, Piece};
pub use error::{BodyError, HeadError};
pub use framing::Length;
pub use limits::Limits;
pub use request::{Expectation, RequestHead, Version};
pub use response::ResponseHead;
pub use scan::HeadEnd;
