//! The sending side (`--send-proxy`): writes a new header before the upstream stream. It names the client to the
//! next receiver in a chain, or at the other end of a tunnel.

use std::net::SocketAddr;

use truepeer_policy::{Origin, Route};
use truepeer_proto::{
    Addresses, Command, EncodeError, Tlvs, Transport, V1_MAX_LEN, V2Encoder, Version, encode_v1,
};

/// The longest v2 header: its fixed part plus the most that its length field can hold (PROXY 2.2).
const V2_MAX_LEN: usize = 16 + 65_535;

/// The header for `route` with `tlvs`, followed by `rest`. `local` returns the address that the sender connected
/// to.
///
/// # Errors
/// The TLVs are too long for a header.
pub fn header_and(
    route: &Route,
    local: impl FnOnce() -> Option<SocketAddr>,
    tlvs: Tlvs<'_>,
    rest: &[u8],
) -> Result<Box<[u8]>, EncodeError> {
    let addresses = addresses(route, local);
    let room = match route.send_proxy {
        Some(Version::V1) => V1_MAX_LEN,
        // The address block may be longer than the original's, and a checksum may be added.
        _ => (V1_MAX_LEN + tlvs.as_bytes().len()).min(V2_MAX_LEN),
    };
    let mut bytes = vec![0; room + rest.len()];
    let length = match route.send_proxy {
        Some(Version::V1) => encode_v1(&addresses, &mut bytes)?,
        _ => V2Encoder::new(&mut bytes[..room], command(route.origin), &addresses)?
            .copy_tlvs(tlvs)?
            .finish()?,
    };
    bytes.truncate(length);
    bytes.extend_from_slice(rest);
    Ok(bytes.into())
}

fn command(origin: Origin) -> Command {
    if origin == Origin::Local { Command::Local } else { Command::Proxy }
}

fn addresses(route: &Route, local: impl FnOnce() -> Option<SocketAddr>) -> Addresses<'static> {
    let named = matches!(route.origin, Origin::Header | Origin::NoHeader);
    let source = route.client.get();
    let destination = route.destination.or_else(local).map(canonical);
    match destination {
        Some(destination) if named && destination.is_ipv4() == source.is_ipv4() => {
            Addresses::Inet { transport: Transport::Stream, source, destination }
        }
        _ => Addresses::Unspecified,
    }
}

/// A dual-stack listener reports IPv4 connections as `::ffff:a.b.c.d`.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
