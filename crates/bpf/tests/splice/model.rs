//! A model of `splice_in`: the rules of docs/internals/splice.md for a segment in a flow, written
//! independently of the program.

use std::net::SocketAddr;

use truepeer_bpf::Stage;
use truepeer_bpf::test::splice::FaceState;
use truepeer_testbed::packets::{ACK, FIN, PSH, RST, SYN, Segment, URG};

/// LOOPBACK_IFINDEX of the kernel.
pub(crate) const LOOPBACK: u32 = 1;

pub(crate) const TOLD: u32 = 0x01;
pub(crate) const SAID: u32 = 0x02;
const CLOCK: u32 = 0x04;
pub(crate) const TS_SHIFT: u32 = 0x08;
const FIN_SAID: u32 = 0x20;
const FIN_TAKEN: u32 = 0x40;
pub(crate) const RESET: u32 = 0x80;
const SAID_CLOCK: u32 = 0x200;
/// A segment that was under way for less does not look old.
const CLOCK_LEAD: u32 = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// To the kernel, as it came.
    Passes(&'static str),
    Dropped(&'static str),
    /// To the kernel, as another segment.
    BecomesForSocket(&'static str, Segment),
    /// From one connection to the other.
    Translated(&'static str, Segment),
    /// Back to the peer: does it mean its SYN?
    Asked,
    MadeRoom,
}

pub(crate) struct Model {
    pub(crate) stage: Stage,
    pub(crate) faces: [FaceState; 2],
    pub(crate) side: usize,
    pub(crate) device: u32,
    /// Peer and own address of each side.
    pub(crate) tuples: [(SocketAddr, SocketAddr); 2],
    /// `None`: the clocks are compared already.
    pub(crate) milliseconds: Option<u32>,
}

/// How far this peer's clock is behind that of the other socket.
pub(crate) fn compare_clocks(face: &mut FaceState, other: &FaceState) {
    if face.known & (TS_SHIFT | SAID_CLOCK) == SAID_CLOCK && other.known & CLOCK != 0 {
        face.ts_shift = other.clock.wrapping_add(CLOCK_LEAD).wrapping_sub(face.said_clock);
        face.known |= TS_SHIFT;
    }
}

pub(crate) fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

fn raise(number: &mut u32, to: u32) {
    if is_before(*number, to) {
        *number = to;
    }
}

fn end_of(segment: &Segment) -> u32 {
    let flags = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
    let len = u32::try_from(segment.payload.len()).expect("a segment");
    segment.seq.wrapping_add(len).wrapping_add(flags)
}

fn is_bare(segment: &Segment) -> bool {
    segment.payload.is_empty() && segment.flags & (SYN | FIN | RST) == 0
}

fn is_late_ack(segment: &Segment, face: &FaceState) -> bool {
    is_bare(segment)
        && face.known & SAID != 0
        && (2..=1 << 14).contains(&face.ack.wrapping_sub(segment.seq))
        && !is_before(segment.ack, face.una)
}

/// Such a segment is dropped: its sender repeats it with a newer acknowledgement.
fn is_ack_too_old(segment: &Segment, face: &FaceState) -> bool {
    segment.flags & ACK != 0
        && face.known & SAID != 0
        && is_before(segment.ack, face.una.wrapping_sub(face.max_window))
}

fn is_taken(segment: &Segment, face: &FaceState) -> bool {
    let oldest = if face.known & SAID != 0 {
        face.una.wrapping_sub(face.max_window)
    } else {
        face.nxt.wrapping_sub(131_070 << (face.peer_scale & 15))
    };
    face.known & TOLD != 0
        && (is_late_ack(segment, face)
            || (!is_before(end_of(segment), face.ack) && !is_before(face.edge, segment.seq)))
        && segment.flags & ACK != 0
        && !is_before(face.nxt, segment.ack)
        && !is_before(segment.ack, oldest)
}

fn is_reset_good(segment: &Segment, face: &FaceState) -> bool {
    let is_behind_its_last = face.known & SAID != 0 && segment.seq == face.end_number();
    face.known & TOLD != 0 && (segment.seq == face.ack || is_behind_its_last)
}

impl Model {
    fn from(&mut self) -> &mut FaceState {
        &mut self.faces[self.side]
    }

    fn to(&mut self) -> &mut FaceState {
        &mut self.faces[1 - self.side]
    }

    pub(crate) fn comes_in(&mut self, segment: &Segment, is_intact: bool, is_copy: bool) -> Fate {
        let has = |flag: u8| segment.flags & flag != 0;
        let from = *self.from();
        if (from.device == LOOPBACK) != (self.device == LOOPBACK) {
            return Fate::Passes("by another way");
        }
        match self.stage {
            Stage::Armed => {
                if !has(SYN | RST) && is_taken(segment, self.from()) && is_intact {
                    self.learn(segment);
                }
                Fate::Passes("armed")
            }
            Stage::Tail if is_copy => Fate::BecomesForSocket("copy", self.copy_of(segment)),
            Stage::Tail if has(RST) && !is_reset_good(segment, &from) => Fate::Dropped("reset dropped"),
            Stage::Tail if has(RST) && !is_intact => Fate::Dropped("damaged"),
            Stage::Tail if has(RST) => {
                let reset = Segment { seq: self.from().kept, ..segment.clone() };
                Fate::BecomesForSocket("reset in tail", reset)
            }
            Stage::Tail if has(SYN) => Fate::Passes("syn in tail"),
            Stage::Tail if is_before(segment.seq, from.kept) && !is_late_ack(segment, &from) => {
                if is_before(self.from().kept, end_of(segment)) && is_taken(segment, self.from()) && is_intact
                {
                    raise(&mut self.from().kept, end_of(segment));
                    self.from().raise_end(end_of(segment));
                }
                Fate::Passes("kept")
            }
            Stage::Tail if is_ack_too_old(segment, &from) => Fate::Dropped("ack too old"),
            Stage::Tail => {
                let is_good = is_taken(segment, self.from()) && is_intact;
                if is_good {
                    self.learn(segment);
                    self.note_ends(segment);
                }
                let translated = self.translated(segment, true, is_good);
                Fate::Translated(if is_good { "copied" } else { "not copied" }, translated)
            }
            Stage::Spliced | Stage::Closing | Stage::Dead => self.after_the_tail(segment, is_intact, is_copy),
            Stage::Free | Stage::Gone => Fate::Passes("nobody's"),
        }
    }

    fn after_the_tail(&mut self, segment: &Segment, is_intact: bool, is_copy: bool) -> Fate {
        let has = |flag: u8| segment.flags & flag != 0;
        let newest = self.to().tsval.wrapping_sub(self.from().ts_shift);
        let clock = segment.timestamps().filter(|_| self.from().known & TS_SHIFT != 0);
        let is_new = match clock {
            Some((value, _)) if value != newest => is_before(newest, value),
            _ => is_before(self.from().end_number(), segment.seq),
        };
        let is_new = is_new && segment.flags & (SYN | ACK | RST) == SYN && self.from().known & SAID != 0;
        if has(SYN) && self.stage != Stage::Spliced && is_new && is_intact {
            self.stage = Stage::Gone;
            return Fate::MadeRoom;
        }
        if has(SYN) && self.from().known & TOLD == 0 {
            return Fate::Dropped("syn dropped");
        }
        if has(SYN) {
            return if is_intact { Fate::Asked } else { Fate::Dropped("damaged") };
        }
        if is_copy {
            return Fate::Dropped("stale copy");
        }
        if has(RST) {
            if is_reset_good(segment, self.from()) {
                if !is_intact {
                    return Fate::Dropped("damaged");
                }
                if self.stage == Stage::Spliced {
                    self.from().known |= RESET;
                    self.stage = Stage::Dead;
                }
            }
            return Fate::Translated("translated", self.translated(segment, false, false));
        }
        if is_ack_too_old(segment, self.from()) {
            return Fate::Dropped("ack too old");
        }
        let is_good = is_taken(segment, self.from());
        if is_good && !is_intact {
            return Fate::Dropped("damaged");
        }
        if is_good {
            self.learn(segment);
            self.note_ends(segment);
            if self.stage == Stage::Dead {
                self.stage = Stage::Spliced;
                self.faces.iter_mut().for_each(|face| face.known &= !RESET);
            }
        }
        Fate::Translated("translated", self.translated(segment, false, is_good))
    }

    fn learn(&mut self, segment: &Segment) {
        let window = u32::from(segment.window) << self.from().peer_scale;
        let (milliseconds, other) = (self.milliseconds, *self.to());
        let face = self.from();
        if let Some(now) = milliseconds.filter(|_| face.has_timestamps && face.known & TS_SHIFT == 0) {
            if let Some((value, _)) = segment.timestamps().filter(|_| face.known & SAID_CLOCK == 0) {
                face.said_clock = value.wrapping_sub(now);
                face.known |= SAID_CLOCK;
            }
            compare_clocks(face, &other);
        }
        if face.known & SAID == 0 {
            (face.una, face.end, face.max_window) = (segment.ack, end_of(segment).into(), window);
            face.said_edge = segment.ack.wrapping_add(window);
            face.known |= SAID;
            return;
        }
        raise(&mut face.una, segment.ack);
        raise(&mut face.said_edge, segment.ack.wrapping_add(window));
        face.raise_end(end_of(segment));
        face.max_window = face.max_window.max(window);
    }

    fn note_ends(&mut self, segment: &Segment) {
        if segment.flags & FIN != 0 {
            self.from().fin = end_of(segment);
            self.from().known |= FIN_SAID;
        }
        let to = self.to();
        if to.known & FIN_SAID != 0 && segment.ack.wrapping_sub(to.shift) == to.fin {
            to.known |= FIN_TAKEN;
        }
        if self.faces[0].known & self.faces[1].known & FIN_TAKEN != 0 && self.stage == Stage::Spliced {
            self.stage = Stage::Closing;
        }
    }

    fn copy_of(&mut self, segment: &Segment) -> Segment {
        let face = self.from();
        Segment {
            seq: if is_before(face.kept, face.cut) && face.segments & 1 == 1 { face.cut } else { face.kept },
            ack: if is_before(face.own_nxt, segment.ack) { face.own_nxt } else { segment.ack },
            flags: segment.flags & !(FIN | PSH | URG),
            urgent: 0,
            payload: Vec::new(),
            ..segment.clone()
        }
    }

    fn translated(&mut self, segment: &Segment, is_tail: bool, is_good: bool) -> Segment {
        self.from().segments += u64::from(segment.flags & RST == 0);
        let (from, side, tuples) = (*self.from(), self.side, self.tuples);
        let to = self.to();
        let mut ack = segment.ack.wrapping_sub(to.shift);
        let mut window = u32::from(segment.window) << from.peer_scale;
        let mut seq = segment.seq.wrapping_add(from.shift);
        let edge = segment.ack.wrapping_add(window);
        let is_overtaken = !is_before(from.said_edge, edge.wrapping_add(1 << from.peer_scale));
        if to.known & SAID != 0 && is_before(seq, to.una) && is_late_ack(segment, &from) && !is_overtaken {
            seq = to.una;
        }
        if is_tail && is_good && is_before(ack, to.ack) {
            window = window.saturating_sub(to.ack.wrapping_sub(ack));
            ack = to.ack;
        }
        let has_ack = segment.flags & ACK != 0;
        let (options, tsval) = options(&segment.options, &from, to, has_ack, is_good);
        if let (true, Some(tsval)) = (is_good, tsval) {
            raise(&mut to.tsval, tsval);
        }
        if is_good {
            let end = end_of(segment).wrapping_add(from.shift);
            let edge = ack.wrapping_add(window);
            if to.known & TOLD == 0 {
                (to.nxt, to.ack, to.edge) = (end, ack, edge);
            } else {
                raise(&mut to.nxt, end);
                raise(&mut to.ack, ack);
                raise(&mut to.edge, edge);
            }
            to.known |= TOLD;
        }
        let (peer, own) = tuples[1 - side];
        Segment {
            from: own,
            to: peer,
            seq,
            ack: if has_ack { ack } else { segment.ack },
            flags: segment.flags,
            window: u16::try_from(window >> to.own_scale).unwrap_or(u16::MAX),
            urgent: segment.urgent,
            options,
            payload: segment.payload.clone(),
        }
    }
}

/// The options as they go on, and the timestamp that they then hold.
fn options(
    options: &[u8],
    from: &FaceState,
    to: &FaceState,
    has_ack: bool,
    is_good: bool,
) -> (Vec<u8>, Option<u32>) {
    let (mut out, mut tsval) = (options.to_vec(), None);
    let mut at = 0;
    let add = |out: &mut Vec<u8>, at: usize, add: u32| {
        let word = u32::from_be_bytes(out[at..at + 4].try_into().expect("four bytes")).wrapping_add(add);
        out[at..at + 4].copy_from_slice(&word.to_be_bytes());
        word
    };
    while at < out.len() && out[at] != 0 {
        if out[at] == 1 {
            at += 1;
            continue;
        }
        let len = usize::from(out[at + 1]);
        match out[at] {
            8 => {
                let value = add(&mut out, at + 2, from.ts_shift);
                if is_good && is_before(value, to.tsval) {
                    out[at + 2..at + 6].copy_from_slice(&to.tsval.to_be_bytes());
                }
                tsval = Some(value);
                if has_ack {
                    add(&mut out, at + 6, to.ts_shift.wrapping_neg());
                }
            }
            5 => {
                for edge in (at + 2..at + len).step_by(4) {
                    add(&mut out, edge, to.shift.wrapping_neg());
                }
            }
            _ => {}
        }
        at += len;
    }
    (out, tsval)
}
