//! The shortest way through the crate: one header of each version, in and out.
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use truepeer_proto::{
    Addresses, Command, Decoded, Header, Limits, Tlv, Transport, V1_MAX_LEN, V2Encoder, Version, decode,
    encode_v1,
};

fn header(bytes: &[u8]) -> (Header<'_>, usize) {
    match decode(bytes, Limits::default()) {
        Ok(Decoded::Done { header, consumed }) => (header, consumed),
        other => panic!("{other:?}"),
    }
}

fn example() -> Addresses<'static> {
    Addresses::Inet {
        transport: Transport::Stream,
        source: "192.168.0.1:56324".parse().unwrap(),
        destination: "192.168.0.11:443".parse().unwrap(),
    }
}

#[test]
fn the_specifications_example_is_read_and_written() {
    let line = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n";
    let (header, consumed) = header(line);
    assert_eq!((header.version, header.command, header.addresses), (Version::V1, Command::Proxy, example()));
    assert_eq!(&line[consumed..], b"GET / HTTP/1.1\r\n");

    let mut buffer = [0; V1_MAX_LEN];
    let len = encode_v1(&header.addresses, &mut buffer).unwrap();
    assert_eq!(buffer[..len], line[..consumed]);
}

#[test]
fn a_checked_binary_header_is_written_and_read() {
    let mut buffer = [0; 256];
    let len = V2Encoder::new(&mut buffer, Command::Proxy, &example())
        .unwrap()
        .tlv(0x02, b"example.com")
        .unwrap()
        .with_crc32c()
        .finish()
        .unwrap();
    let (header, consumed) = header(&buffer);
    assert_eq!((consumed, header.version, header.addresses), (len, Version::V2, example()));
    assert_eq!(header.tlvs.authority().unwrap().to_str(), Ok("example.com"));
    assert!(matches!(header.tlvs.iter().last(), Some(Tlv::Crc32c(_))));
}
