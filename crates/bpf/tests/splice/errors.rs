//! ICMP errors about the segments of a flow, made up: right ones, blind ones, damaged ones.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::test::splice::{FaceState, Outcome, SpliceHarness};
use truepeer_testbed::Bed;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, Packet, Segment};

use crate::made_up::{self, DEVICE, LINK_HEADER, TUPLES4, TUPLES6, frame_by};
use crate::model::{LOOPBACK, SAID, TOLD, is_before};

const DROP: i32 = 2;
const REDIRECT: i32 = 7;
const PASS: i32 = -1;

struct Case {
    stage: Stage,
    faces: [FaceState; 2],
    /// The side whose peer the quoted segment went to.
    side: usize,
    is_ipv6: bool,
    device: u32,
    quoted: Segment,
    error: Packet,
    is_intact: bool,
}

impl Case {
    fn make(chance: &mut Chance) -> Case {
        let is_ipv6 = chance.below(2) == 1;
        let side = chance.below(2);
        let faces = [made_up::face(chance), made_up::face(chance)];
        let stages = [Stage::Armed, Stage::Tail, Stage::Spliced, Stage::Spliced, Stage::Closing, Stage::Dead];
        let stage = chance.one_of(&stages);
        let (peer, own) = if is_ipv6 { TUPLES6[side] } else { TUPLES4[side] };
        let face = &faces[side];
        let number = chance.one_of(&[face.una, face.nxt, face.own_nxt, face.ack]);
        let seq = number.wrapping_add(u32::try_from(chance.below(2000)).expect("small")).wrapping_sub(1000);
        let len = chance.one_of(&[0, 3, 700]);
        let quoted =
            Segment { seq, ack: 1, flags: ACK, payload: chance.bytes(len), ..Segment::new(own, peer) };
        let (kind, code) = if is_ipv6 {
            chance.one_of(&[(2, 0), (2, 0), (1, 4), (3, 0), (128, 0)])
        } else {
            chance.one_of(&[(3, 4), (3, 4), (3, 1), (11, 0), (8, 0), (4, 0)])
        };
        let router: IpAddr = if is_ipv6 { "fd99::1" } else { "10.99.0.1" }.parse().expect("an address");
        let mut error = quoted.packet().error(router, kind, code, 1300);
        let is_intact = chance.below(6) > 0;
        if !is_intact {
            // The quoted packet's end, or the ICMP sum.
            let at = if chance.below(2) == 0 { error.bytes().len() - 1 } else { error.payload_at() + 2 };
            error = error.flip(at, 1 << chance.below(8));
        }
        let device = if chance.below(16) == 0 { LOOPBACK + DEVICE - face.device } else { face.device };
        Case { stage, faces, side, is_ipv6, device, quoted, error, is_intact }
    }

    fn fate(&self) -> &'static str {
        let to = &self.faces[self.side];
        let seq = self.quoted.seq;
        let (kind, _, _, _) = self.error.as_error().expect("an error");
        let is_error = if self.is_ipv6 { (1..=4).contains(&kind) } else { [3, 11, 12].contains(&kind) };
        if !is_error || self.stage == Stage::Armed {
            "the kernel's"
        } else if (to.device == LOOPBACK) != (self.device == LOOPBACK) {
            "by another way"
        } else if self.stage == Stage::Tail && is_before(seq, to.own_nxt) {
            "our socket's"
        } else if to.known & (TOLD | SAID) != TOLD | SAID || is_before(seq, to.una) || !is_before(seq, to.nxt)
        {
            "not under way"
        } else {
            "translated"
        }
    }

    /// As it goes on to the segment's sender.
    fn is_translation(&self, frame: &[u8]) -> Result<()> {
        let from = 1 - self.side;
        let (peer, own) = if self.is_ipv6 { TUPLES6[from] } else { TUPLES4[from] };
        let found = Packet::of(&frame[LINK_HEADER..]);
        ensure!(found.addresses() == Some((own.ip(), peer.ip())), "{:?}", found.addresses());
        ensure!(found.has_right_sums() == self.is_intact, "sums of {found:?}");
        let (kind, code, rest, quoted) = found.as_error().context("no error")?;
        let (was_kind, was_code, was_rest, was_quoted) = self.error.as_error().context("no error")?;
        ensure!((kind, code, rest) == (was_kind, was_code, was_rest), "{kind} {code} {rest}");
        let quoted = Packet::of(quoted);
        let seq = self.quoted.seq.wrapping_sub(self.faces[from].shift);
        let (at, was) = (quoted.payload_at(), Packet::of(was_quoted));
        let (head, tcp) = quoted.bytes().split_at(at);
        let ports = [peer.port().to_be_bytes(), own.port().to_be_bytes()].concat();
        ensure!(
            tcp[..8] == [ports, seq.to_be_bytes().to_vec()].concat(),
            "the quoted numbers {:?}",
            &tcp[..8]
        );
        ensure!(tcp[8..] == was.bytes()[at + 8..], "more than that is changed");
        // The addresses, and the sum with them.
        let wanted = Packet::new(peer.ip(), own.ip(), 6, &vec![0; self.quoted.bytes().len()]);
        ensure!(head == &wanted.bytes()[..at], "the quoted IP header {head:?}");
        Ok(())
    }

    fn check(&self, outcome: &Outcome, frame: &[u8]) -> Result<()> {
        let verdict = outcome.verdict;
        match self.fate() {
            "translated" => {
                let is_local = self.faces[1 - self.side].device == LOOPBACK;
                let stays = is_local && self.device == LOOPBACK;
                ensure!(verdict == if stays { PASS } else { REDIRECT }, "{verdict}");
                self.is_translation(&outcome.frame)
            }
            "not under way" => {
                ensure!(verdict == DROP, "{verdict}");
                Ok(())
            }
            _ => {
                ensure!(verdict == PASS && outcome.frame == frame, "{verdict}");
                Ok(())
            }
        }
    }
}

/// Only an error about a segment that is under way goes on, to the peer that sent it, and nothing of the flow
/// changes by any.
pub(crate) fn agree(bed: &Bed, count: u64) -> Result<()> {
    let mut harness: SpliceHarness = crate::harness(bed)?;
    let mut seen = BTreeMap::new();
    for number in 0..count {
        let case = Case::make(&mut Chance::new(number | 1 << 52));
        harness.set(case.stage, if case.is_ipv6 { TUPLES6 } else { TUPLES4 }, case.faces)?;
        let frame = frame_by(case.device, &case.error);
        let outcome = harness.comes_in(&frame, case.device, false)?;
        let told = || format!("number {number}: {} {:?} {:?}", case.fate(), case.stage, case.quoted);
        case.check(&outcome, &frame).with_context(told)?;
        ensure!(harness.state() == (case.stage, case.faces), "{}: the flow has changed", told());
        *seen.entry(case.fate()).or_insert(0_u64) += 1;
    }
    println!("{seen:?}");
    ensure!(seen.len() == 5 && seen.values().all(|times| times * 100 > count), "{seen:?}");
    Ok(())
}
