//! Paths to the backend around the programs.

use anyhow::{Context, Result, ensure};
use truepeer_testbed::packets::{ACK, PSH, SYN, Segment, Tag, Talker, Wire};
use truepeer_testbed::{Bed, Test, tests};

use crate::kit::{CLIENT, header};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_priority_tag_bypasses_nothing,
        a_priority_tag_changes_nothing,
        a_device_without_an_address_bypasses_nothing,
        a_frame_of_an_unknown_vlan_teaches_nothing,
    ];
    let mut all: Vec<Test> = all.into_iter().collect();
    all.push(
        Test::new("a_redirected_port_bypasses_nothing", a_redirected_port_bypasses_nothing)
            .needs_program("nft"),
    );
    all.into_iter().map(|test| test.of_group("paths")).collect()
}

const QUEUE: u16 = 0x8100;
const SERVICE: u16 = 0x88a8;

/// The kernel removes tags that have only a priority, one or two of them, and delivers on the same device.
fn priorities() -> Vec<Vec<Tag>> {
    let tag = |ethertype, id| Tag { ethertype, id };
    vec![
        vec![tag(QUEUE, 0)],
        vec![tag(SERVICE, 0)],
        vec![tag(QUEUE, 0xe000)], // the highest priority
        vec![tag(QUEUE, 0), tag(QUEUE, 0)],
        vec![tag(SERVICE, 0), tag(QUEUE, 0)],
        vec![tag(SERVICE, 0), tag(QUEUE, 0), tag(QUEUE, 0)],
    ]
}

/// Tries to open a connection with such frames. Returns whether the host accepted it.
fn opens(stage: &Stage<'_>, talker: &mut Talker<'_>, send: impl Fn(&Segment) -> Result<()>) -> Result<bool> {
    stage.wire.forget()?;
    send(&talker.syn())?;
    let wait = std::time::Duration::from_millis(300);
    let mine = |segment: &Segment| (segment.from, segment.to) == (talker.to, talker.from);
    let answer = stage.wire.hear_within(wait, |segment| mine(segment) && segment.flags == SYN | ACK)?;
    let Some(answer) = answer else { return Ok(false) };
    talker.seq = answer.ack;
    talker.ack = answer.seq.wrapping_add(1);
    send(&talker.segment(ACK, b""))?;
    Ok(true)
}

/// accept() must return no unjudged connection, with or without a header.
fn is_no_way_past(
    stage: &Stage<'_>,
    mut talker: Talker<'_>,
    send: impl Fn(&Segment) -> Result<()>,
) -> Result<()> {
    if !opens(stage, &mut talker, &send)? {
        return stage.nothing_is_accepted();
    }
    stage.nothing_is_accepted().context("without a header")?;
    send(&talker.data(&[header(CLIENT), b"DATA1".to_vec()].concat()))?;
    // Judged or refused. (A connection that was cut may be returned, but delivers nothing.)
    match stage.accept_within(std::time::Duration::from_millis(150))? {
        None => Ok(()),
        Some(mut accepted) => {
            ensure!(accepted.client.to_string() == CLIENT, "{} was accepted", accepted.client);
            accepted.brings(b"DATA1")
        }
    }
}

fn a_priority_tag_bypasses_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for (n, tags) in priorities().into_iter().enumerate() {
        for v6 in [false, true] {
            let talker = stage.talker(v6, 4000 + 2 * u16::try_from(n)? + u16::from(v6));
            is_no_way_past(&stage, talker, |segment| {
                stage.wire.send_frame(&Wire::frame(&segment.packet(), &tags))
            })
            .with_context(|| format!("{tags:x?}, IPv6: {v6}"))?;
        }
    }
    Ok(())
}

/// A switch may add such a tag to some frames only.
fn a_priority_tag_changes_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for v6 in [false, true] {
        let mut talker = stage.talker(v6, 4000 + u16::from(v6));
        talker.open()?;
        let data = [header(CLIENT), b"DATA1".to_vec()].concat();
        let tag = Tag { ethertype: QUEUE, id: 0 };
        stage.wire.send_frame(&Wire::frame(&talker.data(&data).packet(), &[tag]))?;
        talker.seq = talker.seq.wrapping_add(u32::try_from(data.len())?);
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        crate::kit::is_closed(&mut talker, stream)?;
    }
    Ok(())
}

/// Its neighbours give it an address: the kernel answers for each of its addresses on each device.
fn a_device_without_an_address_bypasses_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let other = stage.wire.another_device("other")?;
    stage.attach(&["--port", "80", "--allow", "any"])?;
    for v6 in [false, true] {
        is_no_way_past(&stage, stage.talker(v6, 4000 + u16::from(v6)), |segment| {
            Ok(other.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &segment.packet(), &[]))?)
        })
        .with_context(|| format!("IPv6: {v6}"))?;
    }
    Ok(())
}

/// There is no device for that VLAN: the kernel drops the frame, and nothing is learnt from it.
fn a_frame_of_an_unknown_vlan_teaches_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for v6 in [false, true] {
        let mut talker = stage.talker(v6, 4000 + u16::from(v6));
        for tags in [
            vec![Tag { ethertype: QUEUE, id: 7 }],
            vec![Tag { ethertype: QUEUE, id: 0 }, Tag { ethertype: QUEUE, id: 7 }],
        ] {
            let opened = opens(&stage, &mut talker, |segment| {
                stage.wire.send_frame(&Wire::frame(&segment.packet(), &tags))
            })?;
            ensure!(!opened, "{tags:x?}");
        }
        talker.seq = talker.isn;
        talker.open()?;
        crate::kit::is_served(&stage, &mut talker)?;
    }
    Ok(())
}

/// Another port that the host's firewall redirects to the attached one, behind the programs.
fn a_redirected_port_bypasses_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    let rules = "table inet t { chain c { type nat hook prerouting priority dstnat; tcp dport 8080 redirect to :80; }; }";
    stage.run("nft", &[rules])?;
    for v6 in [false, true] {
        let mut talker = stage.talker(v6, 4000 + u16::from(v6));
        talker.to.set_port(8080);
        stage.wire.forget()?;
        is_no_way_past(&stage, talker, |segment| stage.wire.send(&segment.packet()))
            .with_context(|| format!("IPv6: {v6}"))?;
        let mut talker = stage.talker(v6, 4010 + u16::from(v6));
        talker.to.set_port(8080);
        without_a_header(&stage, talker)?;
    }
    Ok(())
}

/// A server that sends after it has read something is not reached either.
fn without_a_header(stage: &Stage<'_>, mut talker: Talker<'_>) -> Result<()> {
    if !opens(stage, &mut talker, |segment| stage.wire.send(&segment.packet()))? {
        return Ok(());
    }
    talker.send(&talker.segment(ACK | PSH, b"GET / HTTP/1.0\r\n\r\n"))?;
    stage.nothing_is_accepted()
}
