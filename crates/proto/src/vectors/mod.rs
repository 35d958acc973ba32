//! Headers and what each of them must decode to: one table for every parser (this crate's, the kernel
//! programs', the preloaded library's) and the seed of the fuzz corpus. Only with the feature `vectors`.
//!
//! A parser that leaves extensions alone (it neither walks TLVs nor verifies checksums) is held against
//! everything but [`TLV`].

mod published;
mod tlv;
mod v1;
mod v2;

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

pub use published::PUBLISHED;
pub use tlv::TLV;
pub use v1::V1;
pub use v2::V2;

use crate::error::DecodeErrorKind;
use crate::header::Transport;

/// Bytes as they arrive on a new connection, decoded with [`crate::Limits::default`].
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    /// A description of the bytes, and the program that failed on them, if one did; unique.
    pub name: &'static str,
    /// The received bytes: a header and perhaps data after it.
    pub bytes: &'static [u8],
    /// The required result.
    pub expect: Expect,
}

/// The required contents of a decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Incomplete, and at least this many bytes are missing.
    NeedMore(usize),
    /// Refused, for this reason, at this byte.
    Refused(DecodeErrorKind, usize),
    /// LOCAL; the header's length.
    Local(usize),
    /// Accepted without addresses; the header's length.
    Unspecified(usize),
    /// A UNIX socket's paths; the header's length.
    Unix(Transport, usize),
    /// Source and destination; the header's length.
    Inet(Transport, SocketAddr, SocketAddr, usize),
}

/// All vectors.
pub fn all() -> impl Iterator<Item = &'static Vector> {
    [V1, V2, TLV, PUBLISHED].into_iter().flatten()
}

const fn vector(name: &'static str, bytes: &'static [u8], expect: Expect) -> Vector {
    Vector { name, bytes, expect }
}

const fn v4(octets: [u8; 4], port: u16) -> SocketAddr {
    let [a, b, c, d] = octets;
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port))
}

const fn v6(segments: [u16; 8], port: u16) -> SocketAddr {
    let [a, b, c, d, e, f, g, h] = segments;
    SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(a, b, c, d, e, f, g, h), port, 0, 0))
}

/// `rest` behind the version 2 signature.
macro_rules! binary {
    ($rest:expr) => {{
        const REST: &[u8] = $rest;
        const WHOLE: [u8; 12 + REST.len()] = $crate::vectors::signed(REST);
        &WHOLE
    }};
}
use binary;

const fn signed<const N: usize>(rest: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    let mut at = 0;
    while at < N {
        whole[at] = if at < 12 { crate::header::V2_SIGNATURE[at] } else { rest[at - 12] };
        at += 1;
    }
    whole
}
