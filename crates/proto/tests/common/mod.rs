//! Valid headers, and what they say, for the property tests.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use truepeer_proto::{
    Addresses, Command, Decoded, Header, Limits, Transport, V1_MAX_LEN, V2Encoder, decode, encode_v1,
};

/// Room for any v2 header.
pub(crate) const LARGE: usize = 16 + 65535;

/// Any length, both versions.
pub(crate) fn unlimited() -> Limits {
    Limits { max_len: LARGE, ..Limits::default() }
}

/// 2048 random cases, or as many as PROPTEST_CASES says (Miri has time for a few).
pub(crate) fn many_cases() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(2048),
    }
}

/// A complete header.
pub(crate) fn done(bytes: &[u8]) -> (Header<'_>, usize) {
    match decode(bytes, unlimited()) {
        Ok(Decoded::Done { header, consumed }) => (header, consumed),
        other => panic!("{other:?} from {bytes:x?}"),
    }
}

/// Valid inputs of an encoder.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    Unspecified,
    Inet(Transport, SocketAddr, SocketAddr),
    Unix(Transport, Box<[u8; 108]>, Box<[u8; 108]>),
}

impl Claim {
    pub(crate) fn addresses(&self) -> Addresses<'_> {
        match self {
            Self::Unspecified => Addresses::Unspecified,
            Self::Inet(transport, source, destination) => {
                Addresses::Inet { transport: *transport, source: *source, destination: *destination }
            }
            Self::Unix(transport, source, destination) => {
                Addresses::Unix { transport: *transport, source, destination }
            }
        }
    }
}

/// One v2 header before it is encoded.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) command: Command,
    pub(crate) claim: Claim,
    pub(crate) tlvs: Vec<(u8, Vec<u8>)>,
    pub(crate) crc32c: bool,
}

impl Plan {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut buffer = vec![0; LARGE];
        let mut encoder = V2Encoder::new(&mut buffer, self.command, &self.claim.addresses()).unwrap();
        for (kind, value) in &self.tlvs {
            encoder = encoder.tlv(*kind, value).unwrap();
        }
        if self.crc32c {
            encoder = encoder.with_crc32c();
        }
        let len = encoder.finish().unwrap();
        buffer.truncate(len);
        buffer
    }
}

pub(crate) fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Stream), Just(Transport::Dgram)]
}

pub(crate) fn pair() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    prop_oneof![
        any::<(Ipv4Addr, u16, Ipv4Addr, u16)>().prop_map(|(a, p, b, q)| ((a, p).into(), (b, q).into())),
        any::<(Ipv6Addr, u16, Ipv6Addr, u16)>().prop_map(|(a, p, b, q)| ((a, p).into(), (b, q).into())),
        any::<(Ipv4Addr, u16, Ipv6Addr, u16)>()
            .prop_map(|(a, p, b, q)| ((a.to_ipv6_mapped(), p).into(), (b, q).into())),
        any::<(u8, u8, u16)>().prop_map(|(a, b, p)| (sparse(a, p), sparse(b, 0))),
    ]
}

/// IPv6 addresses with runs of zeros, which have many spellings.
fn sparse(bits: u8, port: u16) -> SocketAddr {
    let segments = std::array::from_fn(|at| u16::from(bits >> at & 1));
    (Ipv6Addr::from(segments), port).into()
}

pub(crate) fn claim() -> impl Strategy<Value = Claim> {
    let unix = (transport(), any::<u8>(), any::<u8>()).prop_map(|(transport, a, b)| {
        let (mut from, mut to) = (Box::new([0; 108]), Box::new([0; 108]));
        (from[0], from[107], to[50]) = (a, b, a);
        Claim::Unix(transport, from, to)
    });
    prop_oneof![
        1 => Just(Claim::Unspecified),
        6 => (transport(), pair()).prop_map(|(transport, (a, b))| Claim::Inet(transport, a, b)),
        1 => unix,
    ]
}

/// A type that no rule binds, or UNIQUE_ID within its limit.
pub(crate) fn tlv() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let free = any::<u8>().prop_filter("bound by a rule", |kind| ![0x03, 0x05, 0x20].contains(kind));
    let ssl = (any::<u8>(), vec((any::<u8>(), vec(any::<u8>(), 0..20)), 0..4)).prop_map(|(client, sub)| {
        let mut value = vec![client, 0, 0, 0, 1];
        for (kind, inner) in sub {
            value.extend([kind, 0, inner.len().to_le_bytes()[0]]);
            value.extend(inner);
        }
        (0x20, value)
    });
    prop_oneof![
        6 => (free, vec(any::<u8>(), 0..40)),
        1 => (Just(0x05), vec(any::<u8>(), 0..=128)),
        1 => ssl,
    ]
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let command = prop_oneof![1 => Just(Command::Local), 5 => Just(Command::Proxy)];
    (command, claim(), vec(tlv(), 0..5), any::<bool>()).prop_map(|(command, claim, tlvs, crc32c)| Plan {
        command,
        claim,
        tlvs,
        crc32c,
    })
}

/// A valid header of either version.
pub(crate) fn header() -> impl Strategy<Value = Vec<u8>> {
    let unknown = "[ -~&&[^\r]]{0,90}".prop_map(|rest| format!("PROXY UNKNOWN {rest}\r\n").into_bytes());
    let line = claim().prop_map(|claim| {
        let mut buffer = [0; V1_MAX_LEN];
        let len = encode_v1(&claim.addresses(), &mut buffer).unwrap();
        buffer[..len].to_vec()
    });
    prop_oneof![1 => unknown, 3 => line, 4 => plan().prop_map(|plan| plan.encode())]
}
