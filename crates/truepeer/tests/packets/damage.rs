//! Segments that a kernel's socket would drop. They name another client: believing one shows a wrong client.

use anyhow::{Context, Result};
use truepeer_testbed::packets::{ACK, PSH, Packet, SYN, Segment, Talker, Wire, timestamps};
use truepeer_testbed::{Bed, Test, tests};

use crate::kit::{CLIENT, for_both_families, header, is_closed, is_served};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_header_in_a_damaged_segment_is_not_believed,
        a_header_in_a_segment_with_wrong_numbers_is_not_believed,
        a_damaged_part_of_a_header_is_not_believed,
        a_header_in_a_segment_of_the_past_is_not_believed,
        a_damaged_syn_is_not_believed,
        a_header_to_everybody_on_the_link_is_not_believed,
        damage_stays_damage_in_a_flow,
        copies_of_a_header_on_two_processors_are_one,
    ];
    all.into_iter().map(|test| test.of_group("damage")).collect()
}

/// The client that only invalid segments name.
const LIAR: &str = "203.0.113.66:6666";

/// A header of another length for another client, with data: believing it would show the wrong client and
/// lose bytes.
pub(crate) fn lie() -> Vec<u8> {
    let tlvs: [(u8, &[u8]); 1] = [(4, b"longer")];
    [
        truepeer_testbed::client::v2_with_tlvs(LIAR, "192.0.2.1:443", &tlvs).expect("addresses"),
        b"LIES!".to_vec(),
    ]
    .concat()
}

/// What may happen to a packet on its way.
fn damaged(packet: &Packet) -> Vec<(&'static str, Packet)> {
    let ip = packet.payload_at();
    let last = packet.bytes().len() - 1;
    let mut all = vec![
        ("a wrong TCP sum", packet.clone().with_wrong_sum()),
        ("another byte in the data", packet.clone().flip(last, 0x20)),
        ("another byte in the middle", packet.clone().flip((ip + 20 + last) / 2, 0x01)),
        ("the end cut off", packet.clone().cut(last - 3)),
        ("a data offset that is too small", packet.clone().flip(ip + 12, 0x80)),
        ("another IP version", packet.clone().flip(0, 0x30)),
    ];
    if !packet.is_ipv6() {
        all.push(("a wrong IP sum", packet.clone().with_wrong_ip_sum()));
        all.push(("an IP header that is too short", packet.clone().write(0, &[0x44]).with_right_ip_sum()));
        all.push(("an IP header that is too long", packet.clone().write(0, &[0x4f]).with_right_ip_sum()));
    }
    all
}

fn a_header_in_a_damaged_segment_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let count = damaged(&stage.talker(false, 1).data(&lie()).packet()).len();
    for n in 0..count {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            let right = talker.data(&lie());
            let all = damaged(&right.packet());
            let Some((what, packet)) = all.into_iter().nth(n) else { return Ok(()) };
            stage.wire.send(&packet)?;
            stage.nothing_is_accepted().context(what)?;
            is_served(&stage, &mut talker).context(what)
        })?;
    }
    Ok(())
}

/// Numbers and flags that only a blind attacker would use, or nobody.
fn wrong_numbers(talker: &Talker<'_>) -> Vec<(&'static str, Segment)> {
    let right = talker.data(&lie());
    vec![
        ("no ACK flag", Segment { flags: PSH, ..right.clone() }),
        ("no flags", Segment { flags: 0, ..right.clone() }),
        ("an acknowledgement of nothing", Segment { ack: 0, ..right.clone() }),
        ("an acknowledgement of too little", Segment { ack: talker.ack.wrapping_sub(1), ..right.clone() }),
        ("an acknowledgement of too much", Segment { ack: talker.ack.wrapping_add(1), ..right.clone() }),
        ("SYN and ACK", Segment { flags: SYN | ACK, ..right.clone() }),
        ("SYN and ACK from the start", Segment { flags: SYN | ACK, seq: talker.isn, ..right.clone() }),
        ("a byte after the next one", Segment { seq: talker.seq.wrapping_add(1), ..right.clone() }),
        ("long ago", Segment { seq: talker.seq.wrapping_sub(100_000), ..right.clone() }),
        ("far ahead", Segment { seq: talker.seq.wrapping_add(1 << 31), ..right }),
    ]
}

fn a_header_in_a_segment_with_wrong_numbers_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let count = wrong_numbers(&stage.talker(false, 1)).len();
    for n in 0..count {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            let (what, segment) = wrong_numbers(&talker).swap_remove(n);
            talker.send(&segment)?;
            stage.nothing_is_accepted().context(what)?;
            is_served(&stage, &mut talker).context(what)
        })?;
    }
    Ok(())
}

/// The first or the second part arrives damaged first; the correct one replaces it.
fn a_damaged_part_of_a_header_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let right = [header(CLIENT), b"DATA1".to_vec()].concat();
    let lie = lie();
    for at in [1, 5, 12, 16, 20, 27] {
        for damaged_part in 0..2 {
            for_both_families(&stage, 4000 + 4 * at + 2 * damaged_part, |mut talker| {
                let at = usize::from(at);
                talker.open()?;
                if damaged_part == 0 {
                    stage.wire.send(&talker.data(&lie[..at]).packet().with_wrong_sum())?;
                }
                talker.say(&right[..at])?;
                talker.is_acknowledged()?;
                if damaged_part == 1 {
                    stage.wire.send(&talker.data(&lie[at..]).packet().with_wrong_sum())?;
                    stage.nothing_is_accepted()?;
                }
                talker.say(&right[at..])?;
                let stream = stage.accepts(CLIENT, b"DATA1")?;
                is_closed(&mut talker, stream)
            })
            .with_context(|| format!("cut at {at}, part {damaged_part}"))?;
        }
    }
    Ok(())
}

/// PAWS (RFC 7323): a segment whose clock is behind the SYN's is an old duplicate. One that echoes a
/// timestamp that was never sent is forged.
fn a_header_in_a_segment_of_the_past_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |talker| {
        let mut talker = talker.with_clock(1_000_000);
        talker.open()?;
        let right = talker.data(&lie());
        let (now, echo) = talker.clock.context("a clock")?;
        for (what, options) in [
            ("an old clock", timestamps(now - 100_000, echo)),
            ("a clock from the other half of time", timestamps(now.wrapping_add(1 << 31) + 1, echo)),
        ] {
            talker.send(&Segment { options, ..right.clone() })?;
            stage.nothing_is_accepted().context(what)?;
        }
        is_served(&stage, &mut talker)
    })
}

/// Its number would be shifted, and the correct SYN would seem to belong to another connection.
fn a_damaged_syn_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        let other = Segment { seq: talker.isn.wrapping_add(77), ..talker.syn() };
        stage.wire.send(&other.packet().with_wrong_sum())?;
        talker.open()?;
        // Once more, while the handshake waits for its header.
        stage.wire.send(&other.packet().with_wrong_sum())?;
        stage.wire.send(&talker.syn().packet().with_wrong_sum())?;
        is_served(&stage, &mut talker)
    })
}

/// The kernel accepts TCP only in frames addressed to itself (tcp_v4_rcv: pkt_type).
fn a_header_to_everybody_on_the_link_is_not_believed(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        for link in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1], [2, 0, 0, 0, 0, 9]] {
            stage.wire.send_frame(&Wire::frame_to(link, &talker.data(&lie()).packet(), &[]))?;
            stage.nothing_is_accepted()?;
        }
        is_served(&stage, &mut talker)
    })
}

/// The kernel drops a damaged segment of an open connection and accepts the correct one, translated or not.
fn damage_stays_damage_in_a_flow(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let tlvs: [(u8, &[u8]); 1] = [(4, b"another length")];
    let longer = truepeer_testbed::client::v2_with_tlvs(CLIENT, "192.0.2.1:443", &tlvs)?;
    for (n, header) in [header(CLIENT), longer].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            talker.say(&header)?;
            let mut accepted = stage.accept()?;
            let right = talker.data(b"RIGHT").packet();
            let wrong = talker.data(b"WRONG").packet();
            for (_, packet) in damaged(&wrong) {
                stage.wire.send(&packet)?;
            }
            stage.wire.send(&right)?;
            talker.seq = talker.seq.wrapping_add(5);
            accepted.brings(b"RIGHT")?;
            is_closed(&mut talker, accepted.stream)
        })?;
    }
    Ok(())
}

/// Both copies are judged at the same time: the second finds the connection open already, and must neither
/// refuse nor forge it.
fn copies_of_a_header_on_two_processors_are_one(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let again = stage.wire.another_socket()?;
    for n in 0..1500 {
        let mut talker = stage.talker(n % 2 == 1, 4000 + n);
        talker.open()?;
        let bytes = [header(CLIENT), b"DATA1".to_vec()].concat();
        let packet = talker.data(&bytes).packet();
        let frame = Wire::frame(&packet, &[]);
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| -> Result<()> {
            let other = scope.spawn(|| {
                barrier.wait();
                again.send(&frame)
            });
            barrier.wait();
            stage.wire.send(&packet)?;
            Ok(other.join().map_err(|_| anyhow::anyhow!("the other sender panicked"))??)
        })?;
        talker.seq = talker.seq.wrapping_add(u32::try_from(bytes.len())?);
        let stream = stage.accepts(CLIENT, b"DATA1").with_context(|| format!("connection {n}"))?;
        is_closed(&mut talker, stream).with_context(|| format!("the end of connection {n}"))?;
    }
    Ok(())
}
