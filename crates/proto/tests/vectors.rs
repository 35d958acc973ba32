//! Every header of the shared table decodes to what the table says, in one piece and byte by byte.

use truepeer_proto::vectors::{self, Expect};
use truepeer_proto::{Addresses, Command, DecodeError, Decoded, Limits, decode};

/// The decoder's result, in the table's terms.
fn told(bytes: &[u8]) -> Expect {
    let (header, consumed) = match decode(bytes, Limits::default()) {
        Ok(Decoded::NeedMore { missing }) => return Expect::NeedMore(missing),
        Err(DecodeError { kind, offset, .. }) => return Expect::Refused(kind, offset),
        Ok(Decoded::Done { header, consumed }) => (header, consumed),
    };
    match header.addresses {
        _ if header.command == Command::Local => Expect::Local(consumed),
        Addresses::Unspecified => Expect::Unspecified(consumed),
        Addresses::Unix { transport, .. } => Expect::Unix(transport, consumed),
        Addresses::Inet { transport, source, destination } => {
            Expect::Inet(transport, source, destination, consumed)
        }
    }
}

#[test]
fn every_vector_decodes_as_the_table_says() {
    let wrong: Vec<_> = vectors::all()
        .filter(|vector| told(vector.bytes) != vector.expect)
        .map(|vector| format!("{}: {:?}, not {:?}", vector.name, told(vector.bytes), vector.expect))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = vectors::all().map(|vector| vector.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A prefix is never told to wait for more than there is, nor refused for what the whole is accepted for; and
/// what a prefix is refused for, the whole is refused for, at the same byte.
#[test]
fn every_prefix_agrees_with_the_whole() {
    for vector in vectors::all() {
        let (name, whole) = (vector.name, vector.expect);
        for len in 0..vector.bytes.len() {
            match (told(&vector.bytes[..len]), whole) {
                (refused @ Expect::Refused(_, offset), _) => {
                    assert_eq!(refused, whole, "{name}, {len} bytes");
                    assert!(offset < len, "{name}: refused at byte {offset} of {len}");
                }
                (Expect::NeedMore(missing), Expect::NeedMore(rest)) => {
                    assert!((1..=vector.bytes.len() - len + rest).contains(&missing), "{name}, {len} bytes");
                }
                (Expect::NeedMore(missing), Expect::Refused(..)) => {
                    assert!(missing > 0, "{name}, {len} bytes")
                }
                (Expect::NeedMore(missing), _) => {
                    let consumed = consumed(whole);
                    assert!(len < consumed, "{name}: {len} bytes hold the header, yet more is waited for");
                    assert!((1..=consumed - len).contains(&missing), "{name}, {len} bytes");
                }
                (done, _) => {
                    assert_eq!(done, whole, "{name}, {len} bytes");
                    assert!(len >= consumed(whole), "{name}: done after {len} bytes");
                }
            }
        }
    }
}

fn consumed(expect: Expect) -> usize {
    match expect {
        Expect::Local(len) | Expect::Unspecified(len) | Expect::Unix(_, len) | Expect::Inet(.., len) => len,
        Expect::NeedMore(_) | Expect::Refused(..) => panic!("{expect:?} has no length"),
    }
}

#[test]
fn only_a_header_with_network_addresses_names_client_and_destination() {
    let mut named = 0;
    for vector in vectors::all() {
        let Ok(Decoded::Done { header, .. }) = decode(vector.bytes, Limits::default()) else { continue };
        let both = (header.client(), header.destination());
        match header.addresses {
            Addresses::Inet { source, destination, .. } => {
                named += 1;
                assert_eq!(both, (Some(source), Some(destination)), "{}", vector.name);
            }
            Addresses::Unspecified | Addresses::Unix { .. } => {
                assert_eq!(both, (None, None), "{}", vector.name)
            }
        }
    }
    assert!(named > 20, "{named}");
}
