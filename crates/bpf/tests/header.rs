//! The kernel's parser gives the same result as `truepeer-proto` for every start: the shared vectors, whole
//! and cut at every byte, and fuzzed ones. TLVs' structure and checksum, which it ignores, are excluded.
//! Secrets in TLVs are found as `truepeer-policy` finds them.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::ensure;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use truepeer_bpf::RequiredSecret;
use truepeer_bpf::test::header::{HeaderCheck, Verdict};
use truepeer_policy::{Dialect, PrefixSet, Secrets};
use truepeer_proto::vectors::{self, Vector};
use truepeer_proto::{
    Addresses, Command, Decoded, Limits, Transport, Versions, decode, decode_datagram, spp,
};
use truepeer_testbed::{Bed, skip, tests};
use unproved::Random;

#[path = "../../policy/tests/common/unproved.rs"]
mod unproved;

const MAX_LEN: usize = 16 * 1024;

/// Skips the test if programs can't be loaded.
fn kernel() -> anyhow::Result<HeaderCheck> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the initial user namespace: run as root");
    }
    Ok(HeaderCheck::load(MAX_LEN)?)
}

/// The result of proto, as the kernel's verdict.
fn told(bytes: &[u8]) -> Verdict {
    let limits = Limits { max_len: MAX_LEN, ..Limits::default() };
    match decode(bytes, limits) {
        Err(_) => Verdict::Refused,
        Ok(Decoded::NeedMore { .. }) => Verdict::NeedMore,
        Ok(Decoded::Done { header, consumed }) => match (header.command, header.addresses) {
            (Command::Proxy, Addresses::Inet { transport: Transport::Stream, source, destination }) => {
                Verdict::Client(canonical(source), canonical(destination), consumed)
            }
            _ => Verdict::Itself(consumed),
        },
    }
}

/// The same for a datagram.
fn told_of_datagram(dialect: Dialect, bytes: &[u8]) -> Verdict {
    let limits = Limits { max_len: MAX_LEN, versions: Versions::V2 };
    match dialect {
        Dialect::Spp => spp::decode(bytes).map_or(Verdict::Refused, |header| {
            Verdict::Client(canonical(header.client), canonical(header.proxy), spp::LEN)
        }),
        _ => match decode_datagram(bytes, limits) {
            Err(_) => Verdict::Refused,
            Ok((header, len)) => match (header.command, header.addresses) {
                (Command::Proxy, Addresses::Inet { transport: Transport::Dgram, source, destination }) => {
                    Verdict::Client(canonical(source), canonical(destination), len)
                }
                _ => Verdict::Itself(len),
            },
        },
    }
}

fn asked_of_datagram(kernel: &mut HeaderCheck, dialect: Dialect, bytes: &[u8]) -> Verdict {
    kernel.ask_datagram(dialect, bytes).expect("a test run")
}

/// The vectors, and similar ones for UDP.
fn datagrams() -> Vec<Vec<u8>> {
    let all = table().map(|vector| vector.bytes.to_vec());
    let for_udp = table().filter(|vector| vector.bytes.get(13).is_some_and(|byte| byte & 0x0f == 1));
    let for_udp = for_udp.map(|vector| {
        let mut bytes = vector.bytes.to_vec();
        bytes[13] += 1;
        bytes
    });
    let mut datagrams: Vec<Vec<u8>> = all.chain(for_udp).collect();
    for start in [[0x56, 0xec], [0x56, 0xed], [0x55, 0xec]] {
        for ip in [[0; 16], [0xff; 16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]] {
            datagrams.push([&start, ip.as_slice(), &[7; 20], b"payload"].concat());
        }
    }
    datagrams
}

fn every_datagram_has_the_same_result_at_every_cut(_bed: &Bed) -> anyhow::Result<()> {
    let mut kernel = kernel()?;
    let mut clients = 0;
    for dialect in [Dialect::Every, Dialect::First, Dialect::Standalone, Dialect::Spp] {
        for datagram in datagrams() {
            for len in 0..=datagram.len().min(300) {
                let bytes = &datagram[..len];
                let (asked, told) =
                    (asked_of_datagram(&mut kernel, dialect, bytes), told_of_datagram(dialect, bytes));
                ensure!(asked == told, "{dialect:?} {}: {asked:?}, not {told:?}", bytes.escape_ascii());
                clients += usize::from(matches!(told, Verdict::Client(..)));
            }
        }
    }
    ensure!(clients > 20, "only {clients} named a client");
    Ok(())
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The kernel's verdict, with mapped addresses as IPv4, as the programs show them.
fn asked(kernel: &mut HeaderCheck, bytes: &[u8]) -> Verdict {
    kernel.ask(bytes).expect("a test run")
}

/// All vectors except those about TLVs.
fn table() -> impl Iterator<Item = &'static Vector> {
    vectors::without_extensions()
}

fn every_vector_has_the_same_result_at_every_cut(_bed: &Bed) -> anyhow::Result<()> {
    let mut kernel = kernel()?;
    let mut wrong = Vec::new();
    let mut compared = 0;
    for vector in table() {
        for len in 0..=vector.bytes.len().min(300) {
            let bytes = &vector.bytes[..len];
            let (asked, told) = (asked(&mut kernel, bytes), told(bytes));
            compared += 1;
            if asked != told {
                wrong.push(format!("{}, {len} bytes: the kernel says {asked:?}, not {told:?}", vector.name));
            }
        }
    }
    ensure!(compared > 1000, "only {compared} compared");
    ensure!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Almost valid lines and headers: fields in random combinations, and vectors with a few changed bytes.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).to_string()),
        any::<[u8; 16]>().prop_map(|ip| std::net::Ipv6Addr::from(ip).to_string()),
        "[0-9a-f]{0,4}(:[0-9a-fA-F]{0,5}){0,8}",
        "(::)?([0-9a-f]{1,4}:){0,7}(:[0-9a-f]{1,4}){0,7}(::)?",
        "(::ffff:|1:2:3:4:5:6:|::)?([0-9]{1,3}\\.){2,4}[0-9]{1,3}",
    ];
    let port = prop_oneof![any::<u16>().prop_map(|port| port.to_string()), "[0-9]{0,6}"];
    let name = prop_oneof![4 => Just("TCP4"), 4 => Just("TCP6"), 1 => Just("UNKNOWN"), 1 => Just("TCP5")];
    let line = (name, address.clone(), address, port.clone(), port, "( |\r|\r\n|\n|\r\nrest)").prop_map(
        |(name, source, destination, from, to, end)| {
            format!("PROXY {name} {source} {destination} {from} {to}{end}").into_bytes()
        },
    );
    let seeds: Vec<&'static [u8]> = table().map(|vector| vector.bytes).collect();
    let changed = (
        prop::sample::select(seeds),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    )
        .prop_map(|(seed, changes)| {
            let mut bytes = seed.to_vec();
            for (place, byte) in changes.into_iter().filter(|_| !seed.is_empty()) {
                *place.get_mut(&mut bytes) = byte;
            }
            bytes
        });
    let cut = |bytes: Vec<u8>, at: prop::sample::Index| {
        let len = at.index(bytes.len() + 1);
        bytes[..len].to_vec()
    };
    let whole = prop_oneof![line, changed];
    prop_oneof![
        whole.clone(),
        (whole, any::<prop::sample::Index>()).prop_map(move |(bytes, at)| cut(bytes, at))
    ]
}

/// Whether TLVs follow the addresses. The two parsers may differ about them.
fn has_tlvs(bytes: &[u8]) -> bool {
    let block = match bytes.get(13).map(|byte| (byte >> 4, byte & 0x0f)) {
        Some((1, 1..=2)) => 12,
        Some((2, 1..=2)) => 36,
        Some((3, 1..=2)) => 216,
        _ => 0,
    };
    bytes.first() == Some(&b'\r')
        && bytes.get(15).is_some_and(|len| usize::from(*len) != block || bytes[14] != 0)
}

fn almost_valid_headers_have_the_same_result(_bed: &Bed) -> anyhow::Result<()> {
    let kernel = RefCell::new(kernel()?);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&nearly_right(), |bytes| {
        prop_assume!(!has_tlvs(&bytes) || told(&bytes) != Verdict::Refused);
        let asked = asked(&mut kernel.borrow_mut(), &bytes);
        prop_assert_eq!(asked, told(&bytes), "{}", bytes.escape_ascii());
        let asked = asked_of_datagram(&mut kernel.borrow_mut(), Dialect::Every, &bytes);
        prop_assert_eq!(asked, told_of_datagram(Dialect::Every, &bytes), "{}", bytes.escape_ascii());
        Ok(())
    });
    Ok(result?)
}

fn required() -> RequiredSecret {
    let secrets = Secrets::parse(unproved::FILE).expect("secrets");
    RequiredSecret { senders: PrefixSet::any(), kind: unproved::KIND, secrets }
}

fn of_20_000_mutations_of_a_proved_header_none_is_believed(_: &Bed) -> anyhow::Result<()> {
    let (mut kernel, mut random) = (kernel()?, Random::new(3));
    for _ in 0..20_000 {
        let (what, bytes) = unproved::mutation(&mut random);
        let cut = random.below(bytes.len());
        for ends in [&[bytes.len()][..], &[cut, bytes.len()]] {
            let lacks = kernel.lacks_proof(&required(), &bytes, ends)?;
            ensure!(lacks, "{what}, in pieces {ends:?}: {bytes:02x?}");
        }
    }
    Ok(())
}

/// The kernel programs keep this much of a header that comes in pieces.
const KEPT: usize = 108;

/// Whether a piece ends where the rest can't be judged: within the secret, or the type and length of a TLV,
/// behind the part that is kept.
fn is_torn(bytes: &[u8], secret_at: usize, cut: usize) -> bool {
    let is_lost = |at: usize, len: usize| at < cut && at + len > KEPT;
    let mut at = if bytes[13] >> 4 == 1 { 28 } else { 52 };
    while at < bytes.len() {
        let size = usize::from(u16::from_be_bytes([bytes[at + 1], bytes[at + 2]]));
        let is_secret = at == secret_at;
        // Looked at once all of it is there.
        let needed = if is_secret { at + 3 + size } else { at + 3 };
        if cut < needed && (is_lost(at, 3) || is_secret && is_lost(at + 3, size)) {
            return true;
        }
        at += 3 + size;
    }
    false
}

fn a_proved_header_is_believed_in_pieces_of_any_length(_: &Bed) -> anyhow::Result<()> {
    let (mut kernel, mut random) = (kernel()?, Random::new(4));
    for _ in 0..100 {
        let (header, secret_at) = unproved::proved(&mut random);
        let bytes = [&header[..], b"GET / HTTP/1.1"].concat();
        ensure!(!kernel.lacks_proof(&required(), &bytes, &[bytes.len()])?, "{bytes:02x?}");
        for cut in 1..header.len() {
            let lacks = kernel.lacks_proof(&required(), &bytes, &[cut, bytes.len()])?;
            ensure!(lacks == is_torn(&header, secret_at, cut), "cut at {cut}: {bytes:02x?}");
        }
        let each: Vec<usize> = (1..=header.len()).collect();
        ensure!(header.len() > KEPT || !kernel.lacks_proof(&required(), &header, &each)?, "{header:02x?}");
    }
    Ok(())
}

fn main() -> ExitCode {
    truepeer_testbed::main(tests![
        every_vector_has_the_same_result_at_every_cut,
        every_datagram_has_the_same_result_at_every_cut,
        almost_valid_headers_have_the_same_result,
        of_20_000_mutations_of_a_proved_header_none_is_believed,
        a_proved_header_is_believed_in_pieces_of_any_length
    ])
}
