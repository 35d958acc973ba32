//! `udp_ingress` does what its model does: for the same frames the same decisions, bytes and tables.
//! Generated sequences of valid and hostile frames are passed to the program by BPF_PROG_TEST_RUN, with real
//! sockets.
//!
//! `MODEL_SEGMENTS=N` tries at least so many frames, `MODEL_FROM=N` begins with another sequence.

mod model;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};
use truepeer_bpf::test::udp::{Outcome, UdpHarness};
use truepeer_bpf::{MAX_FLOWS, MAX_UDP_FLOWS, Place, Rules};
use truepeer_policy::{Claims, Dialect, HeaderRule};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{Datagram, Packet};
use truepeer_testbed::{Bed, Program, Test, client, datagrams, skip};

use model::{Expected, Model, UdpPort};

fn main() -> ExitCode {
    let asked = number("MODEL_SEGMENTS").map(|frames| frames.div_ceil(FRAMES));
    let sequences = asked.unwrap_or(2000);
    truepeer_testbed::main(vec![
        Test::new("udp_ingress_does_what_its_model_says", move |bed| compare(bed, sequences))
            .time_limit(Duration::from_secs(110 + sequences * FRAMES / 2000)),
        Test::new("udp_ingress_does_what_its_model_says_a_million_times", |bed| compare(bed, 10_000))
            .long()
            .time_limit(Duration::from_secs(600)),
    ])
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The number of frames in a sequence; then all flows are removed.
const FRAMES: u64 = 100;

fn udp_ports() -> BTreeMap<u16, UdpPort> {
    let udp_port = |backend_port, dialect, is_bound| UdpPort { backend_port, dialect, is_bound };
    [
        (53, udp_port(53, Dialect::Every, true)),
        (54, udp_port(5353, Dialect::Every, true)),
        (55, udp_port(55, Dialect::Spp, true)),
        (56, udp_port(56, Dialect::Every, false)),
        (57, udp_port(57, Dialect::First, true)),
        (58, udp_port(5858, Dialect::Standalone, true)),
        (59, udp_port(59, Dialect::First, false)),
    ]
    .into()
}

fn is_sender(ip: IpAddr) -> bool {
    [ip == ip_of("10.1.1.1"), ip == ip_of("10.1.1.2"), ip == ip_of("fd77::1")].contains(&true)
}

/// Frames to be forwarded are not for this host. If there is no route at all, the kernel decides.
fn is_here(ip: IpAddr) -> bool {
    !matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [192, 0, 2])
}

fn ip_of(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn compare(bed: &Bed, sequences: u64) -> Result<()> {
    let mut harness = harness(bed)?;
    let _backends = [53, 5353, 55, 57, 5858].map(|port| UdpSocket::bind(("::", port)).expect("a free port"));
    let mut model = Model::new(udp_ports(), is_sender, is_here);
    let mut seen = BTreeMap::new();
    let first = number("MODEL_FROM").unwrap_or(0);
    for seed in first..first + sequences {
        let mut chance = Chance::new(seed);
        for n in 0..FRAMES {
            let frame = frame(&mut chance);
            let expected = model.ingress(&frame);
            *seen.entry(kind(&expected)).or_insert(0) += 1;
            let outcome = harness.ingress(&frame)?;
            agree(&frame, &expected, &outcome)
                .with_context(|| format!("sequence {seed}, frame {n}: {}", hex(&frame)))?;
        }
        ensure!(harness.named() == model.named(), "{:?}, expected {:?}", harness.named(), model.named());
        ensure!(
            harness.learnt() == model.learnt(),
            "sequence {seed}: {:?}, expected {:?}",
            harness.learnt(),
            model.learnt()
        );
        harness.forget()?;
        model.forget();
    }
    println!("{} frames, {seen:?}", sequences * FRAMES);
    // All paths must have been taken.
    ensure!(seen.len() == 4 && seen.values().all(|count| *count > sequences / 4), "{seen:?}");
    Ok(())
}

fn harness(bed: &Bed) -> Result<UdpHarness> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the initial user namespace: run as root");
    }
    fs::write("/proc/sys/net/ipv4/conf/lo/forwarding", "1")?;
    Program::new("ip").args(["route", "add", "unreachable", "192.0.2.0/24"]).run(bed)?;
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    mount("bpf", &pins, "bpf", MountFlags::empty(), None).context("mounting a BPF file system")?;
    let udp_ports = udp_ports().into_iter().map(|(port, UdpPort { backend_port, dialect, .. })| {
        (port, truepeer_bpf::UdpPort { backend_port, dialect })
    });
    let rules = Rules {
        tcp_ranges: Vec::new(),
        udp_ranges: Vec::new(),
        tcp_ports: [].into(),
        udp_ports: udp_ports.collect(),
        senders: ["10.1.1.1/32", "10.1.1.2/32", "fd77::1/128"]
            .iter()
            .filter_map(|prefix| prefix.parse::<ipnet::IpNet>().ok())
            .collect(),
        header: HeaderRule::Require,
        exceptions: BTreeMap::new(),
        required_tlvs: Vec::new(),
        claims: Claims::default(),
        own_addresses: [].into(),
        header_timeout: Duration::from_secs(5),
        header_wait: Duration::from_secs(1),
        header_max: 16 << 10,
        refuse_unshowable: false,
        shows_destination: false,
        udp_silence: Duration::from_secs(60),
        max_flows: MAX_FLOWS,
        max_udp_flows: MAX_UDP_FLOWS,
    };
    Ok(UdpHarness::open(&Place::here(&pins.join("truepeer"))?, &rules)?)
}

fn kind(expected: &Expected) -> &'static str {
    match expected {
        Expected::Untouched => "untouched",
        Expected::Dropped => "dropped",
        Expected::Delivered { is_datagram_intact: true, .. } => "delivered",
        Expected::Delivered { is_datagram_intact: false, .. } => "delivered with its damage",
    }
}

fn agree(frame: &[u8], expected: &Expected, outcome: &Outcome) -> Result<()> {
    let is_same = match (expected, outcome) {
        (Expected::Untouched, Outcome::Passed { frame: out, is_validated }) => out == frame && !is_validated,
        (Expected::Dropped, Outcome::Dropped) => true,
        (Expected::Delivered { .. }, Outcome::Passed { frame: out, is_validated }) => {
            *is_validated && model::delivered(out).as_ref() == Some(expected)
        }
        _ => false,
    };
    let got = match outcome {
        Outcome::Dropped => "dropped".to_owned(),
        Outcome::Passed { frame, is_validated } => {
            format!("judged: {is_validated}, {:?}: {}", model::delivered(frame), hex(frame))
        }
    };
    ensure!(is_same, "expected {expected:?}, got {got}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const SENDERS: [[&str; 3]; 2] = [["10.1.1.1", "10.1.1.2", "10.2.2.2"], ["fd77::1", "fd77::1", "fd78::1"]];
const HERE: [[&str; 4]; 2] =
    [["127.0.0.1", "127.0.0.2", "192.0.2.1", "224.0.0.5"], ["::1", "::1", "::1", "2001:db8:f::1"]];
const CLIENTS: [[&str; 4]; 2] = [
    ["203.0.113.1", "203.0.113.2", "127.0.0.1", "10.1.1.1"],
    ["2001:db8::1", "2001:db8::2", "::1", "fd77::1"],
];

/// A datagram, usually with a header, and usually with an error.
fn frame(chance: &mut Chance) -> Vec<u8> {
    let v6 = chance.below(2);
    let port = chance.one_of(&[53, 53, 54, 54, 55, 55, 56, 57, 57, 57, 58, 58, 58, 59, 99]);
    let from = SocketAddr::new(ip_of(chance.one_of(&SENDERS[v6])), chance.one_of(&[4000, 4001]));
    let to = SocketAddr::new(ip_of(chance.one_of(&HERE[v6])), port);
    let family = if chance.below(8) == 0 { 1 - v6 } else { v6 };
    let client =
        SocketAddr::new(ip_of(chance.one_of(&CLIENTS[family])), chance.one_of(&[5000, 5001, 4000, 0]));
    let mut payload = header(chance, port == 55, client);
    let more = chance.below(40);
    payload.extend((0..more).map(|n| n.to_le_bytes()[0]));
    if chance.below(12) == 0 {
        payload.truncate(chance.below(payload.len() + 1));
    }
    let packet = damaged(chance, Datagram { from, to, payload }.packet());
    let ethertype: [u8; 2] = if v6 == 1 { [0x86, 0xdd] } else { [0x08, 0x00] };
    let padding = vec![0; if chance.below(8) == 0 { chance.below(20) } else { 0 }];
    let mut frame = [[0; 12].as_slice(), &ethertype, packet.bytes(), &padding].concat();
    // BPF_PROG_TEST_RUN requires a complete IP header.
    frame.resize(frame.len().max(14 + 40), 0);
    frame
}

fn header(chance: &mut Chance, is_spp: bool, named: SocketAddr) -> Vec<u8> {
    let other = if named.is_ipv4() { "192.0.2.1:53" } else { "[2001:db8::9]:53" };
    let mut header = match chance.below(10) {
        0 => client::v2_local(),
        1 => Vec::new(),
        _ if is_spp => datagrams::spp(named, other).expect("addresses"),
        _ => datagrams::v2(named, other).expect("addresses of one family"),
    };
    // Not in the family and the length: the bytes after the addresses would become TLVs, which the program
    // doesn't read.
    if chance.below(10) == 0 && !header.is_empty() {
        let at = chance.below(header.len().min(12));
        header[at] ^= 1 << chance.below(8);
    }
    header
}

fn damaged(chance: &mut Chance, packet: Packet) -> Packet {
    let (udp_at, len) = (packet.payload_at(), packet.bytes().len());
    match chance.below(24) {
        0 => packet.with_wrong_sum(),
        1 => packet.with_wrong_ip_sum(),
        2 => packet.write(udp_at + 6, &[0, 0]),
        // As if a device still had to finish it.
        3 => {
            let (sum, ip) = (unfinished(&packet), packet);
            ip.write(udp_at + 6, &sum)
        }
        4 => packet.write(udp_at + 4, &u16::try_from(chance.below(80)).unwrap_or_default().to_be_bytes()),
        5 => packet.write(udp_at + 4, &[0, 0]),
        6 => packet.cut(len - 1 - chance.below(20)),
        7 if packet.is_ipv6() => packet.behind(&[chance.one_of(&[0, 60, 43, 44])]),
        7 => packet.with_ip_options(&[1, 1, 1, 1]),
        8 => packet.fragments(8 * (1 + chance.below(3)), 7).swap_remove(0),
        9..12 => {
            let bit = chance.below(8 * len.min(60));
            packet.flip(bit / 8, 1 << (bit % 8))
        }
        12 => packet.flip(chance.below(16), 1 << chance.below(8)).with_right_ip_sum(),
        _ => packet,
    }
}

/// The sum of addresses, length and protocol only.
fn unfinished(packet: &Packet) -> [u8; 2] {
    let udp_len = packet.bytes().len() - packet.payload_at();
    let addresses = if packet.is_ipv6() { &packet.bytes()[8..40] } else { &packet.bytes()[12..20] };
    let len = u16::try_from(udp_len).unwrap_or_default().to_be_bytes();
    let sum = model::sum(&[addresses, &[0, 17], &len].concat());
    u16::try_from(sum).unwrap_or_default().to_be_bytes()
}
