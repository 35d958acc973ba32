//! Properties of every header, and of bytes that are none.

mod common;

use std::net::{Ipv4Addr, SocketAddr};

use common::{Claim, Plan, claim, done, header, many_cases, pair, plan, unlimited};
use proptest::collection::vec;
use proptest::prelude::*;
use truepeer_proto::spp::{self, Spp};
use truepeer_proto::{
    Addresses, Command, DecodeError, Decoded, Limits, Tlv, Tlvs, Transport, V1_MAX_LEN, V2Encoder, Version,
    decode, decode_datagram, encode_v1, sniff, tlv,
};

/// Reads exactly what is said to be missing, until there is a header.
fn read_as_told(bytes: &[u8]) -> usize {
    let mut have = 0;
    loop {
        match decode(&bytes[..have], unlimited()) {
            Ok(Decoded::NeedMore { missing }) => have += missing,
            Ok(Decoded::Done { consumed, .. }) => return consumed,
            Err(error) => panic!("{error} after {have} bytes"),
        }
    }
}

/// PROXY 2.1: IPv6 in hexadecimal groups. The standard library would write `::ffff:192.0.2.1`.
#[test]
fn version_1_writes_a_mapped_address_in_groups() {
    let [source, destination] = [[192, 0, 2, 1], [198, 51, 100, 2]]
        .map(|address| SocketAddr::new(Ipv4Addr::from(address).to_ipv6_mapped().into(), 443));
    let addresses = Addresses::Inet { transport: Transport::Stream, source, destination };
    let mut buffer = [0; V1_MAX_LEN];
    let len = encode_v1(&addresses, &mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"PROXY TCP6 ::ffff:c000:201 ::ffff:c633:6402 443 443\r\n");
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_header_cut_at_any_byte_needs_more_but_never_too_much(header in header(), data in vec(any::<u8>(), 0..20)) {
        let stream = [header.as_slice(), &data].concat();
        for len in 0..header.len() {
            match decode(&stream[..len], unlimited()) {
                Ok(Decoded::NeedMore { missing }) => prop_assert!((1..=header.len() - len).contains(&missing)),
                other => prop_assert!(false, "{other:?} after {len} of {} bytes", header.len()),
            }
        }
        for len in header.len()..=stream.len() {
            prop_assert_eq!(done(&stream[..len]), done(&header));
        }
        prop_assert_eq!(done(&header).1, header.len());
        prop_assert_eq!(read_as_told(&stream), header.len());
    }

    #[test]
    fn version_1_decodes_to_what_was_encoded(claim in claim()) {
        let mut buffer = [0; V1_MAX_LEN];
        let len = encode_v1(&claim.addresses(), &mut buffer).unwrap();
        let (header, consumed) = done(&buffer[..len]);
        prop_assert_eq!((header.version, header.command, consumed), (Version::V1, Command::Proxy, len));
        match claim {
            Claim::Inet(Transport::Stream, ..) => prop_assert_eq!(header.addresses, claim.addresses()),
            _ => prop_assert_eq!(header.addresses, Addresses::Unspecified),
        }
    }

    #[test]
    fn version_2_decodes_to_what_was_encoded(plan in plan()) {
        let bytes = plan.encode();
        let (header, consumed) = done(&bytes);
        prop_assert_eq!((header.version, header.command, consumed), (Version::V2, plan.command, bytes.len()));
        match plan.command {
            Command::Proxy => prop_assert_eq!(header.addresses, plan.claim.addresses()),
            Command::Local => prop_assert_eq!(header.addresses, Addresses::Unspecified),
        }
        let mut tlvs: Vec<_> = header.tlvs.raw().map(|(kind, value)| (kind, value.to_vec())).collect();
        prop_assert_eq!(tlvs.pop_if(|(kind, _)| *kind == tlv::CRC32C).is_some(), plan.crc32c);
        prop_assert_eq!(tlvs, plan.tlvs);
    }

    #[test]
    fn a_header_passed_on_says_the_same(plan in plan(), extra in vec(any::<u8>(), 0..9)) {
        let original = plan.encode();
        let (header, _) = done(&original);
        let mut buffer = vec![0; original.len() + 3 + extra.len()];
        let len = V2Encoder::new(&mut buffer, header.command, &header.addresses).unwrap()
            .copy_tlvs(header.tlvs).unwrap()
            .tlv(tlv::NOOP, &extra).unwrap()
            .finish().unwrap();
        prop_assert_eq!(len, original.len() + 3 + extra.len());
        let (passed_on, _) = done(&buffer);
        prop_assert_eq!((passed_on.command, passed_on.addresses), (header.command, header.addresses));
        let carried = |tlvs: Tlvs<'_>| {
            tlvs.raw().filter(|(kind, _)| *kind != tlv::CRC32C).map(|(k, v)| (k, v.to_vec())).collect::<Vec<_>>()
        };
        let mut expected = carried(header.tlvs);
        expected.push((tlv::NOOP, extra));
        prop_assert_eq!(carried(passed_on.tlvs), expected);
        prop_assert_eq!(passed_on.tlvs.value(tlv::CRC32C).is_some(), plan.crc32c);
    }

    #[test]
    fn any_flipped_bit_breaks_the_checksum(plan in plan(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let bytes = Plan { crc32c: true, ..plan }.encode();
        // Beyond the fixed part: a flipped family or length is refused, or awaited, for its own sake.
        let at = 16 + at.index(bytes.len() - 16);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1_u8 << bit;
        if let Ok(Decoded::Done { header, .. }) = decode(&flipped, unlimited()) {
            // Only where the bit turned the checksum or the TLVs' structure into something else.
            prop_assert!(!header.tlvs.raw().any(|(kind, _)| kind == tlv::CRC32C));
        }
    }

    #[test]
    fn every_encoder_respects_its_buffer(plan in plan(), room in any::<prop::sample::Index>()) {
        let needed = plan.encode().len();
        let room = room.index(needed);
        let mut buffer = vec![0xAA; needed];
        let written = V2Encoder::new(&mut buffer[..room], plan.command, &plan.claim.addresses()).and_then(|mut encoder| {
            for (kind, value) in &plan.tlvs {
                encoder = encoder.tlv(*kind, value)?;
            }
            if plan.crc32c { encoder.with_crc32c().finish() } else { encoder.finish() }
        });
        prop_assert_eq!(written, Err(truepeer_proto::EncodeError::BufferTooSmall));
    }

    #[test]
    fn spp_decodes_to_what_was_encoded((client, proxy) in pair(), payload in vec(any::<u8>(), 0..20)) {
        let mut datagram = vec![0; spp::LEN + payload.len()];
        prop_assert_eq!(spp::encode(&Spp { client, proxy }, &mut datagram), Ok(spp::LEN));
        let back = spp::decode(&datagram).unwrap();
        prop_assert_eq!(back.client.ip(), client.ip().to_canonical());
        prop_assert_eq!(back.proxy.ip(), proxy.ip().to_canonical());
        prop_assert_eq!((back.client.port(), back.proxy.port()), (client.port(), proxy.port()));
        prop_assert!(spp::decode(&datagram[..spp::LEN - 1]).is_err());
    }

    #[test]
    fn nothing_panics_and_a_refusal_is_final(bytes in hostile()) {
        let mut refused: Option<DecodeError> = None;
        for len in 0..=bytes.len() {
            let outcome = decode(&bytes[..len], Limits::default());
            if let Some(error) = refused {
                prop_assert_eq!(outcome, Err(error), "after {} bytes", len);
            }
            if let Err(error) = outcome {
                prop_assert!(error.offset < len.max(1));
                refused = Some(error);
            }
            if let Ok(Decoded::Done { header, consumed }) = outcome {
                prop_assert!(consumed <= len);
                touch(header.tlvs);
                break;
            }
        }
        let _ = decode_datagram(&bytes, Limits::default()).map(|(header, _)| touch(header.tlvs));
        let _ = spp::decode(&bytes);
        let _ = sniff(&bytes);
        let _ = Tlvs::parse(&bytes).map(touch);
    }
}

/// Looks at each extension as a reader would.
fn touch(tlvs: Tlvs<'_>) {
    for tlv in tlvs.iter() {
        let _ = format!("{tlv:?}");
        if let Tlv::Ssl(ssl) = tlv {
            ssl.iter().for_each(|sub| drop(format!("{sub:?}")));
        }
    }
}

/// Random bytes, random bytes behind either signature, and valid headers with a few bytes changed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let behind =
        |start: &'static [u8]| vec(any::<u8>(), 0..120).prop_map(move |rest| [start, &rest].concat());
    let text = "PROXY (TCP4|TCP6|UNKNOWN)[0-9a-f:. \r\n]{0,120}".prop_map(String::into_bytes);
    // Near the limit, 107.
    let long = "PROXY (TCP[46] [0-9a-f:. ]{92,97}|UNKNOWN [0-9a-f]{88,94})[0-9\r\n\u{80}]{0,8}";
    let long = long.prop_map(String::into_bytes);
    let changed = (header(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)).prop_map(
        |(mut bytes, changes)| {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        },
    );
    prop_oneof![
        1 => vec(any::<u8>(), 0..60),
        2 => behind(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00"),
        2 => behind(b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00"),
        2 => text,
        2 => long,
        4 => changed,
    ]
}
