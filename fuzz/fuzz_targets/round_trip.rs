//! A decoded header can be encoded again, with the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_proto::{
    Addresses, Decoded, EncodeError, Header, Limits, Tlvs, Transport, V1_MAX_LEN, V2Encoder, decode,
    encode_v1, tlv,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Decoded::Done { header, .. }) = decode(bytes, Limits::default()) {
        if is_of_two_families(&header.addresses) {
            return can_not_be_passed_on(&header);
        }
        pass_on_as_v1(&header);
        pass_on_as_v2(&header, false);
        pass_on_as_v2(&header, true);
    }
});

/// As NGINX writes v1 for an IPv6 client of an IPv4 listener: understood, but no header may say it.
fn is_of_two_families(addresses: &Addresses<'_>) -> bool {
    matches!(addresses, Addresses::Inet { source, destination, .. } if source.is_ipv4() != destination.is_ipv4())
}

fn can_not_be_passed_on(header: &Header<'_>) {
    let v1 = encode_v1(&header.addresses, &mut [0; V1_MAX_LEN]);
    assert_eq!(v1.err(), Some(EncodeError::MixedFamilies));
    let v2 = V2Encoder::new(&mut [0; 232], header.command, &header.addresses).map(|_| ());
    assert_eq!(v2.err(), Some(EncodeError::MixedFamilies));
}

fn pass_on_as_v1(header: &Header<'_>) {
    let mut buffer = [0; V1_MAX_LEN];
    let len = encode_v1(&header.addresses, &mut buffer).expect("107 bytes are enough");
    let expected = match header.addresses {
        Addresses::Inet { transport: Transport::Stream, .. } => header.addresses,
        _ => Addresses::Unspecified,
    };
    assert_eq!((decoded(&buffer[..len]).addresses, len), (expected, len));
}

fn pass_on_as_v2(header: &Header<'_>, checksum: bool) {
    let mut buffer = vec![0; 16 + 65_535];
    let encoder = V2Encoder::new(&mut buffer, header.command, &header.addresses)
        .and_then(|encoder| encoder.copy_tlvs(header.tlvs))
        .expect("what was decoded fits");
    let encoder = if checksum { encoder.with_crc32c() } else { encoder };
    let len = encoder.finish().expect("what was decoded fits");
    let again = decoded(&buffer[..len]);
    assert_eq!((again.command, again.addresses), (header.command, header.addresses));
    assert!(carried(again.tlvs).eq(carried(header.tlvs)));
    assert!(!checksum || again.tlvs.value(tlv::CRC32C).is_some());
}

fn carried(tlvs: Tlvs<'_>) -> impl Iterator<Item = (u8, &[u8])> {
    tlvs.raw().filter(|(kind, _)| *kind != tlv::CRC32C)
}

fn decoded(bytes: &[u8]) -> Header<'_> {
    let limits = Limits { max_len: 16 + 65_535, ..Limits::default() };
    match decode(bytes, limits) {
        Ok(Decoded::Done { header, consumed }) if consumed == bytes.len() => header,
        other => panic!("{other:?} from {bytes:x?}"),
    }
}
