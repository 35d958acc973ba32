//! The sending side (`--send-proxy`): writes a new header before the upstream stream. It names the client to
//! the next receiver in a chain, or at the other end of a tunnel.

use std::net::SocketAddr;

use truepeer_policy::{Origin, Route, SECRET_LEN, SentTlv, SentValue};
use truepeer_proto::{
    Addresses, Command, EncodeError, Tlvs, Transport, V1_MAX_LEN, V2Encoder, Version, encode_v1,
    in_one_family, tlv,
};

/// The most bytes that a TLV of our own takes.
pub const SENT_TLV_ROOM: usize = tlv::TLV_HEADER_LEN + *SECRET_LEN.end();

/// The longest v2 header: its fixed part plus the most that its length field can hold (PROXY 2.2).
const V2_MAX_LEN: usize = 16 + 65_535;

/// The header for `route` with `tlvs` and those of our own, followed by `rest`. `local` returns the address
/// that the sender connected to.
///
/// # Errors
/// The TLVs are too long for a header.
pub fn header_and(
    route: &Route,
    local: impl FnOnce() -> Option<SocketAddr>,
    tlvs: Tlvs<'_>,
    own: &[SentTlv],
    rest: &[u8],
) -> Result<Box<[u8]>, EncodeError> {
    let addresses = addresses(route, Transport::Stream, local);
    let room = match route.send_proxy {
        Some(Version::V1) => V1_MAX_LEN,
        // The address block may be longer than the original's, and a checksum may be added.
        _ => (V1_MAX_LEN + tlvs.as_bytes().len() + own.len() * SENT_TLV_ROOM).min(V2_MAX_LEN),
    };
    let mut bytes = vec![0; room + rest.len()];
    let length = match route.send_proxy {
        Some(Version::V1) => encode_v1(&addresses, &mut bytes)?,
        _ => finish(V2Encoder::new(&mut bytes[..room], command(route.origin), &addresses)?, tlvs, own)?,
    };
    bytes.truncate(length);
    bytes.extend_from_slice(rest);
    Ok(bytes.into())
}

/// Completes a header with `tlvs` and those of our own, which replace others of their types.
///
/// # Errors
/// As [`header_and`].
pub fn finish(encoder: V2Encoder<'_>, tlvs: Tlvs<'_>, own: &[SentTlv]) -> Result<usize, EncodeError> {
    let mut encoder = encoder.copy_tlvs_of(tlvs, |kind| own.iter().all(|tlv| tlv.kind() != kind))?;
    for tlv in own {
        match tlv.value() {
            SentValue::Secret(secret) => encoder = encoder.tlv(tlv.kind(), secret)?,
            SentValue::Digest(time) => {
                return encoder.finish_with_digest(tlv.kind(), time, |signed| tlv.mac(signed));
            }
        }
    }
    encoder.finish()
}

/// What a header about a client of this origin says.
pub fn command(origin: Origin) -> Command {
    if origin == Origin::Local { Command::Local } else { Command::Proxy }
}

/// The addresses in the header for `route`. `local` is as for [`header_and`].
pub fn addresses(
    route: &Route,
    transport: Transport,
    local: impl FnOnce() -> Option<SocketAddr>,
) -> Addresses<'static> {
    let named = matches!(route.origin, Origin::Header | Origin::NoHeader);
    match route.destination.or_else(local) {
        Some(destination) if named => {
            let (source, destination) = in_one_family(route.client.get(), destination);
            Addresses::Inet { transport, source, destination }
        }
        _ => Addresses::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use truepeer_policy::{BackendAddr, ClientAddr, OnConflict};
    use truepeer_proto::{Decoded, Limits, decode};

    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn route(origin: Origin, send_proxy: Version) -> Route {
        Route {
            client: ClientAddr::new(addr("198.51.100.7:2000")),
            origin,
            backend: BackendAddr::new(addr("203.0.113.5:80")),
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: Some(send_proxy),
            destination: None,
            special: None,
        }
    }

    /// What a receiver reads from the header before `rest`: command, client and destination, bytes of
    /// extensions.
    fn read(
        route: &Route,
        local: Option<&str>,
        tlvs: Tlvs<'_>,
        rest: &[u8],
    ) -> (Version, Command, Vec<SocketAddr>, Vec<u8>) {
        let bytes = header_and(route, || local.map(addr), tlvs, &[], rest).expect("a header");
        match decode(&bytes, Limits::default()) {
            Ok(Decoded::Done { header, consumed }) => {
                assert_eq!(&bytes[consumed..], rest);
                let addresses = header.client().into_iter().chain(header.destination()).collect();
                (header.version, header.command, addresses, header.tlvs.as_bytes().to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_next_receiver_reads_the_client_and_the_extensions() {
        // PP2_TYPE_AUTHORITY
        let name = [0x02, 0, 3, b'a', b'.', b'b'];
        let tlvs = Tlvs::parse(&name).expect("extensions");
        let names = || vec![addr("198.51.100.7:2000"), addr("192.0.2.9:80")];
        let by_v2 = read(&route(Origin::Header, Version::V2), Some("192.0.2.9:80"), tlvs, b"GET");
        assert_eq!(by_v2, (Version::V2, Command::Proxy, names(), name.to_vec()));
        // Version 1 has no extensions.
        let by_v1 = read(&route(Origin::NoHeader, Version::V1), Some("[::ffff:192.0.2.9]:80"), tlvs, b"GET");
        assert_eq!(by_v1, (Version::V1, Command::Proxy, names(), vec![]));
    }

    #[test]
    fn the_destination_in_the_header_comes_first() {
        let mut route = route(Origin::Header, Version::V2);
        route.destination = Some(addr("192.0.2.8:81"));
        let (.., addresses, _) = read(&route, Some("192.0.2.9:80"), Tlvs::default(), b"");
        assert_eq!(addresses[1], addr("192.0.2.8:81"));
    }

    #[test]
    fn a_client_whose_destination_is_of_another_family_keeps_its_name() {
        for version in [Version::V1, Version::V2] {
            let mut route = route(Origin::Header, version);
            let (.., addresses, _) = read(&route, Some("[2001:db8::9]:80"), Tlvs::default(), b"");
            assert_eq!(addresses, [addr("[::ffff:198.51.100.7]:2000"), addr("[2001:db8::9]:80")]);
            route.client = ClientAddr::new(addr("[2001:db8::7]:4000"));
            route.destination = Some(addr("10.71.0.1:7000"));
            let (.., addresses, _) = read(&route, Some("192.0.2.9:80"), Tlvs::default(), b"");
            assert_eq!(addresses, [addr("[2001:db8::7]:4000"), addr("[::ffff:10.71.0.1]:7000")]);
        }
    }

    #[test]
    fn a_client_that_no_header_can_name_is_left_out() {
        let without = |origin, version, local| {
            let (_, command, addresses, _) = read(&route(origin, version), local, Tlvs::default(), b"");
            assert!(addresses.is_empty(), "{origin:?}: {addresses:?}");
            command
        };
        let local = Some("192.0.2.9:80");
        assert_eq!(without(Origin::Local, Version::V2, local), Command::Local);
        assert_eq!(without(Origin::Unknown, Version::V2, local), Command::Proxy);
        assert_eq!(without(Origin::Unknown, Version::V1, local), Command::Proxy);
        // A socket that has no address any more.
        assert_eq!(without(Origin::Header, Version::V2, None), Command::Proxy);
    }
}
