//! Segments with one wrong bit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::test::splice::{FaceState, SpliceHarness};
use truepeer_testbed::Bed;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, FIN, PSH, Packet, Segment, timestamps};

use crate::made_up::{Case, LINK_HEADER, frame_by};
use crate::model::{SAID, TOLD};

/// The peer's next segment, from which the program would learn.
fn next_one(chance: &mut Chance) -> Case {
    let mut case = Case::make(chance);
    (case.is_copy, case.damage) = (false, None);
    case.device = case.faces[case.side].device;
    let from = &mut case.faces[case.side];
    from.known |= TOLD | SAID;
    from.kept = from.ack;
    (case.segment.seq, case.segment.ack) = (from.ack, from.nxt);
    case.segment.flags = chance.one_of(&[ACK, ACK | PSH, ACK | FIN]);
    let len = chance.below(20);
    case.segment.payload = chance.bytes(len);
    case
}

fn field(at: usize) -> &'static str {
    match at {
        0..4 => "port",
        4..8 => "seq",
        8..12 => "ack",
        12 => "data offset",
        13 => "flags",
        14..16 => "window",
        16..18 => "sum",
        18..20 => "urgent",
        _ => "options or payload",
    }
}

/// As it comes from a socket of this host (CHECKSUM_PARTIAL): the field of the sum covers the pseudo header
/// only.
pub(crate) fn with_sum_to_come(packet: Packet, segment: &Segment) -> Packet {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let len = u16::try_from(packet.bytes().len() - packet.payload_at()).expect("a segment");
    let covered =
        [octets(segment.from.ip()), octets(segment.to.ip()), vec![0, 6], len.to_be_bytes().to_vec()].concat();
    let words = covered.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = u16::try_from((sum - 1) % 0xffff + 1).expect("16 bits");
    let at = packet.payload_at() + 16;
    packet.write(at, &folded.to_be_bytes())
}

/// The words of a face that have changed.
fn changed(was: &FaceState, is: &FaceState) -> impl Iterator<Item = &'static str> {
    let words = |face: &FaceState| {
        [
            ("nxt", face.nxt),
            ("ack", face.ack),
            ("edge", face.edge),
            ("tsval", face.tsval),
            ("una", face.una),
            ("end", face.end_number()),
            ("max_window", face.max_window),
            ("said_edge", face.said_edge),
            ("fin", face.fin),
            ("kept", face.kept),
            ("known", face.known),
        ]
    };
    words(was).into_iter().zip(words(is)).filter(|(was, is)| was != is).map(|((name, _), _)| name)
}

/// Whichever bit is wrong, the program learns nothing from the segment.
pub(crate) fn teaches_nothing(bed: &Bed) -> Result<()> {
    let mut harness = crate::harness(bed)?;
    let mut taught: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut learnt_intact = 0;
    for number in 0..200 {
        let mut chance = Chance::new(number | 1 << 51);
        let mut case = next_one(&mut chance);
        case.stage = chance.one_of(&[
            Stage::Armed,
            Stage::Tail,
            Stage::Spliced,
            Stage::Spliced,
            Stage::Closing,
            Stage::Dead,
        ]);
        let packet = case.segment.packet();
        let (tcp, len) = (packet.payload_at(), packet.bytes().len());
        for bit in 0..(len - tcp) * 8 {
            let damaged = case.segment.packet().flip(tcp + bit / 8, 1 << (bit % 8));
            for (face, learnt) in learnt_of(&mut harness, &case, &frame_by(case.device, &damaged))? {
                taught.entry(field(bit / 8)).or_default().insert(format!("{face}.{learnt}"));
            }
        }
        learnt_intact +=
            usize::from(!learnt_of(&mut harness, &case, &frame_by(case.device, &packet))?.is_empty());
    }
    ensure!(learnt_intact > 100, "few of the intact ones teach anything: {learnt_intact} of 200");
    ensure!(taught.is_empty(), "a damaged field teaches: {taught:?}");
    Ok(())
}

fn learnt_of(
    harness: &mut SpliceHarness,
    case: &Case,
    frame: &[u8],
) -> Result<Vec<(&'static str, &'static str)>> {
    harness.set(case.stage, case.tuples(), case.faces)?;
    harness.comes_in(frame, case.device, false)?;
    let (stage, faces) = harness.state();
    let mut learnt = Vec::new();
    if stage != case.stage {
        learnt.push(("flow", "stage"));
    }
    for (name, side) in [("from", case.side), ("to", 1 - case.side)] {
        learnt.extend(changed(&case.faces[side], &faces[side]).map(|word| (name, word)));
    }
    Ok(learnt)
}

struct Peer {
    newest: u32,
}

impl Peer {
    /// tcp_paws_check() and tcp_replace_ts_recent() of the kernel.
    fn takes(&mut self, tsval: u32) -> bool {
        let age = self.newest.wrapping_sub(tsval).cast_signed();
        if age <= 0 {
            self.newest = tsval;
        }
        age <= 1
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Arrives,
    Damaged,
    /// Behind the relay.
    Lost,
}

/// A late segment is damaged, and a good one that is later still gets lost behind the relay. The other peer
/// takes all good ones that it gets. While damaged ones were learnt from, the highest bit of one timestamp
/// stopped such a session for ever: the other peer had been told of a time so far ahead that the right one,
/// to which the table had returned, looked old (PAWS).
pub(crate) fn what_follows_is_taken(bed: &Bed) -> Result<()> {
    use Step::{Arrives, Damaged, Lost};
    const STEPS: [(u32, Step); 8] = [
        (1, Arrives),
        (3, Arrives),
        (2, Damaged),
        (3, Arrives),
        (1, Lost),
        (4, Arrives),
        (5, Arrives),
        (70_000, Arrives),
    ];
    let mut harness = crate::harness(bed)?;
    let mut refused = Vec::new();
    for number in 0..320 {
        let mut chance = Chance::new(number | 1 << 53);
        let mut case = next_one(&mut chance);
        (case.stage, case.segment.flags) = (Stage::Spliced, ACK);
        let bit = 1_u32 << (number % 32);
        let begin = u32::try_from(chance.next() >> 32)?;
        let (from, to) = (case.side, 1 - case.side);
        case.faces[to].tsval = begin.wrapping_add(case.faces[from].ts_shift);
        let mut peer = Peer { newest: case.faces[to].tsval };
        harness.set(case.stage, case.tuples(), case.faces)?;
        for (at, step) in STEPS {
            let tsval = begin.wrapping_add(at);
            case.segment.options = timestamps(tsval, 7);
            let mut packet = case.segment.packet();
            if step == Damaged {
                packet = packet.clone().write(packet.payload_at() + 24, &(tsval ^ bit).to_be_bytes());
            }
            let outcome = harness.comes_in(&frame_by(case.device, &packet), case.device, false)?;
            if step != Arrives {
                continue;
            }
            let told = Segment::parse(&outcome.frame[LINK_HEADER..]).context("no segment")?;
            let (told, _) = told.timestamps().context("no timestamps")?;
            if !peer.takes(told) {
                refused.push((bit.trailing_zeros(), at));
            }
        }
    }
    ensure!(
        refused.is_empty(),
        "good segments that the other peer refuses, by the damaged bit and their time: {refused:?}"
    );
    Ok(())
}
