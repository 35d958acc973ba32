//! The PROXY protocol, versions 1 and 2, and Simple Proxy Protocol (SPP): decoding and encoding.
//!
//! Pure: no I/O, no clock, no allocation. Every rule cites the section of the specification it comes from
//! (`PROXY 2.2` means section 2.2 of "The PROXY protocol", revision of 2026/04/27).
//!
//! ```text
//! bytes ── decode ──┬── NeedMore { missing }            read at least that many more, call again
//!                   ├── Done { header, consumed }       the application's bytes start at `consumed`
//!                   └── DecodeError { kind, offset }    end the connection; `sniff` says what it looked like
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_std)]

mod checksum;
mod decode;
mod encode;
mod error;
mod header;
mod sniff;
pub mod spp;
mod text;
pub mod tlv;
mod v1;
mod v2;
#[cfg(feature = "vectors")]
pub mod vectors;

pub use decode::{Limits, Versions, begins_header, decode, decode_datagram};
pub use encode::{EncodeError, V1_MAX_LEN, V2Encoder, encode_v1};
pub use error::{DecodeError, DecodeErrorKind, Quote};
pub use header::{
    Addresses, Command, Decoded, Header, Transport, V2_FIXED_LEN, V2_SIGNATURE, Version, in_one_family,
};
pub use sniff::sniff;
pub use text::Text;
pub use tlv::{Tlv, Tlvs};
