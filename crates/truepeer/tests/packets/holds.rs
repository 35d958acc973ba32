//! Fragments, extension headers, urgent data, wrapping numbers, overlaps, unusual options, floods.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, PSH, SYN, Segment, Talker, URG};
use truepeer_testbed::{Bed, Test, client, tests};

use crate::kit::{CLIENT, for_both_families, header, is_closed, is_served};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        fragments_are_refused,
        extension_headers_are_refused,
        ip_options_are_carried,
        urgent_data_is_where_it_was,
        numbers_wrap_at_every_place,
        a_header_comes_byte_by_byte,
        the_first_bytes_that_came_count,
        segments_that_overlap_are_put_together,
        segments_in_reverse_order_are_put_together,
        odd_options_are_carried,
        a_flood_ends_no_flow,
    ];
    all.push(Test::new("offloads_change_nothing", offloads_change_nothing).needs_program("ethtool"));
    all.into_iter().map(|test| test.of_group("holds")).collect()
}

fn data() -> Vec<u8> {
    [header(CLIENT), b"DATA1".to_vec()].concat()
}

/// Fragments from a sender neither start nor continue a connection.
fn fragments_are_refused(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        for part in talker.syn().packet().fragments(16, 1) {
            stage.wire.send(&part)?;
        }
        let answered = talker.hears_within(Duration::from_millis(100), |_| true)?;
        ensure!(!answered, "a SYN in fragments was answered");
        talker.open()?;
        for len in [8, 16, 24, 48] {
            for part in talker.data(&data()).packet().fragments(len, len.try_into()?) {
                stage.wire.send(&part)?;
            }
            stage.nothing_is_accepted()?;
        }
        is_served(&stage, &mut talker)
    })?;
    stage.counts("refused_fragment", 10)
}

fn extension_headers_are_refused(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let chains: [&[u8]; 6] = [&[60], &[0], &[43], &[44], &[0, 60], &[60; 15]];
    for (n, chain) in chains.into_iter().enumerate() {
        let mut talker = stage.talker(true, 4000 + u16::try_from(n)?);
        stage.wire.send(&talker.syn().packet().behind(chain))?;
        let answered = talker.hears_within(Duration::from_millis(100), |_| true)?;
        ensure!(!answered, "a SYN behind {chain:?} was answered");
        talker.open()?;
        stage.wire.send(&talker.data(&data()).packet().behind(chain))?;
        stage.nothing_is_accepted()?;
        is_served(&stage, &mut talker)?;
    }
    stage.counts("refused_fragment", 2 * 6)
}

/// Nobody sends them, but the kernel accepts them.
fn ip_options_are_carried(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, words) in [1, 2, 10].into_iter().enumerate() {
        let mut talker = stage.talker(false, 4000 + u16::try_from(n)?);
        talker.open()?;
        stage.wire.send(&talker.data(&data()).packet().with_ip_options(&vec![1; 4 * words]))?;
        talker.seq = talker.seq.wrapping_add(u32::try_from(data().len())?);
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        is_closed(&mut talker, stream)?;
    }
    Ok(())
}

/// The urgent byte is out of band (tcp(7)), in the header's segment and later, translated and not.
fn urgent_data_is_where_it_was(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let headers = [header(CLIENT), client::v2_with_tlvs(CLIENT, "192.0.2.1:443", &[(4, b"longer")])?];
    for (n, header) in headers.into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            let first = [header.as_slice(), b"ab!cd"].concat();
            let urgent = u16::try_from(header.len() + 3)?;
            talker.send(&Segment { urgent, ..talker.segment(ACK | PSH | URG, &first) })?;
            talker.seq = talker.seq.wrapping_add(u32::try_from(first.len())?);
            let mut accepted = stage.accept()?;
            ensure!(accepted.client.to_string() == CLIENT);
            accepted.brings(b"abcd")?;
            talker.send(&Segment { urgent: 2, ..talker.segment(ACK | URG, b"e!f") })?;
            talker.seq = talker.seq.wrapping_add(3);
            accepted.brings(b"ef")?;
            is_closed(&mut talker, accepted.stream)
        })?;
    }
    Ok(())
}

/// The header, or its guessed length, crosses the largest number.
fn numbers_wrap_at_every_place(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, before) in [0, 1, 2, 10, 27, 28, 29, 30, 40, 60].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 4 * u16::try_from(n)?, |talker| {
            let isn = 0u32.wrapping_sub(before);
            let mut talker = Talker::new(&stage.wire, talker.from, talker.to, isn);
            talker.open()?;
            is_served(&stage, &mut talker).with_context(|| format!("{before} before the wrap"))?;
            let from = std::net::SocketAddr::new(talker.from.ip(), talker.from.port() + 2);
            let mut talker = Talker::new(&stage.wire, from, talker.to, isn);
            talker.open()?;
            for part in data().chunks(9) {
                talker.say(part)?;
                talker.is_acknowledged()?;
            }
            let stream = stage.accepts(CLIENT, b"DATA1")?;
            is_closed(&mut talker, stream)
        })?;
    }
    Ok(())
}

fn a_header_comes_byte_by_byte(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let v1 = client::v1(CLIENT, "192.0.2.1:443")?;
    for (n, header) in [header(CLIENT), v1].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |talker| {
            let mut talker = talker.with_clock(1000);
            talker.open()?;
            for byte in [header.as_slice(), b"DATA1"].concat() {
                talker.say(&[byte])?;
                talker.is_acknowledged()?;
            }
            let stream = stage.accepts(CLIENT, b"DATA1")?;
            is_closed(&mut talker, stream)
        })?;
    }
    Ok(())
}

/// A later segment with the same numbers and other bytes does not overwrite acknowledged bytes.
fn the_first_bytes_that_came_count(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        let (right, other) = (data(), [header("198.51.100.9:9"), b"OTHER".to_vec()].concat());
        let start = talker.seq;
        talker.say(&right[..20])?; // it contains the client's address
        talker.is_acknowledged()?;
        let again = Segment { seq: start, ..talker.data(&[&other[..20], &right[20..]].concat()) };
        talker.send(&again)?;
        talker.seq = start.wrapping_add(u32::try_from(right.len())?);
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        is_closed(&mut talker, stream)
    })
}

/// Each segment repeats some earlier bytes, as a sender does that resegments its data.
fn segments_that_overlap_are_put_together(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for n in 0..20 {
        for_both_families(&stage, 4000 + 2 * n, |mut talker| {
            talker.open()?;
            let bytes = [data(), (0..200).collect()].concat();
            let (start, mut said) = (talker.seq, 0);
            while said < bytes.len() {
                let from = said - (said / 2).min(usize::from(n));
                let to = (said + 1 + usize::from(n) * 3).min(bytes.len());
                let seq = start.wrapping_add(u32::try_from(from)?);
                talker.send(&Segment { seq, ..talker.data(&bytes[from..to]) })?;
                said = to;
                talker.seq = start.wrapping_add(u32::try_from(said)?);
                talker.is_acknowledged()?;
            }
            let mut accepted = stage.accept()?;
            ensure!(accepted.client.to_string() == CLIENT);
            accepted.brings(&bytes[header(CLIENT).len()..])?;
            is_closed(&mut talker, accepted.stream)
        })
        .with_context(|| format!("overlap {n}"))?;
    }
    Ok(())
}

/// As after a loss: segments that overtake the header are dropped and sent again.
fn segments_in_reverse_order_are_put_together(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        let bytes = [data(), (0..100).collect()].concat();
        let start = talker.seq;
        let parts: Vec<_> = bytes.chunks(10).enumerate().collect();
        talker.seq = start.wrapping_add(u32::try_from(bytes.len())?);
        // At most one round for each part: each round delivers at least one more.
        for _ in 0..parts.len() {
            for (n, part) in parts.iter().rev() {
                let seq = start.wrapping_add(u32::try_from(n * 10)?);
                talker.send(&Segment { seq, ..talker.data(part) })?;
            }
        }
        let mut accepted = stage.accept()?;
        ensure!(accepted.client.to_string() == CLIENT);
        accepted.brings(&bytes[header(CLIENT).len()..])?;
        is_closed(&mut talker, accepted.stream)
    })
}

/// Unknown kinds, wrong lengths, as many as fit: the kernel ignores them, and so do the programs.
fn odd_options_are_carried(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let odd: [&[u8]; 8] = [
        &[1; 40],
        &[0, 8, 10, 0],
        &[253, 4, 1, 2, 1, 1, 1, 1],
        &[200, 40, 0, 0],
        &[77, 0, 1, 1],
        &[77, 1, 1, 1],
        &[1, 1, 1, 77],
        &[5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
    ];
    for (n, options) in odd.into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            let options = options.to_vec();
            talker.send(&Segment { options: options.clone(), ..talker.syn() })?;
            let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
            talker.seq = talker.isn.wrapping_add(1);
            talker.ack = answer.seq.wrapping_add(1);
            talker.send(&Segment { options: options.clone(), ..talker.segment(ACK, b"") })?;
            let bytes = data();
            talker.send(&Segment { options, ..talker.data(&bytes) })?;
            talker.seq = talker.seq.wrapping_add(u32::try_from(bytes.len())?);
            let stream = stage.accepts(CLIENT, b"DATA1")?;
            is_closed(&mut talker, stream)
        })
        .with_context(|| format!("{options:?}"))?;
    }
    Ok(())
}

/// SYNs, data and FINs from everywhere, also from the same ports at other addresses: open connections
/// continue.
fn a_flood_ends_no_flow(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let mut open = Vec::new();
    for n in 0..20 {
        let mut talker = stage.talker(n % 2 == 1, 4000 + n);
        talker.open()?;
        talker.say(&header(CLIENT))?;
        let accepted = stage.accept()?;
        ensure!(accepted.client.to_string() == CLIENT);
        open.push((talker, accepted));
    }
    let mut chance = Chance::new(7);
    for _ in 0..20_000 {
        let (talker, _) = &open[chance.below(open.len())];
        let len = chance.below(60);
        let mut segment = talker.segment(chance.next().to_le_bytes()[0], &chance.bytes(len));
        segment.seq = segment.seq.wrapping_add(100_000 + u32::try_from(chance.below(1 << 31))?);
        segment.ack = segment.ack.wrapping_add(1 << 30);
        let spread = chance.below(3);
        if spread > 0 {
            segment.from.set_port(u16::try_from(1024 + chance.below(60_000))?);
        }
        talker.send(&segment)?;
    }
    for (talker, accepted) in &mut open {
        talker.say(b"still here")?;
        accepted.brings(b"still here")?;
    }
    open.into_iter().try_for_each(|(mut talker, accepted)| {
        stage.wire.forget()?;
        is_closed(&mut talker, accepted.stream)
    })
}

/// Aggregation and unfinished checksums on the host's side.
fn offloads_change_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, state) in ["on", "off"].into_iter().enumerate() {
        let set = ["-K", "wire", "gro", state, "tso", state, "gso", state, "tx", state, "rx", state];
        stage.run("ethtool", &set)?;
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.open()?;
            let bytes = [header(CLIENT), (0..255).cycle().take(50_000).collect()].concat();
            for part in bytes.chunks(1000) {
                talker.say(part)?;
            }
            let mut accepted = stage.accept()?;
            ensure!(accepted.client.to_string() == CLIENT);
            let mut read = vec![0; 50_000];
            accepted.stream.read_exact(&mut read)?;
            ensure!(read == bytes[28..], "{state}: other bytes");
            stage.wire.forget()?;
            is_closed(&mut talker, accepted.stream)
        })?;
    }
    Ok(())
}
