//! Our two sockets, and what the programs know of their flow.

use std::net::SocketAddr;

use truepeer_bpf::test::splice::FaceState;
use truepeer_bpf::{Ended, Stage};
use truepeer_splice::{Connections, Mapping, Pending};
use truepeer_sys::CallError;
use truepeer_sys::repair::Received;
use truepeer_testbed::packets::{ACK, RST, SYN, Segment, timestamps};

use crate::model::{SAID, TOLD, TS_SHIFT, compare_clocks};
use crate::tcp::{Tcp, end_of, is_before};

const CLOCK: u32 = 0x04;
const HELD: u32 = 0x10;
const FIN_SAID: u32 = 0x20;
const FIN_TAKEN: u32 = 0x40;
const CUT: u32 = 0x100;

/// Milliseconds. No program that saw an older stage is still under way after it.
const GRACE: u64 = 10;

#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) stage: Stage,
    pub(crate) faces: [FaceState; 2],
    pub(crate) tuples: [(SocketAddr, SocketAddr); 2],
    pub(crate) sockets: [Tcp; 2],
    pub(crate) is_offloaded: bool,
    /// The relay has reset both.
    pub(crate) is_dead: bool,
    pub(crate) now: u64,
    grace: u64,
}

impl Programs {
    pub(crate) fn new(
        sockets: [Tcp; 2],
        faces: [FaceState; 2],
        tuples: [(SocketAddr, SocketAddr); 2],
    ) -> Programs {
        Programs {
            stage: Stage::Free,
            faces,
            tuples,
            sockets,
            is_offloaded: false,
            is_dead: false,
            now: 0,
            grace: 0,
        }
    }

    pub(crate) fn tick(&mut self, now: u64) {
        self.now = now;
        self.sockets.iter_mut().for_each(|socket| socket.now = now);
    }

    pub(crate) fn reach_socket(
        &mut self,
        side: usize,
        now: u64,
        segment: &Segment,
        replies: &mut Vec<Segment>,
    ) {
        let mut said = Vec::new();
        if self.is_offloaded {
            // The kernel doesn't know the connection, and splice_out drops its resets.
            return;
        }
        let socket = &mut self.sockets[side];
        if socket.is_reset {
            // A reset of no socket: if the flow is forgotten, splice_out lets it pass.
            replies.extend(socket.unknown(segment));
            return;
        }
        socket.on(now, segment, &mut said);
        self.say(side, said, replies);
    }

    pub(crate) fn go_on(&mut self, now: u64, replies: &mut [Vec<Segment>; 2]) {
        for (side, out) in replies.iter_mut().enumerate() {
            let mut said = Vec::new();
            self.sockets[side].go_on(now, &mut said);
            self.say(side, said, out);
        }
    }

    /// The length of the peer's stream, as the table has it.
    pub(crate) fn stream_bytes(&self, side: usize) -> u64 {
        let face = &self.faces[side];
        let has_end = face.known & FIN_SAID != 0 && face.fin == face.end_number();
        face.end - u64::from(face.first) - u64::from(has_end)
    }

    /// A connection broke: both are reset.
    pub(crate) fn die(&mut self, replies: &mut [Vec<Segment>; 2]) {
        for (side, out) in replies.iter_mut().enumerate() {
            let reset = self.sockets[side].reset();
            self.say(side, vec![reset], out);
        }
        (self.stage, self.is_dead) = (Stage::Free, true);
    }

    pub(crate) fn say(&mut self, side: usize, said: Vec<Segment>, out: &mut Vec<Segment>) {
        for segment in said {
            let segment = self.tell(side, segment);
            out.push(segment);
        }
    }

    /// splice_out.
    fn tell(&mut self, side: usize, mut segment: Segment) -> Segment {
        let (stage, milliseconds) = (self.stage, u32::try_from(self.now).expect("a session's time"));
        let [down, up] = &mut self.faces;
        let (face, other) = if side == 0 { (down, up) } else { (up, down) };
        if segment.flags & RST != 0 {
            if face.known & CUT != 0 && is_before(segment.seq, face.nxt) {
                segment.seq = face.nxt;
            }
            return segment;
        }
        if matches!(stage, Stage::Free | Stage::Gone) || segment.flags & (SYN | ACK) != ACK {
            return segment;
        }
        let stamps = segment.timestamps();
        if let Some((value, _)) = stamps {
            if face.known & CLOCK == 0 {
                (face.tsval, face.clock) = (value, value.wrapping_sub(milliseconds));
                face.known |= CLOCK;
                compare_clocks(other, face);
            }
            if is_before(face.tsval, value) {
                face.tsval = value;
            }
        }
        let reach = |ack: u32, edge: u32| if is_before(ack, edge) { edge.wrapping_sub(ack) } else { 0 };
        let far_edge = other.said_edge.wrapping_sub(face.shift);
        let (mut ack, mut window) = (segment.ack, u32::from(segment.window) << face.own_scale);
        let end = end_of(&segment);
        let (was, is_raised) = (window, stage != Stage::Armed && other.known & SAID != 0);
        if is_raised {
            if is_before(ack, face.ack) {
                ack = face.ack;
            }
            window = reach(ack, far_edge);
        } else if face.known & HELD != 0 && other.known & SAID != 0 {
            let (step, noticed) = (1_u32 << face.own_scale, 1_u32 << face.peer_scale);
            let told = if face.known & TOLD != 0 { face.edge } else { ack };
            let edge = if is_before(far_edge, told) { told } else { far_edge };
            if is_before(edge, ack.wrapping_add(window)) {
                let held = reach(ack, edge) & !(step - 1);
                let is_taken_back = is_before(ack.wrapping_add(held).wrapping_add(noticed - 1), told);
                window = if is_taken_back { held + step } else { held };
            }
        }
        if is_raised || window != was {
            if let Some((_, echo)) = stamps.filter(|(value, _)| is_before(*value, face.tsval)) {
                segment.options = timestamps(face.tsval, echo);
            }
            segment.ack = ack;
            segment.window = u16::try_from((window >> face.own_scale).min(65535)).expect("16 bits");
        }
        let edge = ack.wrapping_add(window);
        if face.known & TOLD == 0 {
            (face.own_nxt, face.nxt, face.ack, face.edge) = (end, end, ack, edge);
            face.known |= TOLD;
        } else {
            for (word, newest) in
                [(&mut face.own_nxt, end), (&mut face.nxt, end), (&mut face.ack, ack), (&mut face.edge, edge)]
            {
                if is_before(*word, newest) {
                    *word = newest;
                }
            }
        }
        segment
    }

    pub(crate) fn connections<'p>(&'p mut self, replies: &'p mut [Vec<Segment>; 2]) -> impl Connections + 'p {
        Turned { programs: self, replies }
    }

    fn advance(&mut self, from: Stage, to: Stage) -> bool {
        let moves = self.stage == from;
        if moves {
            self.stage = to;
        }
        moves
    }
}

struct Turned<'p> {
    programs: &'p mut Programs,
    replies: &'p mut [Vec<Segment>; 2],
}

impl Connections for Turned<'_> {
    fn can_repair(&self) -> bool {
        true
    }

    fn fall_silent(&mut self) -> bool {
        true
    }

    fn has_ended(&mut self) -> bool {
        false
    }

    fn is_heard(&self, side: usize) -> bool {
        let face = &self.programs.faces[side];
        let wanted = TOLD | SAID | if face.has_timestamps { TS_SHIFT } else { 0 };
        face.known & wanted == wanted
    }

    fn scales_fit(&self) -> bool {
        let faces = &self.programs.faces;
        [0, 1].into_iter().all(|side: usize| faces[1 - side].max_window >= 4 << faces[side].own_scale)
    }

    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError> {
        let socket = &self.programs.sockets[side];
        Ok((!socket.has_unsent()).then_some(socket.nxt))
    }

    fn received(&mut self, side: usize) -> Result<Received, CallError> {
        let socket = &self.programs.sockets[side];
        Ok(Received { next: socket.rcv, unread: u32::try_from(socket.unread()).expect("small") })
    }

    fn is_established(&mut self, side: usize) -> Result<bool, CallError> {
        let socket = &self.programs.sockets[side];
        Ok(!socket.has_end && !socket.is_shut && !socket.is_reset)
    }

    fn pending_bytes(&mut self, side: usize) -> Result<Pending, CallError> {
        let socket = &self.programs.sockets[side];
        Ok(Pending { unread: socket.unread() as u64, unacknowledged: socket.unacknowledged() as u64 })
    }

    fn has_acknowledged(&self, side: usize, number: u32) -> bool {
        let face = &self.programs.faces[side];
        face.known & SAID != 0 && !is_before(face.una, number)
    }

    fn hold(&mut self, mapping: &Mapping) {
        for (face, shift) in self.programs.faces.iter_mut().zip(mapping.shifts) {
            face.shift = shift;
            face.known |= HELD;
        }
    }

    fn offers_fit(&self) -> bool {
        [0, 1].into_iter().all(|side: usize| {
            let (face, other) = (&self.programs.faces[side], &self.programs.faces[1 - side]);
            !is_before(other.said_edge.wrapping_sub(face.shift), face.edge)
        })
    }

    fn reset_when_closed(&mut self) {}

    fn cut(&mut self, mapping: &Mapping, bytes: [u64; 2]) {
        for ((face, cut), bytes) in self.programs.faces.iter_mut().zip(mapping.cuts).zip(bytes) {
            let end = face.end_number();
            face.cut = if is_before(cut, end) { end } else { cut };
            face.kept = cut;
            // The sessions are short, so no wrap is counted before the cut.
            face.first = cut.wrapping_sub(u32::try_from(bytes).expect("short"));
            face.end = u64::from(face.first) + bytes;
            face.raise_end(end);
            face.known |= CUT;
        }
        self.programs.stage = Stage::Tail;
    }

    fn ask_peers(&mut self) {
        for side in 0..2 {
            let probe = self.programs.sockets[side].probe();
            self.programs.say(side, vec![probe], &mut self.replies[side]);
        }
    }

    fn keep(&mut self, side: usize, next: u32) {
        let face = &mut self.programs.faces[side];
        if is_before(face.kept, next) {
            face.kept = next;
        }
        face.raise_end(next);
    }

    fn all_is_delivered(&mut self, ended: Ended) -> bool {
        for (face, _) in self.programs.faces.iter_mut().zip(ended).filter(|(_, has_ended)| *has_ended) {
            face.fin = face.kept;
            face.known |= FIN_SAID | FIN_TAKEN;
        }
        let moved = self.programs.advance(Stage::Tail, Stage::Spliced);
        if self.programs.faces.iter().all(|face| face.known & FIN_TAKEN != 0) {
            self.programs.advance(Stage::Spliced, Stage::Closing);
        }
        moved
    }

    fn back_to_tail(&mut self) -> bool {
        self.programs.advance(Stage::Spliced, Stage::Tail)
    }

    fn ask_for_grace(&mut self) {
        self.programs.grace = self.programs.now + GRACE;
    }

    fn is_grace_over(&self) -> bool {
        self.programs.now > self.programs.grace
    }
}
