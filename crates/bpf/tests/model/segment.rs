//! The model's view of a segment, parsed from a frame without the programs' code.

use truepeer_testbed::packets::{Packet, Segment as Whole};

pub(crate) use truepeer_testbed::packets::{ACK, FIN, RST, SYN};

const LINK_HEADER: usize = 14;

/// A segment, as far as it matters.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
    pub(crate) timestamps: Option<(u32, u32)>,
    /// With TCP-MD5 or TCP-AO.
    pub(crate) is_signed: bool,
    /// All its sums are right.
    pub(crate) is_intact: bool,
    pub(crate) is_ipv6: bool,
}

/// The frame in which a test run passes a packet.
pub(crate) fn frame(packet: &Packet) -> Vec<u8> {
    let kind: [u8; 2] = if packet.is_ipv6() { [0x86, 0xdd] } else { [0x08, 0x00] };
    [[0; 12].as_slice(), &kind, packet.bytes()].concat()
}

impl Segment {
    /// `None`: the kernel would drop it before a socket lookup, so the programs pass it on.
    pub(crate) fn read(frame: &[u8]) -> Option<Segment> {
        let ip = frame.get(LINK_HEADER..)?;
        let is_ipv6 = frame[12] == 0x86;
        let version = ip.first()? >> 4;
        if version != if is_ipv6 { 6 } else { 4 } || (!is_ipv6 && (ip[0] & 0x0f < 5 || ip[6] & 0x3f != 0)) {
            return None;
        }
        let whole = Whole::parse(ip)?;
        Some(Segment {
            seq: whole.seq,
            ack: whole.ack,
            flags: whole.flags,
            timestamps: whole.timestamps(),
            is_signed: whole.option(19).is_some() || whole.option(29).is_some(),
            is_intact: Packet::of(ip).has_right_sums(),
            payload: whole.payload,
            is_ipv6,
        })
    }
}
