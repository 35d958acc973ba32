//! The messages when bytes are refused, and refusals by configuration.
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::collections::BTreeSet;

use truepeer_proto::spp::{self, Spp};
use truepeer_proto::vectors::{self, Expect};
use truepeer_proto::{
    DecodeError, DecodeErrorKind as Kind, Decoded, EncodeError, Limits, Versions, decode, decode_datagram,
    sniff,
};

const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x00";

fn refused(bytes: &[u8], limits: Limits) -> (Kind, usize) {
    let error = decode(bytes, limits).unwrap_err();
    (error.kind, error.offset)
}

fn only(versions: Versions) -> Limits {
    Limits { versions, ..Limits::default() }
}

#[test]
fn every_kind_of_refusal_is_shown_by_a_vector() {
    let shown: BTreeSet<_> = vectors::all()
        .filter_map(|vector| match vector.expect {
            Expect::Refused(kind, _) => Some(kind),
            _ => None,
        })
        .collect();
    let elsewhere = [Kind::VersionNotAccepted, Kind::Truncated, Kind::SppMagic];
    let missing: Vec<_> =
        Kind::ALL.into_iter().filter(|kind| !shown.contains(kind) && !elsewhere.contains(kind)).collect();
    assert_eq!(missing, []);
}

#[test]
fn labels_are_stable_names_for_counters() {
    let labels: BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(labels.len(), Kind::ALL.len());
    assert!(labels.iter().all(|label| {
        label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    }));
}

#[test]
fn a_refusal_says_what_where_and_by_which_rule() {
    let error = decode(b"GET / HTTP/1.1", Limits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not a PROXY header: expected \"PROXY\" (version 1) or the version 2 signature (at byte 0)"
    );
    assert_eq!(error.kind.section(), "PROXY 2.2");
    for kind in Kind::ALL {
        let text = kind.to_string();
        assert!(text.contains("expected") || text.contains("here"), "{text}");
        assert!(kind.section().starts_with("PROXY 2") || kind.section() == "SPP", "{text}");
    }
}

#[test]
fn a_version_that_is_not_accepted_is_refused() {
    assert_eq!(refused(LINE, only(Versions::V2)), (Kind::VersionNotAccepted, 0));
    assert_eq!(refused(BINARY, only(Versions::V1)), (Kind::VersionNotAccepted, 0));
    assert_eq!(refused(b"P", only(Versions::V2)), (Kind::NotProxy, 0));
    assert_eq!(refused(b"\r\n", only(Versions::V1)), (Kind::NotProxy, 0));
    assert_eq!(refused(b"\r\nx", only(Versions::V1)), (Kind::NotProxy, 2));
    assert!(matches!(decode(LINE, only(Versions::V1)), Ok(Decoded::Done { .. })));
    assert!(matches!(decode(BINARY, only(Versions::V2)), Ok(Decoded::Done { .. })));
    assert_eq!(decode(b"", only(Versions::V2)), Ok(Decoded::NeedMore { missing: 16 }));
    assert_eq!(decode(b"", only(Versions::V1)), Ok(Decoded::NeedMore { missing: 15 }));
}

#[test]
fn the_limit_counts_the_whole_binary_header() {
    let header = [BINARY, &[]].concat();
    let limits = |max_len| Limits { max_len, ..Limits::default() };
    assert!(matches!(decode(&header, limits(16)), Ok(Decoded::Done { .. })));
    assert_eq!(refused(&header, limits(15)), (Kind::V2TooLong, 14));
    assert!(matches!(decode(LINE, limits(15)), Ok(Decoded::Done { .. })), "version 1 has its own limit");
}

#[test]
fn the_longest_header_of_all_is_read_where_the_limit_allows() {
    let mut header = [BINARY, &[0; 65_535]].concat();
    header[14..16].copy_from_slice(&[0xff, 0xff]);
    // One NOOP that fills it.
    header[16..19].copy_from_slice(&[0x04, 0xff, 0xfc]);
    let limits = Limits { max_len: 16 + 65_535, ..Limits::default() };
    let Ok(Decoded::Done { header: decoded, consumed }) = decode(&header, limits) else { panic!() };
    assert_eq!(consumed, 16 + 65_535);
    assert_eq!(decoded.tlvs.raw().count(), 1);
    assert_eq!(decode(&header[..16], limits), Ok(Decoded::NeedMore { missing: 65_535 }));
}

#[test]
fn a_datagram_holds_its_whole_header() {
    let datagram = [BINARY, b"payload"].concat();
    let (_, consumed) = decode_datagram(&datagram, Limits::default()).unwrap();
    assert_eq!(&datagram[consumed..], b"payload");
    for len in 0..BINARY.len() {
        let truncated = DecodeError { kind: Kind::Truncated, offset: len };
        assert_eq!(decode_datagram(&BINARY[..len], Limits::default()), Err(truncated));
    }
}

#[test]
fn foreign_first_bytes_are_named() {
    let named: [(&[u8], &str); 8] = [
        (b"\x16\x03\x01\x02\x00\x01", "TLS (ClientHello)"),
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"CONNECT example.com:443 HTTP/1.1\r\n", "HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 preface"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH banner"),
        (b"\x56\xec\x00\x00", "SPP (Simple Proxy Protocol)"),
        (b"\x00\x00\x00\x54\x00\x03\x00\x00user", "PostgreSQL (startup)"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "PostgreSQL (SSLRequest)"),
    ];
    for (bytes, name) in named {
        assert_eq!(sniff(bytes), Some(name));
        assert_eq!(refused(bytes, Limits::default()).0, Kind::NotProxy);
    }
    for unknown in [b"".as_slice(), b"\x16", b"hello", LINE, BINARY] {
        assert_eq!(sniff(unknown), None);
    }
}

#[test]
fn spp_is_38_bytes_in_network_order() {
    let datagram = [
        b"\x56\xec".as_slice(),
        b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01",
        b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02",
        b"\xdc\x04\x00\x35",
        b"query",
    ]
    .concat();
    let header =
        Spp { client: "192.0.2.1:56324".parse().unwrap(), proxy: "[2001:db8::2]:53".parse().unwrap() };
    assert_eq!(spp::decode(&datagram), Ok(header));
    let mut written = [0; spp::LEN];
    assert_eq!(spp::encode(&header, &mut written), Ok(spp::LEN));
    assert_eq!(written, datagram[..spp::LEN]);

    assert_eq!(spp::encode(&header, &mut written[..37]), Err(EncodeError::BufferTooSmall));
    let refused = |bytes: &[u8]| spp::decode(bytes).map_err(|error| (error.kind, error.offset)).unwrap_err();
    assert_eq!(refused(&datagram[..37]), (Kind::Truncated, 37));
    assert_eq!(refused(b""), (Kind::Truncated, 0));
    assert_eq!(refused(b"\x56\xed"), (Kind::SppMagic, 1));
    assert_eq!(refused(LINE), (Kind::SppMagic, 0));
}

#[test]
fn a_quote_is_cut_behind_the_longest_address() {
    for (digits, said) in [
        (45, format!("\"{}\"", "1".repeat(45))),
        (46, format!("\"{}…\"", "1".repeat(45))),
        (60, format!("\"{}…\"", "1".repeat(45))),
    ] {
        let line = format!("PROXY TCP6 {} ::1 1 2\r\n", "1".repeat(digits)).into_bytes();
        let error = decode(&line, Limits::default()).unwrap_err();
        assert_eq!(error.quote(&line).unwrap().to_string(), said, "{digits}");
    }
}

#[test]
fn only_a_word_of_the_line_is_quoted() {
    for other in
        [b"PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n".as_slice(), b"GET / HTTP/1.1\r\n", b"\r\n\r\nx y"]
    {
        let error = decode(other, Limits::default()).unwrap_err();
        assert_eq!(error.quote(other), None, "{error}");
    }
}

#[test]
fn a_quote_is_debugged_as_it_is_printed() {
    let line = b"PROXY TCP4 192.0.2.999 198.51.100.1 1 2\r\n";
    let error = decode(line, Limits::default()).expect_err("no address");
    let quote = error.quote(line).expect("the address");
    assert_eq!(
        (format!("{quote:?}"), quote.to_string()),
        ("\"192.0.2.999\"".to_owned(), "\"192.0.2.999\"".to_owned())
    );
}
