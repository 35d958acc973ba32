//! `splice_in` does what its model says: with the same flow and the same frame, the same verdict, bytes and knowledge. Flows and frames are
//! made up, right ones, damaged ones and blind ones, and shown to the program by BPF_PROG_TEST_RUN.
//!
//! `MODEL_SEGMENTS=N` tries so many frames.

mod made_up;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::splice::door::SpliceDoor;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, Segment};
use truepeer_testbed::{Bed, Test, skip};

use crate::made_up::{Case, TUPLES4, TUPLES6};
use crate::model::Fate;

fn main() -> ExitCode {
    let count = std::env::var("MODEL_SEGMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    truepeer_testbed::main(vec![
        Test::new("splice_in_does_what_its_model_says", move |bed| agree(bed, count)),
        Test::new("a_blind_segment_changes_nothing", move |bed| blind(bed, count / 4)),
        Test::new("a_window_probe_stays_a_question", window_probe),
    ])
}

fn door(bed: &Bed) -> Result<SpliceDoor> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the machine's own user namespace: run as root");
    }
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    rustix::mount::mount("bpf", &pins, "bpf", rustix::mount::MountFlags::empty(), None)?;
    Ok(SpliceDoor::load(&pins.join("splices"))?)
}

fn agree(bed: &Bed, count: u64) -> Result<()> {
    let mut door = door(bed)?;
    let mut seen = BTreeMap::new();
    for number in 0..count {
        let case = Case::make(&mut Chance::new(number));
        let fate = one(&mut door, &case).with_context(|| format!("number {number}: {case:#?}"))?;
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
fn one(door: &mut SpliceDoor, case: &Case) -> Result<&'static str> {
    door.set(case.stage, if case.is_ipv6 { TUPLES6 } else { TUPLES4 }, case.faces)?;
    let frame = case.frame();
    let outcome = door.comes_in(&frame, case.is_copy)?;
    let mut model = case.model();
    let fate = model.comes_in(&case.segment, case.is_intact(), case.is_copy);
    fate.compare(case, &frame, &outcome).with_context(|| format!("{fate:?}"))?;
    let (stage, faces) = door.state();
    ensure!(stage == model.stage, "{stage:?}, not {:?}", model.stage);
    for (side, (found, wanted)) in faces.iter().zip(&model.faces).enumerate() {
        ensure!(found == wanted, "face {side}: {found:#?}\nnot {wanted:#?}");
    }
    ensure!(door.has_keys() == !matches!(fate, Fate::MadeRoom), "its keys");
    Ok(fate.name())
}

/// Its receiver answers a number that it does not expect, and takes no notice of the question otherwise.
fn window_probe(bed: &Bed) -> Result<()> {
    let mut door = door(bed)?;
    for number in 0..2000 {
        let mut chance = Chance::new(number);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Spliced, Stage::Closing]);
        (case.is_copy, case.damage) = (false, None);
        let (from, to) = (&mut case.faces[case.side], case.side ^ 1);
        // All that the peer has sent was acknowledged to it, and acknowledged by the other peer.
        from.known |= 3;
        (from.ack, from.una) = (from.end, from.nxt);
        let probe = from.end.wrapping_sub(1);
        let wanted = probe.wrapping_add(from.shift);
        let (nxt, shift) = (from.nxt, from.shift);
        let end = from.end.wrapping_add(shift);
        case.faces[to].una = end;
        case.faces[to].known |= 3;
        (case.segment.seq, case.segment.ack, case.segment.flags) = (probe, nxt, ACK);
        case.segment.payload.clear();
        door.set(case.stage, if case.is_ipv6 { TUPLES6 } else { TUPLES4 }, case.faces)?;
        let outcome = door.comes_in(&case.frame(), false)?;
        let found = Segment::parse(&outcome.frame[14..]).context("no segment")?;
        ensure!(found.seq == wanted, "{} instead of {wanted}: the peer expects {end}", found.seq);
    }
    Ok(())
}

/// A third host knows the addresses and ports, and no number.
fn blind(bed: &Bed, count: u64) -> Result<()> {
    let mut door = door(bed)?;
    let mut lucky = 0;
    for number in 0..count {
        let mut chance = Chance::new(number | 1 << 50);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Armed, Stage::Tail, Stage::Spliced, Stage::Closing, Stage::Dead]);
        case.is_copy = false;
        case.damage = None;
        case.segment.seq = u32::try_from(chance.next() >> 32)?;
        case.segment.ack = u32::try_from(chance.next() >> 32)?;
        door.set(case.stage, if case.is_ipv6 { TUPLES6 } else { TUPLES4 }, case.faces)?;
        door.comes_in(&case.frame(), false)?;
        let (stage, faces) = door.state();
        // A window of 64 KiB is hit once in 65,536 times, and the acknowledgement besides; a SYN after the end needs half of all numbers.
        let is_syn_after_end = matches!(case.stage, Stage::Closing | Stage::Dead) && stage == Stage::Gone;
        if !is_syn_after_end && (stage != case.stage || faces != case.faces) {
            lucky += 1;
        }
    }
    println!("{lucky} of {count} changed something");
    ensure!(lucky * 5000 <= count, "{lucky} of {count} blind segments changed something");
    Ok(())
}
