//! `splice_in` does what its model says: with the same flow and the same frame, the same verdict, bytes and
//! knowledge. Flows and frames are made up, right ones, damaged ones and blind ones, and shown to the program
//! by BPF_PROG_TEST_RUN.
//!
//! `MODEL_SEGMENTS=N` tries so many frames.

mod damaged;
mod errors;
mod made_up;
mod model;
mod too_long;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::test::other_programs::{Bystanders, PROGRAMS};
use truepeer_bpf::test::splice::SpliceHarness;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, Datagram, SYN, Segment, timestamps};
use truepeer_testbed::{Bed, Test, ip_here, skip};

use crate::made_up::{Case, DEVICE, LINK_ADDRESS, TUPLES4, TUPLES6, frame_by};
use crate::model::{Fate, LOOPBACK, SAID, TOLD};

fn main() -> ExitCode {
    let count = std::env::var("MODEL_SEGMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    truepeer_testbed::main(vec![
        Test::new("an_acknowledgement_that_was_forged_stops_no_session", forged_ack),
        Test::new("splice_in_does_what_its_model_says", move |bed| agree(bed, count)),
        Test::new("a_blind_segment_changes_nothing", move |bed| blind(bed, count / 4)),
        Test::new("a_window_probe_stays_a_question", window_probe),
        Test::new("an_overtaken_ack_stays_old", overtaken),
        Test::new("a_damaged_segment_teaches_nothing", damaged::teaches_nothing),
        Test::new("what_follows_a_damaged_timestamp_is_taken", damaged::what_follows_is_taken),
        Test::new("a_stream_is_counted_beyond_4_gib", counted),
        Test::new("a_segment_pays_little", pays_little),
        Test::new("errors_go_to_the_segments_sender", move |bed| errors::agree(bed, count / 4)),
        Test::new("a_segment_that_is_too_long_is_answered", too_long::is_answered),
        Test::new("packets_of_others_pay_little", others_pay),
    ])
}

fn harness(bed: &Bed) -> Result<SpliceHarness> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the machine's own user namespace: run as root");
    }
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    rustix::mount::mount("bpf", &pins, "bpf", rustix::mount::MountFlags::empty(), None)?;
    // MTU 1500, so no segment of the others' tests is too long for it.
    let [a, b, c, d, e, f] = LINK_ADDRESS.map(|byte| format!("{byte:02x}"));
    ip_here(&[&format!(
        "link add wire index {DEVICE} address {a}:{b}:{c}:{d}:{e}:{f} type veth peer name other index 4"
    )])?;
    Ok(SpliceHarness::load(&pins.join("splices"))?)
}

fn agree(bed: &Bed, count: u64) -> Result<()> {
    let mut harness = harness(bed)?;
    let mut seen = BTreeMap::new();
    for number in 0..count {
        let case = Case::make(&mut Chance::new(number));
        let fate = one(&mut harness, &case).with_context(|| format!("number {number}: {case:#?}"))?;
        *seen.entry(fate).or_insert(0_u64) += 1;
    }
    println!("{seen:?}");
    let all = [
        "armed",
        "kept",
        "copied",
        "reset in tail",
        "reset dropped",
        "copy",
        "stale copy",
        "translated",
        "asked",
        "made room",
        "damaged",
        "ack too old",
        "by another way",
    ];
    for fate in all {
        ensure!(
            count < 50_000 || seen.get(fate).is_some_and(|times| *times > 20),
            "{fate} is not tried: {seen:?}"
        );
    }
    Ok(())
}

/// One frame; what was expected of it.
fn one(harness: &mut SpliceHarness, case: &Case) -> Result<&'static str> {
    harness.set(case.stage, case.tuples(), case.faces)?;
    let frame = case.frame();
    let outcome = harness.comes_in(&frame, case.device, case.is_copy)?;
    let mut model = case.model();
    let fate = model.comes_in(&case.segment, case.is_intact(), case.is_copy);
    case.had(&fate, &frame, &outcome).with_context(|| format!("{fate:?}"))?;
    let (stage, faces) = harness.state();
    ensure!(stage == model.stage, "{stage:?}, not {:?}", model.stage);
    for (side, (found, wanted)) in faces.iter().zip(&model.faces).enumerate() {
        ensure!(found == wanted, "face {side}: {found:#?}\nnot {wanted:#?}");
    }
    ensure!(harness.has_keys() == !matches!(fate, Fate::MadeRoom), "its keys");
    Ok(fate.name())
}

/// A window probe keeps its number: its receiver answers because it does not expect that number, and ignores
/// the segment otherwise.
fn window_probe(bed: &Bed) -> Result<()> {
    let mut harness = harness(bed)?;
    for number in 0..2000 {
        let mut chance = Chance::new(number);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Spliced, Stage::Closing]);
        (case.is_copy, case.damage) = (false, None);
        case.device = case.faces[case.side].device;
        let (from, to) = (&mut case.faces[case.side], case.side ^ 1);
        // All that the peer has sent was acknowledged to it, and acknowledged by the other peer.
        from.known |= 3;
        (from.ack, from.una) = (from.end_number(), from.nxt);
        let probe = from.end_number().wrapping_sub(1);
        let wanted = probe.wrapping_add(from.shift);
        let (nxt, shift) = (from.nxt, from.shift);
        let end = from.end_number().wrapping_add(shift);
        case.faces[to].una = end;
        case.faces[to].known |= 3;
        (case.segment.seq, case.segment.ack, case.segment.flags) = (probe, nxt, ACK);
        case.segment.payload.clear();
        harness.set(case.stage, case.tuples(), case.faces)?;
        let outcome = harness.comes_in(&case.frame(), case.device, false)?;
        let found = Segment::parse(&outcome.frame[14..]).context("no segment")?;
        ensure!(found.seq == wanted, "{} instead of {wanted}: the peer expects {end}", found.seq);
    }
    Ok(())
}

/// A bare ACK that newer segments have overtaken keeps its number: its receiver would take its smaller window
/// for the newest. One with the newest window gets the number that the receiver expects.
fn overtaken(bed: &Bed) -> Result<()> {
    let mut harness = harness(bed)?;
    for number in 0..2000 {
        let mut chance = Chance::new(number);
        let mut case = Case::make(&mut chance);
        (case.stage, case.is_copy, case.damage) = (Stage::Spliced, false, None);
        let (from, to) = (&mut case.faces[case.side], case.side ^ 1);
        case.device = from.device;
        from.known |= TOLD | SAID;
        from.una = from.nxt;
        case.segment.seq = from.ack.wrapping_sub(1000);
        (case.segment.ack, case.segment.flags, case.segment.window) = (from.una, ACK, 100);
        case.segment.payload.clear();
        let own = case.segment.seq.wrapping_add(from.shift);
        let is_overtaken = number % 2 == 0;
        let reach = u32::from(case.segment.window + u16::from(is_overtaken)) << from.peer_scale;
        from.said_edge = from.una.wrapping_add(reach);
        let expected = from.ack.wrapping_add(from.shift);
        case.faces[to].una = expected;
        case.faces[to].known |= SAID;
        harness.set(case.stage, case.tuples(), case.faces)?;
        let outcome = harness.comes_in(&case.frame(), case.device, false)?;
        let found = Segment::parse(&outcome.frame[14..]).context("no segment")?;
        let wanted = if is_overtaken { own } else { expected };
        ensure!(found.seq == wanted, "number {number}: {} instead of {wanted}", found.seq);
    }
    Ok(())
}

/// If a forged segment has acknowledged all that was sent, up to a window beyond the peer's own
/// acknowledgement, the peer's segments still go on.
fn forged_ack(bed: &Bed) -> Result<()> {
    let mut harness = harness(bed)?;
    for number in 0..200 {
        let mut chance = Chance::new(number);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Spliced, Stage::Closing]);
        (case.is_copy, case.damage) = (false, None);
        case.device = case.faces[case.side].device;
        let from = &mut case.faces[case.side];
        from.known |= TOLD | SAID;
        (case.segment.seq, case.segment.ack, case.segment.flags) = (from.ack, from.una, ACK);
        from.una = from.una.wrapping_add(u32::try_from(chance.below(from.max_window as usize + 1))?);
        from.nxt = from.una;
        harness.set(case.stage, case.tuples(), case.faces)?;
        let outcome = harness.comes_in(&case.frame(), case.device, false)?;
        let Fate::Translated(_, wanted) = case.model().comes_in(&case.segment, true, false) else {
            anyhow::bail!("the model stops it");
        };
        case.had(&Fate::Translated("translated", wanted), &case.frame(), &outcome)?;
    }
    Ok(())
}

/// A byte is counted once, also if its segment comes twice, or behind another one, or if a repeated segment,
/// which the socket takes, reaches into bytes that were translated already. Numbers wrap in between.
fn counted(bed: &Bed) -> Result<()> {
    let mut harness = harness(bed)?;
    for stage in [Stage::Tail, Stage::Spliced] {
        let mut case = Case::make(&mut Chance::new(1));
        (case.stage, case.is_copy, case.damage) = (stage, false, None);
        let first = u32::MAX - 2000;
        let from = &mut case.faces[case.side];
        case.device = from.device;
        from.known |= TOLD | SAID;
        let kept = first.wrapping_add(500);
        (from.first, from.ack, from.kept, from.cut) = (first, first, kept, kept);
        (from.edge, from.una) = (first.wrapping_add(60_000), from.nxt);
        from.end = u64::from(kept) | 7 << 32;
        (case.segment.ack, case.segment.flags) = (from.nxt, ACK);
        harness.set(case.stage, case.tuples(), case.faces)?;
        for (at, len) in [(1000, 1000), (0, 1500), (3000, 1000), (2000, 1000), (3000, 1000), (0, 700)] {
            (case.segment.seq, case.segment.payload) = (first.wrapping_add(at), vec![1; len]);
            harness.comes_in(&case.frame(), case.device, false)?;
        }
        let end = harness.state().1[case.side].end;
        let counted = end - (u64::from(first) | 7 << 32);
        ensure!(counted == 4000, "{stage:?}: {counted} bytes of 4000");
    }
    Ok(())
}

/// A third host knows the addresses and ports, and no number.
fn blind(bed: &Bed, count: u64) -> Result<()> {
    let mut harness = harness(bed)?;
    let mut lucky = 0;
    for number in 0..count {
        let mut chance = Chance::new(number | 1 << 50);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Armed, Stage::Tail, Stage::Spliced, Stage::Closing, Stage::Dead]);
        (case.is_copy, case.damage) = (false, None);
        case.device = case.faces[case.side].device;
        case.segment.seq = u32::try_from(chance.next() >> 32)?;
        case.segment.ack = u32::try_from(chance.next() >> 32)?;
        harness.set(case.stage, case.tuples(), case.faces)?;
        harness.comes_in(&case.frame(), case.device, false)?;
        let (stage, mut faces) = harness.state();
        // A blind segment is counted like any other.
        faces.iter_mut().zip(case.faces).for_each(|(face, was)| face.segments = was.segments);
        // A window of 64 KiB is hit once in 65,536 times, and the acknowledgement besides; a SYN after the
        // end needs half of all numbers.
        let is_syn_after_end = matches!(case.stage, Stage::Closing | Stage::Dead) && stage == Stage::Gone;
        if !is_syn_after_end && (stage != case.stage || faces != case.faces) {
            lucky += 1;
        }
    }
    println!("{lucky} of {count} changed something");
    ensure!(lucky * 5000 <= count, "{lucky} of {count} blind segments changed something");
    Ok(())
}

/// Measures the time for a segment of a spliced session. The flow leads back to its own beginning, so each
/// round translates the same segment.
fn pays_little(bed: &Bed) -> Result<()> {
    /// The limit, as a multiple of what a packet of others costs in the same moments. Measured: 3 to 7.
    const MOST: u32 = 12;
    let mut harness = harness(bed)?;
    let stranger = Segment { flags: ACK, payload: vec![7; 100], ..Segment::new(TUPLES4[0].0, TUPLES4[1].1) };
    let stranger = frame_by(LOOPBACK, &stranger.packet());
    for (family, tuples) in [("IPv4", TUPLES4), ("IPv6", TUPLES6)] {
        let (peer, own) = tuples[0];
        let mut face = made_up::face(&mut Chance::new(1));
        (face.known, face.shift, face.ts_shift, face.device) = (0x01 | 0x02 | 0x08, 0, 0, LOOPBACK);
        (face.peer_scale, face.own_scale) = (0, 0);
        (face.ack, face.end, face.edge) = (5000, 5000, 90_000);
        (face.nxt, face.una, face.tsval) = (5000, 5000, 7);
        (face.said_edge, face.max_window) = (90_000, 60_000);
        harness.set(Stage::Spliced, [(peer, own), (own, peer)], [face; 2])?;
        for (len, is_to_come) in [(0, false), (100, false), (1448, false), (1448, true)] {
            let (options, payload) = (timestamps(7, 7), vec![7; len]);
            let segment =
                Segment { seq: 5000, ack: 5000, flags: ACK, options, payload, ..Segment::new(peer, own) };
            let mut packet = segment.packet();
            if is_to_come {
                packet = damaged::with_sum_to_come(packet, &segment);
            }
            let frame = frame_by(LOOPBACK, &packet);
            let (mut least, mut reference) = (Duration::MAX, Duration::MAX);
            for _ in 0..20 {
                least = least.min(harness.cost(&frame, 10_000)?);
                reference = reference.min(harness.cost(&stranger, 10_000)?);
            }
            let outcome = harness.comes_in(&frame, LOOPBACK, false)?;
            ensure!(
                outcome.frame == frame,
                "it has become another: {:?}",
                Segment::parse(&outcome.frame[14..])
            );
            let sum = if is_to_come { "a sum to come" } else { "a sum" };
            println!("{family}, {len} bytes, {sum}: {least:?}; a packet of others: {reference:?}");
            ensure!(
                least <= reference * MOST,
                "a segment of {len} bytes takes {least:?}, one of others {reference:?}"
            );
        }
    }
    Ok(())
}

/// Compares each program with an empty one. Takes the cheapest of several rounds: in the others the machine
/// did something else, too.
fn others_pay(bed: &Bed) -> Result<()> {
    /// The limit beyond the empty program, as a multiple of its time. Measured: up to 1.5.
    const MOST: u32 = 6;
    // Mounts the pins.
    drop(harness(bed)?);
    let programs = Bystanders::load(&bed.dir().join("bpf/others"))?;
    let (peer, own) = (TUPLES4[0].0, TUPLES4[1].1);
    let segment = Segment { flags: ACK, payload: vec![7; 100], ..Segment::new(peer, own) };
    let syn = Segment { flags: SYN, payload: Vec::new(), ..segment.clone() };
    let datagram = Datagram { from: peer, to: own, payload: vec![7; 100] };
    let error = datagram.packet().unreachable();
    let packets = [
        ("TCP", segment.packet()),
        ("a SYN", syn.packet()),
        ("UDP", datagram.packet()),
        ("an ICMP error", error),
    ];
    for (what, packet) in packets {
        let frame = frame_by(LOOPBACK, &packet);
        let mut least = [Duration::MAX; PROGRAMS.len()];
        for _ in 0..20 {
            let costs = programs.costs(&frame, 10_000)?;
            least.iter_mut().zip(costs).for_each(|(least, cost)| *least = cost.min(*least));
        }
        let [nothing, ..] = least;
        println!("{what}: {:?}", PROGRAMS.iter().zip(least).collect::<Vec<_>>());
        for (name, cost) in PROGRAMS.iter().zip(least) {
            ensure!(cost <= nothing * (MOST + 1), "{what} pays {cost:?} to {name}, {nothing:?} to nothing");
        }
    }
    Ok(())
}
