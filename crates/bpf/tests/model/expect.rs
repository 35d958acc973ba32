//! Compares the packet that a program has produced with the model.

use anyhow::{Context, Result, ensure};
use truepeer_bpf::test::tcp::Made;
use truepeer_testbed::packets::{Packet, Segment as Whole};

use crate::segment::{ACK, FIN, RST, SYN};
use crate::tcp::Fate;

const LINK_HEADER: usize = 14;
const SUM: usize = 16;
const BLOCKS: u8 = 5;
const TIMESTAMPS: u8 = 8;

pub(crate) fn comes_in(frame: &[u8], made: &Made, fate: Fate) -> Result<()> {
    ensure!(made.passes != matches!(fate, Fate::Drop | Fate::SayWhere { .. }), "passes: {}", made.passes);
    let is_copied =
        matches!(fate, Fate::LastAck { is_copied: true, .. } | Fate::Refuse { .. } | Fate::SayWhere { .. });
    ensure!(made.sent.is_some() == is_copied, "sent: {:?}", made.sent);
    match fate {
        Fate::Drop => Ok(()),
        Fate::Pass { by } => is_shifted(frame, &made.packet, 4, by),
        Fate::PassWithoutEcho { by } => is_shifted_without_echo(frame, &made.packet, by),
        Fate::SayWhere { seq, ack } => says_where(frame, made, seq, ack),
        Fate::LastAck { seq, is_echo_blank, replay: (bytes, len), .. } => {
            if let Some((is_in, copy)) = &made.sent {
                ensure!(*is_in && frame.starts_with(copy), "the copy is {copy:02x?}");
            }
            is_last_ack(frame, &made.packet, seq, is_echo_blank, &bytes[..len])
        }
        Fate::Refuse { kernel_seq, shifted_back } => is_refused(frame, made, kernel_seq, shifted_back),
        Fate::Acknowledge { .. } | Fate::GiveUp { .. } => anyhow::bail!("only of what goes out"),
    }
}

pub(crate) fn goes_out(frame: &[u8], made: &Made, fate: Fate) -> Result<()> {
    ensure!(made.passes && made.sent.is_none(), "{made:02x?}");
    match fate {
        Fate::Pass { by } => is_shifted_back(frame, &made.packet, by, None),
        Fate::Acknowledge { by, echo } => is_shifted_back(frame, &made.packet, by, echo),
        Fate::GiveUp { by } => {
            let (before, after) = (read(frame)?, read(&made.packet)?);
            let expected = Whole {
                seq: before.seq.wrapping_add(1),
                ack: before.ack.wrapping_sub(by),
                flags: RST | ACK,
                ..before
            };
            ensure!(after == expected, "{after:?}, not {expected:?}");
            ensure!(ip(&made.packet).has_right_sums(), "its sum is wrong");
            Ok(())
        }
        _ => anyhow::bail!("only what comes in"),
    }
}

/// A number of the TCP header was shifted by this much and the checksum updated: existing damage stays the
/// same.
fn is_shifted(frame: &[u8], packet: &[u8], at: usize, by: u32) -> Result<()> {
    if by == 0 {
        ensure!(frame == packet, "it was changed");
        return Ok(());
    }
    let tcp = LINK_HEADER + ip(frame).payload_at();
    let number = |bytes: &[u8]| bytes.get(tcp + at..tcp + at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let (before, after) = (number(frame).context("a number")?, number(packet).context("a number")?);
    ensure!(
        after == before.wrapping_add(by),
        "{after} is {} more than {before}, not {by}",
        after.wrapping_sub(before)
    );
    let mut expected = frame.to_vec();
    expected[tcp + at..tcp + at + 4].copy_from_slice(&after.to_be_bytes());
    expected[tcp + SUM..tcp + SUM + 2].copy_from_slice(&packet[tcp + SUM..tcp + SUM + 2]);
    ensure!(expected == packet, "more was changed: {packet:02x?}, not {expected:02x?}");
    is_as_damaged(frame, packet)
}

fn is_shifted_without_echo(frame: &[u8], packet: &[u8], by: u32) -> Result<()> {
    let (before, after) = (read(frame)?, read(packet)?);
    let mut expected = Whole { seq: before.seq.wrapping_add(by), ..before };
    let place = place_of(&expected.options, TIMESTAMPS).context("timestamps")?;
    expected.options[place + 6..place + 10].fill(0);
    ensure!(after == expected, "{after:?}, not {expected:?}");
    is_as_damaged(frame, packet)
}

/// The error in the checksum is the same before and after.
fn is_as_damaged(frame: &[u8], packet: &[u8]) -> Result<()> {
    let (before, after) = (residue(frame), residue(packet));
    ensure!(before == after, "its sum was out by {before:#06x}, now by {after:#06x}");
    Ok(())
}

/// The transport's words summed up, including the checksum: in ones' complement there are two zeros.
fn residue(frame: &[u8]) -> u32 {
    let at = LINK_HEADER + ip(frame).payload_at();
    let sum = frame[at..]
        .chunks(2)
        .fold(0u32, |sum, pair| sum + (u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from)));
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    if folded == 0xffff { 0 } else { folded }
}

/// Acknowledgements are shifted back, and so are the edges of SACK blocks. The timestamps may have another
/// echo.
fn is_shifted_back(frame: &[u8], packet: &[u8], by: u32, echo: Option<u32>) -> Result<()> {
    if by == 0 && echo.is_none() {
        ensure!(frame == packet, "it was changed");
        return Ok(());
    }
    let (before, after) = (read(frame)?, read(packet)?);
    let mut expected = Whole { ack: before.ack.wrapping_sub(by), ..before.clone() };
    if before.option(BLOCKS).is_some() {
        let place = place_of(&before.options, BLOCKS).context("the blocks")?;
        let end = place + usize::from(before.options[place + 1]);
        for edge in expected.options[place + 2..end].chunks_exact_mut(4) {
            let number = u32::from_be_bytes([edge[0], edge[1], edge[2], edge[3]]);
            edge.copy_from_slice(&number.wrapping_sub(by).to_be_bytes());
        }
    }
    if let Some(echo) = echo {
        let place = place_of(&expected.options, TIMESTAMPS).context("timestamps")?;
        expected.options[place + 6..place + 10].copy_from_slice(&echo.to_be_bytes());
    }
    // Only a SYN-ACK's own numbers, its SACK blocks and its echo change.
    ensure!(after == expected, "{after:?}, not {expected:?}");
    is_as_damaged(frame, packet)
}

fn is_last_ack(frame: &[u8], packet: &[u8], seq: u32, is_echo_blank: bool, replay: &[u8]) -> Result<()> {
    let (before, after) = (read(frame)?, read(packet)?);
    let mut options = before.options.clone();
    if is_echo_blank {
        let place = place_of(&options, TIMESTAMPS).context("timestamps")?;
        options[place + 6..place + 10].fill(0);
    }
    let flags = before.flags & !(FIN | 0x08 | 0x20);
    let expected = Whole { seq, flags, urgent: 0, options, payload: replay.to_vec(), ..before };
    ensure!(after == expected, "{after:?}, not {expected:?}");
    ensure!(after.flags & SYN == 0, "it begins a connection");
    ensure!(ip(packet).has_right_sums(), "its sums are wrong");
    Ok(())
}

fn says_where(frame: &[u8], made: &Made, seq: u32, ack: u32) -> Result<()> {
    let before = read(frame)?;
    let (is_in, answer) = made.sent.as_ref().context("an answer")?;
    let told = read(answer)?;
    let expected = Whole { seq, ack, flags: ACK, window: u16::MAX, ..Whole::new(before.to, before.from) };
    ensure!(!is_in && told == expected, "{told:?}, not {expected:?}");
    ensure!(ip(answer).has_right_sums(), "its sums are wrong");
    Ok(())
}

fn is_refused(frame: &[u8], made: &Made, kernel_seq: u32, shifted_back: u32) -> Result<()> {
    let before = read(frame)?;
    let reset = read(&made.packet)?;
    let expected = Whole { seq: kernel_seq, flags: RST, window: 0, ..Whole::new(before.from, before.to) };
    ensure!(reset == expected, "{reset:?}, not {expected:?}");
    ensure!(ip(&made.packet).has_right_sums(), "the sums for the kernel are wrong");
    let (is_in, answer) = made.sent.as_ref().context("an answer")?;
    let told = read(answer)?;
    let ends = u32::from(before.flags & FIN != 0) + u32::from(before.flags & SYN != 0);
    let end = before.seq.wrapping_add(u32::try_from(before.payload.len())?).wrapping_add(ends);
    let seq = if before.flags & ACK != 0 { before.ack } else { 0 };
    let ack = end.wrapping_add(shifted_back);
    let expected = Whole { seq, ack, flags: RST | ACK, window: 0, ..Whole::new(before.to, before.from) };
    ensure!(!is_in && told == expected, "{told:?}, not {expected:?}");
    ensure!(ip(answer).has_right_sums(), "the sums for the sender are wrong");
    Ok(())
}

/// Where the option of this kind begins. A search for its bytes could find them inside another option.
fn place_of(options: &[u8], kind: u8) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            0 => return None,
            1 => at += 1,
            found if found == kind => return Some(at),
            _ => at += usize::from(*options.get(at + 1)?).max(2),
        }
    }
}

fn ip(frame: &[u8]) -> Packet {
    Packet::of(frame.get(LINK_HEADER..).unwrap_or_default())
}

fn read(frame: &[u8]) -> Result<Whole> {
    Whole::parse(frame.get(LINK_HEADER..).unwrap_or_default())
        .with_context(|| format!("no segment: {frame:02x?}"))
}
