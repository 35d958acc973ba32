//! The first bytes of a connection: no panic, and every prefix agrees with the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_proto::{DecodeError, Decoded, Limits, decode, decode_datagram, sniff};

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, Limits::default());
    match whole {
        Ok(Decoded::NeedMore { missing }) => assert!(missing >= 1),
        Ok(Decoded::Done { header, consumed }) => {
            assert!(consumed <= bytes.len());
            assert_eq!(decode(&bytes[..consumed], Limits::default()), whole);
            header.tlvs.iter().for_each(|tlv| drop(format!("{tlv:?}")));
        }
        Err(error) => assert!(error.offset < bytes.len() && !error.to_string().is_empty()),
    }
    // Every cut of a short input, some cuts of a long one.
    for len in (0..bytes.len()).step_by(1 + bytes.len() / 256) {
        check_prefix(&bytes[..len], whole);
    }
    let _ = decode_datagram(bytes, Limits::default());
    let _ = sniff(bytes);
});

fn check_prefix(prefix: &[u8], whole: Result<Decoded<'_>, DecodeError>) {
    match (decode(prefix, Limits::default()), whole) {
        (Ok(Decoded::NeedMore { missing }), Ok(Decoded::Done { consumed, .. })) => {
            assert!((1..=consumed - prefix.len()).contains(&missing));
        }
        (Ok(Decoded::NeedMore { missing }), _) => assert!(missing >= 1),
        (told, whole) => assert_eq!(told, whole),
    }
}
