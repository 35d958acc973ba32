//! A handshake that waits for its header, and a blind attacker who knows its addresses and ports.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::packets::{ACK, FIN, PSH, RST, SYN, Segment, Talker, Wire};
use truepeer_testbed::{Bed, Test, tests};

use crate::damage::lie;
use crate::kit::{CLIENT, for_both_families, header, is_closed, is_served};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_blind_segment_ends_no_handshake,
        a_blind_segment_from_another_device_ends_no_handshake,
        a_blind_segment_ends_no_handshake_whose_header_has_come_in_part,
        a_blind_syn_ends_no_handshake_after_a_cookie,
        a_blind_syn_before_the_senders_own_takes_nothing_after_a_cookie,
        a_sender_that_starts_again_is_served,
        a_sender_that_resets_is_forgotten,
        a_syn_ack_with_data_is_not_accepted,
        segments_that_no_kernel_takes_for_a_syn_are_not_tracked,
        only_fast_open_is_declined_of_the_experiments,
        the_end_without_a_header_is_refused,
    ];
    all.into_iter().map(|test| test.of_group("handshake")).collect()
}

/// Offsets from the next number that a blind attacker may hit; the exact number is one of 2^32. RFC 5961 lets
/// no other number end a connection, and a plain port's would be established here.
const BLIND: [u32; 12] = [
    1 << 31,
    0u32.wrapping_sub(1_000_000),
    0u32.wrapping_sub(70_000),
    0u32.wrapping_sub(100),
    0u32.wrapping_sub(28),
    0u32.wrapping_sub(2),
    1,
    28,
    100,
    60_000,
    70_000,
    1_000_000,
];

/// Every flag by which a segment could end a connection or restart it. The acknowledgement number is unknown.
pub(crate) fn blind(talker: &Talker<'_>) -> Vec<Segment> {
    let kinds: [(u8, &[u8]); 10] = [
        (SYN, b""),
        (RST, b""),
        (RST | ACK, b""),
        (FIN, b""),
        (FIN | ACK, b""),
        (ACK, b""),
        (SYN | ACK, b""),
        (SYN | FIN, b""),
        (SYN | RST, b""),
        (PSH | ACK, b"GET / HTTP/1.1\r\n\r\n"),
    ];
    let mut all = Vec::new();
    for offset in BLIND {
        for (flags, payload) in kinds {
            let segment = talker.segment(flags, payload);
            let seq = talker.seq.wrapping_add(offset);
            all.push(Segment { seq, ack: segment.ack.wrapping_add(12345), ..segment });
        }
    }
    // With the right number, but without an acknowledgement or with a wrong one.
    for (flags, payload) in kinds.into_iter().filter(|(flags, _)| flags & (SYN | RST) == 0) {
        let segment = talker.segment(flags, payload);
        all.push(Segment { ack: segment.ack.wrapping_add(12345), ..segment });
    }
    all
}

fn a_blind_segment_ends_no_handshake(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let count = blind(&stage.talker(false, 1)).len();
    for n in 0..count {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            let segment = blind(&talker).swap_remove(n);
            talker.send(&segment)?;
            let away = segment.seq.wrapping_sub(talker.seq).cast_signed();
            is_served(&stage, &mut talker).with_context(|| format!("{}, {away} away", flags_of(&segment)))
        })?;
    }
    Ok(())
}

/// On a device on which the kernel's strict reverse path filter drops it.
fn a_blind_segment_from_another_device_ends_no_handshake(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let other = stage.wire.another_device("other")?;
    stage.wire.host.ip(&["addr add 10.99.0.2/24 dev other", "addr add fd99::2/64 dev other nodad"])?;
    set(&stage, "ipv4/conf/all/rp_filter", "1")?;
    set(&stage, "ipv4/conf/other/rp_filter", "1")?;
    stage.attach(&["--port", "80", "--allow", "any"])?;
    let mut talker = stage.talker(false, 4000);
    talker.open()?;
    // Even with all numbers right.
    let right = talker.data(&lie());
    let mut all = blind(&talker);
    all.extend([right.clone(), Segment { flags: FIN | ACK, payload: Vec::new(), ..right.clone() }]);
    all.push(Segment { flags: RST, payload: Vec::new(), ..right });
    for segment in all {
        other.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &segment.packet(), &[]))?;
    }
    stage.nothing_is_accepted()?;
    is_served(&stage, &mut talker)
}

fn a_blind_segment_ends_no_handshake_whose_header_has_come_in_part(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        let bytes = [header(CLIENT), b"DATA1".to_vec()].concat();
        for part in bytes.chunks(7) {
            for segment in blind(&talker) {
                talker.send(&segment)?;
            }
            talker.say(part)?;
            talker.is_acknowledged()?;
        }
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        is_closed(&mut talker, stream)
    })
}

/// The kernel then remembers nothing, so it accepts the answer to either SYN.
fn a_blind_syn_ends_no_handshake_after_a_cookie(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    set(&stage, "ipv4/tcp_syncookies", "2")?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        for offset in BLIND {
            talker.send(&Segment { seq: talker.isn.wrapping_add(offset), ..talker.syn() })?;
        }
        is_served(&stage, &mut talker)
    })
}

/// The cookie that it answers identifies the sender's SYN.
fn a_blind_syn_before_the_senders_own_takes_nothing_after_a_cookie(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    set(&stage, "ipv4/tcp_syncookies", "2")?;
    for_both_families(&stage, 4000, |mut talker| {
        let isn = talker.isn.wrapping_add(77_777);
        talker.send(&Segment { seq: isn, ..talker.syn() })?;
        talker.hear("an answer to it", |segment| segment.ack == isn.wrapping_add(1))?;
        talker.open()?;
        is_served(&stage, &mut talker)
    })
}

/// It has lost its state and connects from the same port. It gets an ACK for the old connection, resets that,
/// and tries again.
fn a_sender_that_starts_again_is_served(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, part) in [b"".as_slice(), &header(CLIENT)[..7]].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            if !part.is_empty() {
                talker.say(part)?;
                talker.is_acknowledged()?;
            }
            let mut again =
                Talker::new(&stage.wire, talker.from, talker.to, talker.isn.wrapping_add(1 << 30));
            stage.wire.forget()?;
            again.send(&again.syn())?;
            let told = again.hear("where the old one stands", |segment| segment.flags & ACK != 0)?;
            ensure!(told.ack == talker.seq, "{told:?}, not {}", talker.seq);
            again.send(&Segment { seq: told.ack, flags: RST, ..Segment::new(again.from, again.to) })?;
            stage.wire.forget()?;
            again.open()?;
            is_served(&stage, &mut again)
        })?;
    }
    Ok(())
}

/// The kernel's half-open connection is gone: nothing more is sent for it.
fn a_sender_that_resets_is_forgotten(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, part) in [b"".as_slice(), &header(CLIENT)[..7]].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            if !part.is_empty() {
                talker.say(part)?;
                talker.is_acknowledged()?;
            }
            talker.send(&talker.segment(RST, b""))?;
            stage.wire.forget()?;
            // The SYN-ACK would be repeated after a second.
            let again = talker.hears_within(Duration::from_millis(1500), |_| true)?;
            ensure!(!again, "the kernel still waits");
            let mut next = Talker::new(&stage.wire, talker.from, talker.to, talker.isn.wrapping_add(1 << 30));
            next.open()?;
            is_served(&stage, &mut next)
        })?;
    }
    Ok(())
}

/// The kernel takes a SYN-ACK as the ACK that it waits for, so accept() would return without a client.
fn a_syn_ack_with_data_is_not_accepted(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, payload) in [b"".as_slice(), b"x", &header(CLIENT)].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 4 * u16::try_from(n)?, |mut talker| {
            talker.ask()?;
            for seq in [talker.isn, talker.seq, talker.seq.wrapping_add(1), talker.isn.wrapping_sub(1)] {
                talker.send(&Segment { seq, ..talker.segment(SYN | ACK, payload) })?;
                stage.nothing_is_accepted().with_context(|| seq.wrapping_sub(talker.isn).to_string())?;
            }
            is_served(&stage, &mut talker)
        })?;
    }
    Ok(())
}

fn segments_that_no_kernel_takes_for_a_syn_are_not_tracked(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |talker| {
        for flags in [SYN | FIN, SYN | RST, SYN | RST | FIN, SYN | FIN | PSH] {
            talker.send(&Segment { flags, ..talker.syn() })?;
        }
        stage.wire.send(&talker.syn().packet().with_wrong_sum())?;
        Ok(())
    })?;
    stage.nothing_is_accepted()?;
    stage.counts("connections", 0)?;
    let status = stage.status()?;
    ensure!(status["ports"][0]["awaiting_header"] == 0, "{status}");
    Ok(())
}

/// RFC 6994: option 254 has a number that says which experiment it is. Fast open's is 0xf989.
fn only_fast_open_is_declined_of_the_experiments(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let fast_open: &[u8] = &[254, 4, 0xf9, 0x89];
    let experiments: [(&[u8], u64); 5] = [
        (&[254, 6, 0xe2, 0xd4, 0xc3, 0xd9], 0), // shared memory (SMC)
        (&[254, 2], 0),
        (&[254, 3, 0xf9], 0),
        (fast_open, 1),
        (&[254, 8, 0xf9, 0x89, 1, 2, 3, 4], 1),
    ];
    let mut declined = 0;
    for (n, (experiment, counts)) in (0_u16..).zip(experiments) {
        for_both_families(&stage, 4000 + 2 * n, |mut talker| {
            let mut syn = talker.syn();
            syn.options.extend(experiment);
            talker.send(&syn)?;
            let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
            (talker.seq, talker.ack) = (talker.isn.wrapping_add(1), answer.seq.wrapping_add(1));
            talker.send(&talker.segment(ACK, b""))?;
            is_served(&stage, &mut talker)
        })?;
        declined += 2 * counts;
        let counted = stage.counter("fastopen_declined")?;
        ensure!(counted == declined, "{experiment:?}: {counted} declined, expected {declined}");
    }
    Ok(())
}

/// With all numbers right it is the sender's own segment: the sender learns of the refusal, and the kernel
/// forgets the connection.
fn the_end_without_a_header_is_refused(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        talker.send(&talker.segment(FIN | ACK, b""))?;
        let answer = talker.hear("the refusal", |segment| segment.flags & RST != 0)?;
        ensure!(answer.seq == talker.ack, "{answer:?}");
        stage.nothing_is_accepted()
    })?;
    stage.counts("refused_no_header", 2)
}

/// The names of a segment's flags, for messages.
fn flags_of(segment: &Segment) -> String {
    let names = [(SYN, "SYN"), (ACK, "ACK"), (FIN, "FIN"), (RST, "RST"), (PSH, "PSH")];
    let set = names.iter().filter(|(flag, _)| segment.flags & flag != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join("|")
}

/// Writes a network setting of the host: `ipv4/tcp_syncookies`.
pub(crate) fn set(stage: &Stage<'_>, name: &str, value: &str) -> Result<()> {
    let host = &stage.wire.host;
    host.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))?.context(name.to_owned())
}
