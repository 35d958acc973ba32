//! Flows and segments, made up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::test::splice::{FaceState, Outcome};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, FIN, PSH, Packet, RST, SYN, Segment};

use crate::model::{Fate, LOOPBACK, Model, RESET, SAID, TOLD, TS_SHIFT};

const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

type Tuples = [(SocketAddr, SocketAddr); 2];

const fn v4(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, last / 10, last)), port)
}

const fn v6(last: u16, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd77, last / 10, 0, 0, 0, 0, 0, last)), port)
}

/// Peer and own address, downstream and upstream.
pub(crate) const TUPLES4: Tuples = [(v4(1, 5001), v4(2, 443)), (v4(12, 80), v4(11, 6001))];
pub(crate) const TUPLES6: Tuples = [(v6(1, 5001), v6(2, 443)), (v6(12, 80), v6(11, 6001))];

/// A device that the test makes, with this address.
pub(crate) const DEVICE: u32 = 3;
pub(crate) const LINK_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 3];

pub(crate) const LINK_HEADER: usize = 14;

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) stage: Stage,
    pub(crate) faces: [FaceState; 2],
    pub(crate) side: usize,
    /// By which it comes in: nearly always by the one by which the peer is reached.
    pub(crate) device: u32,
    pub(crate) is_ipv6: bool,
    pub(crate) is_copy: bool,
    pub(crate) segment: Segment,
    /// A bit of the payload or of the sum that is another.
    pub(crate) damage: Option<usize>,
}

impl Case {
    pub(crate) fn make(chance: &mut Chance) -> Case {
        let is_ipv6 = chance.below(2) == 1;
        let side = chance.below(2);
        let mut faces = [face(chance), face(chance)];
        let stages = [
            Stage::Armed,
            Stage::Tail,
            Stage::Tail,
            Stage::Spliced,
            Stage::Spliced,
            Stage::Closing,
            Stage::Dead,
        ];
        let stage = chance.one_of(&stages);
        let (peer, own) = if is_ipv6 { TUPLES6[side] } else { TUPLES4[side] };
        let face = faces[side];
        let flags =
            chance.one_of(&[ACK, ACK, ACK | PSH, ACK | PSH, ACK | FIN, RST, RST | ACK, SYN, SYN | ACK, 0]);
        let len = chance.one_of(&[0, 0, 1, 7, 100, 1000]);
        let about = |chance: &mut Chance, numbers: &[u32]| {
            let number = chance.one_of(numbers);
            let off = u32::try_from(chance.below(4000)).expect("small");
            match chance.below(4) {
                0 => number.wrapping_add(off),
                1 => number.wrapping_sub(off),
                _ => number,
            }
        };
        let seq =
            about(chance, &[face.ack, face.ack.wrapping_sub(1), face.edge, face.end_number(), face.kept]);
        let ack = about(chance, &[face.nxt, face.una, face.own_nxt]);
        let window = u16::try_from(chance.next() >> 48).expect("16 bits") >> chance.below(16);
        let (payload, options) = (chance.bytes(len), options(chance));
        let segment = Segment { seq, ack, flags, window, options, payload, ..Segment::new(peer, own) };
        let is_copy = chance.below(8) == 0;
        let damage = (!is_copy && chance.below(6) == 0).then(|| chance.below(1 << 16));
        let other_device = LOOPBACK + DEVICE - faces[side].device;
        let device = if chance.below(16) == 0 { other_device } else { faces[side].device };
        if stage == Stage::Dead {
            faces[chance.below(2)].known |= RESET;
        }
        Case { stage, faces, side, device, is_ipv6, is_copy, segment, damage }
    }

    pub(crate) fn tuples(&self) -> Tuples {
        if self.is_ipv6 { TUPLES6 } else { TUPLES4 }
    }

    pub(crate) fn tuple(&self) -> (SocketAddr, SocketAddr) {
        self.tuples()[self.side]
    }

    pub(crate) fn model(&self) -> Model {
        Model {
            stage: self.stage,
            faces: self.faces,
            side: self.side,
            device: self.device,
            tuples: self.tuples(),
            milliseconds: None,
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        self.damage.is_none()
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let packet = self.segment.packet();
        let mut frame = frame_by(self.device, &packet);
        if let Some(place) = self.damage {
            // The payload, or the sum where there is none: everything else is validated, too.
            let tcp = LINK_HEADER + packet.payload_at();
            let len = self.segment.payload.len();
            let at = if len > 0 { frame.len() - 1 - place / 8 % len } else { tcp + 16 + place / 8 % 2 };
            frame[at] ^= 1 << (place % 8);
        }
        frame
    }

    /// Whether the program did this with the frame.
    pub(crate) fn had(&self, fate: &Fate, frame: &[u8], outcome: &Outcome) -> Result<()> {
        let verdict = outcome.verdict;
        match fate {
            Fate::Passes(_) | Fate::MadeRoom => {
                ensure!(verdict == PASS && outcome.frame == frame, "{verdict}, {:?}", outcome.frame);
            }
            Fate::Dropped(_) => ensure!(verdict == DROP, "{verdict}"),
            Fate::Asked => {
                ensure!(verdict == if self.device == LOOPBACK { PASS } else { REDIRECT }, "{verdict}");
                let face = &self.faces[self.side];
                let (peer, own) = self.tuple();
                let reach = face.edge.wrapping_sub(face.ack);
                let window = if reach.cast_signed() < 0 { 0 } else { reach >> face.own_scale };
                let question = Segment {
                    seq: face.nxt,
                    ack: face.ack,
                    flags: ACK,
                    window: u16::try_from(window).unwrap_or(u16::MAX),
                    ..Segment::new(own, peer)
                };
                self.is_frame_of(&question, &outcome.frame, true)?;
            }
            Fate::BecomesForSocket(name, segment) => {
                ensure!(verdict == PASS, "{verdict}");
                // Only copies of intact segments are made.
                self.is_frame_of(segment, &outcome.frame, *name == "copy" || self.is_intact())?;
            }
            Fate::Translated(_, segment) => {
                ensure!(verdict == REDIRECT, "{verdict}");
                self.is_frame_of(segment, &outcome.frame, self.is_intact())?;
            }
        }
        Ok(())
    }

    /// The frame holds this segment; its sums are right, or as wrong as they were.
    fn is_frame_of(&self, wanted: &Segment, frame: &[u8], is_right: bool) -> Result<()> {
        let packet = frame.get(LINK_HEADER..).context("an empty frame")?;
        let found = Segment::parse(packet).context("no segment")?;
        let mut wanted = wanted.clone();
        wanted.options.resize(wanted.options.len().next_multiple_of(4), 0);
        if self.damage.is_some() && !wanted.payload.is_empty() {
            wanted.payload.clone_from(&found.payload);
        }
        ensure!(found == wanted, "{found:?}\nnot {wanted:?}");
        let sums = Packet::of(packet).has_right_sums();
        ensure!(sums == is_right, "its sums are {}", if sums { "right" } else { "wrong" });
        Ok(())
    }
}

/// As it comes in by a device.
pub(crate) fn frame_by(device: u32, packet: &Packet) -> Vec<u8> {
    let to = if device == LOOPBACK { [0; 6] } else { LINK_ADDRESS };
    let kind: [u8; 2] = if packet.is_ipv6() { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&to, [0; 6].as_slice(), &kind, packet.bytes()].concat()
}

pub(crate) fn face(chance: &mut Chance) -> FaceState {
    let number = |chance: &mut Chance| u32::try_from(chance.next() >> 32).expect("32 bits");
    let behind = |chance: &mut Chance, number: u32, most: usize| {
        number.wrapping_add(u32::try_from(chance.below(most)).expect("small"))
    };
    let una = number(chance);
    let own_nxt = behind(chance, una, 3000);
    let nxt = behind(chance, own_nxt, 3000);
    let kept = number(chance);
    let ack = behind(chance, kept, 3000);
    let end = behind(chance, ack, 3000);
    let edge = behind(chance, ack, 66_000);
    let max_window = u32::try_from(chance.below(70_000)).expect("small");
    let known =
        TS_SHIFT | if chance.below(20) > 0 { TOLD } else { 0 } | if chance.below(20) > 0 { SAID } else { 0 };
    let said_edge = behind(chance, una, 66_000);
    FaceState {
        shift: number(chance),
        nxt,
        ack,
        edge,
        tsval: number(chance),
        una,
        // Some streams are longer than 4 GiB.
        end: u64::from(end) | (chance.below(3) as u64) << 32,
        first: number(chance),
        max_window,
        said_edge,
        fin: 0,
        kept,
        own_nxt,
        clock: number(chance),
        ts_shift: number(chance),
        device: chance.one_of(&[LOOPBACK, DEVICE]),
        peer_scale: u8::try_from(chance.below(15)).expect("small"),
        own_scale: u8::try_from(chance.below(15)).expect("small"),
        has_timestamps: true,
        known,
        said_clock: 0,
        cut: behind(chance, kept, 3000),
        segments: chance.below(2) as u64,
    }
}

/// In any order, at any place.
fn options(chance: &mut Chance) -> Vec<u8> {
    // As nearly all segments have them: these are translated by a way of their own.
    if chance.below(2) == 0 {
        return [&[1, 1, 8, 10], chance.bytes(8).as_slice()].concat();
    }
    let mut options = Vec::new();
    for kind in 0..chance.below(5) {
        let option = match chance.below(4) {
            0 if !options.contains(&8) => [&[8, 10], chance.bytes(8).as_slice()].concat(),
            1 if !options.contains(&5) => {
                let blocks = 1 + chance.below(3);
                [&[5, u8::try_from(2 + 8 * blocks).expect("small")], chance.bytes(8 * blocks).as_slice()]
                    .concat()
            }
            2 => vec![0xfd, 4, 9, u8::try_from(kind).expect("small")],
            _ => vec![1],
        };
        // One of each kind, as far as this cheap look tells; what it takes for one may be a byte of another.
        if options.len() + option.len() <= 40 {
            options.extend(option);
        }
    }
    options
}

impl Fate {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Fate::Passes(name)
            | Fate::Dropped(name)
            | Fate::BecomesForSocket(name, _)
            | Fate::Translated(name, _) => name,
            Fate::Asked => "asked",
            Fate::MadeRoom => "made room",
        }
    }
}
