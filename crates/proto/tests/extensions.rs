//! Each kind of TLV is understood, and a value of another form than its type's harms nobody.
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use truepeer_proto::tlv::{Ssl, SslTlv};
use truepeer_proto::{
    Addresses, Command, DecodeErrorKind, Decoded, EncodeError, Limits, Tlv, Tlvs, V2Encoder, decode, tlv,
};

/// The only TLV of its type and value.
fn understood(kind: u8, value: &[u8], check: impl FnOnce(Tlv<'_>)) {
    let len = u16::try_from(value.len()).unwrap().to_be_bytes();
    let bytes = [&[kind, len[0], len[1]], value].concat();
    let mut tlvs = Tlvs::parse(&bytes).unwrap().iter();
    check(tlvs.next().unwrap());
    assert!(tlvs.next().is_none());
}

/// The `{}` form of a string.
macro_rules! assert_text {
    ($kind:expr, $value:expr, $variant:path, $text:expr) => {
        understood($kind, $value, |tlv| match tlv {
            $variant(text) => assert_eq!(text.to_string(), $text),
            other => panic!("{other:?}"),
        })
    };
}

#[test]
fn registered_types_are_understood() {
    understood(0x01, b"h2", |tlv| assert_eq!(tlv, Tlv::Alpn(b"h2")));
    assert_text!(0x02, b"example.com", Tlv::Authority, "example.com");
    understood(0x03, &[1, 2, 3, 4], |tlv| assert_eq!(tlv, Tlv::Crc32c(0x0102_0304)));
    understood(0x04, b"\0\0", |tlv| assert_eq!(tlv, Tlv::Noop(b"\0\0")));
    understood(0x05, b"id", |tlv| assert_eq!(tlv, Tlv::UniqueId(b"id")));
    assert_text!(0x30, b"blue", Tlv::Netns, "blue");
}

#[test]
fn vendors_types_are_understood() {
    assert_text!(0xEA, b"\x01vpce-08d2bf15fac5001c9", Tlv::AwsVpcEndpointId, "vpce-08d2bf15fac5001c9");
    understood(0xE0, &[0, 0, 0, 0, 0, 0, 1, 2], |tlv| assert_eq!(tlv, Tlv::GcpPscConnectionId(0x0102)));
    understood(0xEE, &[1, 0x78, 0x56, 0x34, 0x12], |tlv| assert_eq!(tlv, Tlv::AzureLinkId(0x1234_5678)));
    assert_text!(0xE1, b"\x01vpc-1", Tlv::AlibabaVpcId, "vpc-1");
    assert_text!(0xE1, b"\x02ep-1", Tlv::AlibabaEndpointId, "ep-1");
    assert_text!(0xE1, b"\x03epsrv-1", Tlv::AlibabaServiceId, "epsrv-1");
}

#[test]
fn a_vendors_type_in_another_form_is_custom() {
    let others: [(u8, &[u8]); 8] = [
        (0xEA, b""),
        (0xEA, b"\x02x"),
        (0xE0, b"1234567"),
        (0xE0, b"123456789"),
        (0xEE, b"\x01123"),
        (0xEE, b"\x021234"),
        (0xE1, b"\x04x"),
        (0xE5, b"x"),
    ];
    for (kind, value) in others {
        understood(kind, value, |tlv| assert_eq!(tlv, Tlv::Custom { kind, value }));
    }
}

#[test]
fn every_range_has_its_name() {
    // A CRC32C must be 4 bytes long.
    for kind in (0..=u8::MAX).filter(|kind| *kind != tlv::CRC32C) {
        understood(kind, b"12345", |tlv| match kind {
            0xE0..=0xEF => assert_eq!(tlv, Tlv::Custom { kind, value: b"12345" }),
            0xF0..=0xF7 => assert_eq!(tlv, Tlv::Experiment { kind, value: b"12345" }),
            0xF8..=0xFF => assert_eq!(tlv, Tlv::Reserved { kind, value: b"12345" }),
            0x01 | 0x02 | 0x04 | 0x05 | 0x20 | 0x30 => assert!(!matches!(tlv, Tlv::Unknown { .. })),
            _ => assert_eq!(tlv, Tlv::Unknown { kind, value: b"12345" }),
        });
    }
}

#[test]
fn a_string_that_is_not_utf_8_is_kept_and_escaped() {
    understood(0x02, b"a\xffb\x1b[31m\\", |tlv| {
        let Tlv::Authority(text) = tlv else { panic!("{tlv:?}") };
        assert!(text.to_str().is_err());
        assert_eq!(text.as_bytes(), b"a\xffb\x1b[31m\\");
        assert_eq!(text.to_string(), "a\\xffb\\u{1b}[31m\\\\");
        assert_eq!(format!("{text:?}"), format!("\"{text}\""));
    });
    understood(0x02, "bücher.example\n".as_bytes(), |tlv| {
        let Tlv::Authority(text) = tlv else { panic!("{tlv:?}") };
        assert_eq!(text.to_str(), Ok("bücher.example\n"));
        assert_eq!(text.to_string(), "bücher.example\\n");
    });
}

#[test]
fn all_of_ssl_is_understood() {
    let cert = [0x30; 4096];
    let sub: [(u8, &[u8]); 9] = [
        (0x21, b"TLSv1.3"),
        (0x22, b"client.example"),
        (0x23, b"TLS_AES_256_GCM_SHA384"),
        (0x24, b"RSA-SHA256"),
        (0x25, b"RSA2048"),
        (0x26, b"x25519"),
        (0x27, b"rsa_pss_rsae_sha256"),
        (0x28, &cert),
        (0x29, b"?"),
    ];
    let mut buffer = [0; 8192];
    let len = V2Encoder::new(&mut buffer, Command::Proxy, &Addresses::Unspecified)
        .unwrap()
        .ssl(Ssl::SSL | Ssl::CERT_CONN, 0, &sub)
        .unwrap()
        .tlv(tlv::ALPN, b"h2")
        .unwrap()
        .with_crc32c()
        .finish()
        .unwrap();
    let Ok(Decoded::Done { header, consumed }) = decode(&buffer, Limits::default()) else { panic!() };
    assert_eq!(consumed, len);
    assert_eq!(header.tlvs.alpn(), Some(b"h2".as_slice()));

    let ssl = header.tlvs.ssl().unwrap();
    assert!(ssl.is_tls() && ssl.is_client_verified());
    let words: Vec<String> = ssl.iter().map(word).collect();
    let expected = [
        "version TLSv1.3",
        "cn client.example",
        "cipher TLS_AES_256_GCM_SHA384",
        "sig alg RSA-SHA256",
        "key alg RSA2048",
        "group x25519",
        "sig scheme rsa_pss_rsae_sha256",
        "cert 4096",
        "unknown 41",
    ];
    assert_eq!(words, expected);
}

fn word(sub: SslTlv<'_>) -> String {
    match sub {
        SslTlv::Version(text) => format!("version {text}"),
        SslTlv::CommonName(text) => format!("cn {text}"),
        SslTlv::Cipher(text) => format!("cipher {text}"),
        SslTlv::SigAlg(text) => format!("sig alg {text}"),
        SslTlv::KeyAlg(text) => format!("key alg {text}"),
        SslTlv::Group(text) => format!("group {text}"),
        SslTlv::SigScheme(text) => format!("sig scheme {text}"),
        SslTlv::ClientCert(der) => format!("cert {}", der.len()),
        SslTlv::Unknown { kind, .. } => format!("unknown {kind}"),
    }
}

#[test]
fn one_flag_says_that_the_client_spoke_tls() {
    for (client, is_tls) in
        [(0, false), (Ssl::SSL, true), (Ssl::CERT_CONN, false), (0xfe, false), (0xff, true)]
    {
        let value = [0x20, 0, 5, client, 0, 0, 0, 0];
        assert_eq!(Tlvs::parse(&value).unwrap().ssl().unwrap().is_tls(), is_tls, "{client:#x}");
    }
}

#[test]
fn a_client_is_verified_only_with_a_certificate() {
    let verified = |client: u8, verify: u32| {
        let value = [&[0x20, 0, 5, client], verify.to_be_bytes().as_slice()].concat();
        Tlvs::parse(&value).unwrap().ssl().unwrap().is_client_verified()
    };
    assert!(!verified(0x01, 0), "HAProxy sends 0 also where there was no certificate");
    assert!(verified(0x03, 0));
    assert!(verified(0x05, 0));
    assert!(!verified(0x03, 10));
}

#[test]
fn tlvs_are_refused_by_structure_alone() {
    let refused = |bytes: &[u8]| Tlvs::parse(bytes).map(|_| ()).map_err(|error| (error.kind, error.offset));
    assert_eq!(refused(b""), Ok(()));
    assert_eq!(refused(b"\x04\0\0\x04\0"), Err((DecodeErrorKind::TlvOverrun, 3)));
    assert_eq!(refused(b"\x03\0\x05....."), Err((DecodeErrorKind::Crc32cLength, 0)));
    assert_eq!(refused(b"\x20\0\0"), Err((DecodeErrorKind::SslTooShort, 0)));
    assert_eq!(refused(b"\x20\0\x06\x01\0\0\0\0\x21"), Err((DecodeErrorKind::SslOverrun, 8)));
}

#[test]
fn an_encoder_writes_nothing_that_no_receiver_could_accept() {
    let mut buffer = [0; 70_000];
    let mut tlv = |kind: u8, value: &[u8]| {
        V2Encoder::new(&mut buffer, Command::Proxy, &Addresses::Unspecified)
            .and_then(|encoder| encoder.tlv(kind, value))
            .and_then(V2Encoder::finish)
    };
    assert_eq!(tlv(tlv::CRC32C, &[0; 4]), Err(EncodeError::GivenChecksum));
    let reason = DecodeErrorKind::UniqueIdTooLong;
    assert_eq!(tlv(tlv::UNIQUE_ID, &[0; 129]), Err(EncodeError::InvalidTlv { kind: 0x05, reason }));
    let reason = DecodeErrorKind::SslOverrun;
    assert_eq!(tlv(tlv::SSL, &[0; 6]), Err(EncodeError::InvalidTlv { kind: 0x20, reason }));
    assert_eq!(tlv(tlv::NOOP, &[0; 65_536]), Err(EncodeError::TooLong));
    assert_eq!(tlv(tlv::NOOP, &[0; 65_533]), Err(EncodeError::TooLong), "65536 with its type and length");
    assert_eq!(tlv(tlv::NOOP, &[0; 65_532]), Ok(16 + 65_535));
}

#[test]
fn families_do_not_mix() {
    let addresses = Addresses::Inet {
        transport: truepeer_proto::Transport::Stream,
        source: "192.0.2.1:1".parse().unwrap(),
        destination: "[2001:db8::1]:2".parse().unwrap(),
    };
    let mut buffer = [0; 256];
    assert_eq!(truepeer_proto::encode_v1(&addresses, &mut buffer), Err(EncodeError::MixedFamilies));
    let refused = V2Encoder::new(&mut buffer, Command::Proxy, &addresses).map(|_| ());
    assert_eq!(refused, Err(EncodeError::MixedFamilies));
}

#[test]
fn extensions_are_kept_as_sent() {
    let bytes = [0x04, 0, 1, 7, 0x05, 0, 2, b'i', b'd'];
    let tlvs = Tlvs::parse(&bytes).unwrap();
    assert_eq!((tlvs.as_bytes(), tlvs.is_empty()), (&bytes[..], false));
    assert!(Tlvs::default().is_empty() && Tlvs::default().as_bytes().is_empty());
}
