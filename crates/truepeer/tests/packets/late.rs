//! A silent sender is served without a header where one is optional, and then sends bytes: a header that
//! comes late ends the connection.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::packets::{ACK, RST, SYN, Segment, Talker};
use truepeer_testbed::{Bed, Test, tests, wait_for};

use crate::kit::{CLIENT, for_both_families, header, is_closed, is_served};
use crate::stage::{Accepted, Stage};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_late_header_resets_both_ends_by_the_numbers_that_each_knows,
        what_the_kernel_refuses_ends_no_connection_without_a_header,
        pieces_of_a_late_header_in_the_wrong_order_do_not_reach_the_server,
    ];
    all.into_iter().map(|test| test.of_group("late")).collect()
}

/// Senders' next connections are shifted by the length of their last header: their numbers are translated.
fn stage(bed: &Bed) -> Result<Stage<'_>> {
    let stage = Stage::without_attach(bed)?;
    let senders = ["--port", "80", "--allow", "10.77.0.0/24", "--allow", "fd77::/64"];
    stage.attach(&[senders.as_slice(), &["--header", "optional", "--header-wait", "100ms"]].concat())?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_served(&stage, &mut talker)
    })?;
    Ok(stage)
}

fn is_served_in_silence(stage: &Stage<'_>, talker: &mut Talker<'_>) -> Result<Accepted> {
    talker.open()?;
    let mut accepted = None;
    wait_for("a connection without a header", || {
        let _ = talker.send(&talker.segment(ACK, b""));
        accepted = stage.accept_within(Duration::from_millis(50)).unwrap_or_default();
        accepted.is_some()
    })?;
    let accepted = accepted.context("a connection")?;
    ensure!(accepted.client == talker.from, "{}", accepted.client);
    Ok(accepted)
}

fn is_reset(accepted: &mut Accepted) -> Result<()> {
    let end = accepted.stream.read(&mut [0]).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    Ok(())
}

fn a_late_header_resets_both_ends_by_the_numbers_that_each_knows(bed: &Bed) -> Result<()> {
    let stage = stage(bed)?;
    for_both_families(&stage, 5000, |mut talker| {
        let mut accepted = is_served_in_silence(&stage, &mut talker)?;
        talker.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
        let answer = talker.hear("the refusal", |segment| segment.flags & RST != 0)?;
        ensure!((answer.seq, answer.ack) == (talker.ack, talker.seq), "{answer:?}, sent to {}", talker.seq);
        is_reset(&mut accepted)
    })?;
    let status = stage.status()?;
    ensure!(status["ports"][0]["counters"]["translated"] == 4, "{status}");
    stage.counts("refused_after_wait", 2)
}

fn what_the_kernel_refuses_ends_no_connection_without_a_header(bed: &Bed) -> Result<()> {
    let stage = stage(bed)?;
    for_both_families(&stage, 5000, |mut talker| {
        let mut accepted = is_served_in_silence(&stage, &mut talker)?;
        let forged = talker.data(&header("203.0.113.66:66"));
        for segment in [
            Segment { flags: 0, ..forged.clone() },
            Segment { flags: SYN | ACK, ..forged.clone() },
            Segment { ack: forged.ack.wrapping_add(1000), ..forged.clone() },
            Segment { ack: forged.ack.wrapping_sub(1000), ..forged.clone() },
        ] {
            talker.send(&segment)?;
        }
        talker.say(b"DATA1")?;
        accepted.brings(b"DATA1")?;
        talker.is_acknowledged()?;
        is_closed(&mut talker, accepted.stream)
    })?;
    stage.counts("refused_after_wait", 0)
}

fn pieces_of_a_late_header_in_the_wrong_order_do_not_reach_the_server(bed: &Bed) -> Result<()> {
    let stage = stage(bed)?;
    for_both_families(&stage, 5000, |mut talker| {
        let mut accepted = is_served_in_silence(&stage, &mut talker)?;
        let whole = b"PROXY TCP4 203.0.113.1 192.0.2.1 1001 443\r\n";
        let mut second = talker.data(&whole[3..]);
        second.seq = second.seq.wrapping_add(3);
        talker.send(&second)?;
        talker.say(&whole[..3])?;
        accepted.brings(&whole[..3])?;
        talker.send(&second)?;
        talker.hear("the refusal", |segment| segment.flags & RST != 0)?;
        is_reset(&mut accepted)
    })?;
    stage.counts("refused_after_wait", 2)
}
