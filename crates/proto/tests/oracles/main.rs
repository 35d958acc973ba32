//! Three independent implementations, asked the same questions: they must agree with us wherever they follow
//! the specification. Where they don't is data: see `divergences`.
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod ask;
#[path = "../common/mod.rs"]
mod common;
mod divergences;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ask::ORACLES;
use common::{Claim, Plan, done, header, many_cases, pair, plan, transport};
use divergences::DIVERGENCES;
use proptest::prelude::*;
use proxy_protocol_rs::HeaderBuilder;
use truepeer_proto::{Addresses, Command, Decoded, Limits, Tlv, Version, decode, vectors};

/// The result of an implementation, as far as all of them can express it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// A header; no addresses where the connection's own are to be used, or they are a UNIX socket's.
    Done {
        addresses: Option<(SocketAddr, SocketAddr)>,
        consumed: usize,
    },
    NeedMore,
    Refused,
}

impl Told {
    /// Waiting for more where we already refuse is no disagreement: the specification lets a receiver choose.
    fn agrees_with(self, ours: Self) -> bool {
        self == ours || (ours, self) == (Self::Refused, Self::NeedMore)
    }
}

fn ours(bytes: &[u8]) -> Told {
    match decode(bytes, Limits::default()) {
        Ok(Decoded::Done { header, consumed }) => Told::Done { addresses: inet(&header.addresses), consumed },
        Ok(Decoded::NeedMore { .. }) => Told::NeedMore,
        Err(_) => Told::Refused,
    }
}

fn inet(addresses: &Addresses<'_>) -> Option<(SocketAddr, SocketAddr)> {
    match *addresses {
        Addresses::Inet { source, destination, .. } => Some((source, destination)),
        Addresses::Unspecified | Addresses::Unix { .. } => None,
    }
}

#[test]
fn every_oracle_agrees_but_where_it_is_known_not_to() {
    let known: BTreeSet<_> =
        DIVERGENCES.iter().flat_map(|row| row.vectors.iter().map(|vector| (row.oracle, *vector))).collect();
    let mut found = BTreeSet::new();
    for (oracle, ask) in ORACLES {
        for vector in vectors::all() {
            if !ask(vector.bytes).agrees_with(ours(vector.bytes)) {
                found.insert((oracle, vector.name));
            }
        }
    }
    assert_eq!(found.difference(&known).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new(), "new disagreement");
    assert_eq!(known.difference(&found).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new(), "no longer so");
}

/// The rows of [`DIVERGENCES`] that valid, generated headers can meet.
fn is_known_to_differ(oracle: &str, bytes: &[u8]) -> bool {
    let (header, _) = done(bytes);
    let unspecified = header.command == Command::Proxy && header.addresses == Addresses::Unspecified;
    match (oracle, header.version) {
        ("proxy-protocol-rs", Version::V2) => unspecified,
        ("ppp", Version::V1) => unspecified && bytes.iter().filter(|&&byte| byte == b' ').count() > 5,
        _ => false,
    }
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn every_oracle_reads_what_we_encode(header in header()) {
        for (oracle, ask) in ORACLES {
            if !is_known_to_differ(oracle, &header) {
                prop_assert_eq!(ask(&header), ours(&header), "{}", oracle);
            }
        }
    }

    #[test]
    fn an_oracle_finds_our_checksum_wrong_after_any_flipped_address_bit(
        plan in plan(), transport in transport(), (source, destination) in pair(), bit in 0..96_usize,
    ) {
        let claim = Claim::Inet(transport, source, destination);
        let bytes = Plan { crc32c: true, command: Command::Proxy, claim, ..plan }.encode();
        let mut flipped = bytes;
        flipped[16 + bit / 8] ^= 1 << (bit % 8);
        for (oracle, ask) in ORACLES.into_iter().filter(|(oracle, _)| *oracle == "proxy-protocol-rs") {
            prop_assert_eq!(ask(&flipped), Told::Refused, "{}", oracle);
        }
        prop_assert_eq!(ours(&flipped), Told::Refused);
    }

    #[test]
    fn we_read_what_an_oracle_encodes((source, destination) in pair(), id in prop::collection::vec(any::<u8>(), 0..=128)) {
        let bytes = HeaderBuilder::v2_proxy(source, destination).with_unique_id(id.clone()).with_crc32c().build();
        let (header, consumed) = done(&bytes);
        prop_assert_eq!((inet(&header.addresses), consumed), (Some((source, destination)), bytes.len()));
        prop_assert_eq!(header.tlvs.unique_id(), Some(id.as_slice()));
        prop_assert!(header.tlvs.iter().any(|tlv| matches!(tlv, Tlv::Crc32c(_))));

        let line = HeaderBuilder::v1_proxy(source, destination).build();
        prop_assert_eq!(inet(&done(&line).0.addresses), Some((source, destination)));

        let pair = proxy_header::ProxiedAddress::datagram(source, destination);
        let mut bytes = Vec::new();
        proxy_header::ProxyHeader::with_address(pair).encode_v2(&mut bytes).unwrap();
        prop_assert_eq!(inet(&done(&bytes).0.addresses), Some((source, destination)));
    }
}
