//! Segments that the other side's device does not take.

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, PSH, Packet};
use truepeer_testbed::{Bed, ip_here};

use crate::made_up::{Case, DEVICE, LINK_HEADER};
use crate::model::{SAID, TOLD};

const MTU: u32 = 1280;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// As a router would: by the error that says how long a packet may be, and quotes the segment. One that was
/// not taken is not answered.
pub(crate) fn is_answered(bed: &Bed) -> Result<()> {
    let mut harness = crate::harness(bed)?;
    ip_here(&[&format!("link set wire mtu {MTU}")])?;
    for number in 0..2000 {
        let mut chance = Chance::new(number);
        let mut case = Case::make(&mut chance);
        case.stage = chance.one_of(&[Stage::Tail, Stage::Spliced, Stage::Closing]);
        (case.is_copy, case.damage) = (false, None);
        case.device = case.faces[case.side].device;
        case.faces[1 - case.side].device = DEVICE;
        let from = &mut case.faces[case.side];
        from.known |= TOLD | SAID;
        let is_taken = chance.below(4) > 0;
        from.kept = from.ack;
        case.segment.seq = if is_taken { from.ack } else { from.edge.wrapping_add(5000) };
        (case.segment.ack, case.segment.flags) = (from.nxt, ACK | PSH);
        case.segment.payload = chance.bytes(1300);
        case.segment.options.clear();
        harness.set(case.stage, case.tuples(), case.faces)?;
        let frame = case.frame();
        let outcome = harness.comes_in(&frame, case.device, false)?;
        if !is_taken {
            ensure!(outcome.verdict == DROP, "{number}: {}", outcome.verdict);
            continue;
        }
        ensure!(outcome.verdict == REDIRECT, "{number}: {}", outcome.verdict);
        let (peer, own) = case.tuple();
        let error = Packet::of(&outcome.frame[LINK_HEADER..]);
        ensure!(error.addresses() == Some((own.ip(), peer.ip())), "{number}: {:?}", error.addresses());
        ensure!(error.has_right_sums(), "{number}: its sums: {error:?}");
        let wanted = if case.is_ipv6 { (2, 0) } else { (3, 4) };
        let (kind, code, mtu, quoted) = error.as_error().context("no error")?;
        ensure!((kind, code, mtu) == (wanted.0, wanted.1, MTU), "{number}: {kind} {code} {mtu}");
        // All but the TCP sum, which is another on purpose: see offload/errors.h.
        let was = &frame[LINK_HEADER..][..quoted.len()];
        let sum_at = quoted.len() - 20 + 16;
        let differs = (0..quoted.len()).filter(|at| quoted[*at] != was[*at] && *at / 2 != sum_at / 2);
        ensure!(differs.count() == 0 && quoted.len() == error.payload_at() + 20, "{number}: {quoted:?}");
    }
    Ok(())
}
