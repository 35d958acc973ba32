//! Version 1: one line of text (PROXY 2.1).

use core::fmt::{self, Write};
use core::net::{IpAddr, SocketAddr};

use super::EncodeError;
use crate::header::{Addresses, Transport};

/// Longest line in bytes, CRLF included (PROXY 2.1: "worst case").
pub const V1_MAX_LEN: usize = 107;

/// Writes the line for `addresses` to the start of `buffer`; returns its length, at most [`V1_MAX_LEN`].
///
/// Addresses that version 1 can't express (UDP, UNIX sockets, unspecified) become `UNKNOWN`, as PROXY 2.1
/// demands.
///
/// # Errors
/// [`EncodeError::BufferTooSmall`], [`EncodeError::MixedFamilies`].
pub fn encode_v1(addresses: &Addresses<'_>, buffer: &mut [u8]) -> Result<usize, EncodeError> {
    let mut line = Line { buffer, len: 0 };
    match addresses {
        Addresses::Inet { transport: Transport::Stream, source, destination } => {
            let name = family_name(source, destination)?;
            let (from, to) = (Address(source.ip()), Address(destination.ip()));
            write!(line, "PROXY {name} {from} {to} {} {}\r\n", source.port(), destination.port())
        }
        _ => line.write_str("PROXY UNKNOWN\r\n"),
    }
    .map_err(|fmt::Error| EncodeError::BufferTooSmall)?;
    Ok(line.len)
}

fn family_name(source: &SocketAddr, destination: &SocketAddr) -> Result<&'static str, EncodeError> {
    match (source, destination) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => Ok("TCP4"),
        (SocketAddr::V6(_), SocketAddr::V6(_)) => Ok("TCP6"),
        _ => Err(EncodeError::MixedFamilies),
    }
}

/// An address in the form that PROXY 2.1 names: for IPv6 hexadecimal groups only, never the mixed notation
/// that the standard library chooses for mapped addresses. Zones are not written.
struct Address(IpAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
                let [.., high, low] = v6.segments();
                write!(f, "::ffff:{high:x}:{low:x}")
            }
            address => write!(f, "{address}"),
        }
    }
}

/// A text being written into bytes.
struct Line<'b> {
    buffer: &'b mut [u8],
    len: usize,
}

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.buffer.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
