//! Simple Proxy Protocol: 38 bytes in front of each datagram (Cloudflare Spectrum, Tencent EdgeOne).
//!
//! ```text
//! 0      2                18              34            36           38
//! | 56EC | client address | proxy address | client port | proxy port | payload
//! ```
//! All big endian; IPv4 addresses are IPv4-mapped IPv6 ones. Source: "Simple Proxy Protocol Header",
//! Cloudflare Spectrum's reference. A reply carries the same header back.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::encode::EncodeError;
use crate::error::{DecodeError, DecodeErrorKind};

/// The first two bytes.
pub const MAGIC: [u8; 2] = [0x56, 0xEC];

/// Bytes of a header.
pub const LEN: usize = 38;

/// One SPP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spp {
    /// The client: an IPv4-mapped address is given as the IPv4 address that it stands for.
    pub client: SocketAddr,
    /// The sender's address that the client sent to.
    pub proxy: SocketAddr,
}

/// Decodes the header at the start of a datagram; its payload starts at [`LEN`].
///
/// # Errors
/// [`DecodeErrorKind::SppMagic`], or [`DecodeErrorKind::Truncated`] for a datagram that is too short.
pub fn decode(datagram: &[u8]) -> Result<Spp, DecodeError> {
    if let Some(offset) = datagram.iter().zip(MAGIC).position(|(&byte, expected)| byte != expected) {
        return Err(DecodeError::new(DecodeErrorKind::SppMagic, offset));
    }
    fields(datagram).ok_or(DecodeError::new(DecodeErrorKind::Truncated, datagram.len()))
}

fn fields(datagram: &[u8]) -> Option<Spp> {
    let rest = datagram.get(MAGIC.len()..)?;
    let (client, rest) = rest.split_first_chunk::<16>()?;
    let (proxy, rest) = rest.split_first_chunk::<16>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let (proxy_port, _) = rest.split_first_chunk::<2>()?;
    Some(Spp {
        client: SocketAddr::new(Ipv6Addr::from(*client).to_canonical(), u16::from_be_bytes(*client_port)),
        proxy: SocketAddr::new(Ipv6Addr::from(*proxy).to_canonical(), u16::from_be_bytes(*proxy_port)),
    })
}

/// Writes a header to the start of `buffer`; returns [`LEN`].
///
/// # Errors
/// [`EncodeError::BufferTooSmall`].
pub fn encode(header: &Spp, buffer: &mut [u8]) -> Result<usize, EncodeError> {
    let out = buffer.first_chunk_mut::<LEN>().ok_or(EncodeError::BufferTooSmall)?;
    out[..2].copy_from_slice(&MAGIC);
    out[2..18].copy_from_slice(&mapped(header.client.ip()));
    out[18..34].copy_from_slice(&mapped(header.proxy.ip()));
    out[34..36].copy_from_slice(&header.client.port().to_be_bytes());
    out[36..].copy_from_slice(&header.proxy.port().to_be_bytes());
    Ok(LEN)
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
