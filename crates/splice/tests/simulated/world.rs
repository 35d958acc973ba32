//! A sender, a backend, our two sockets, and the programs between them, in made up time.
//!
//! ```text
//!  sender ══ link ══ splice_in/out ── downstream socket ─ relay ─ upstream socket ── splice_out/in ══ link ══ backend
//! ```

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use truepeer_bpf::Stage;
use truepeer_bpf::test::splice::FaceState;
use truepeer_splice::{Handover, Position, Progress, Streams, Turn};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::Segment;

use crate::model::{Fate, LOOPBACK, Model};
use crate::relay::Programs;
use crate::tcp::{Agreed, Clock, Tcp};

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Both ends write, and read at their own pace, to the end.
    Orderly,
    /// One end resets the connection on its way.
    Reset,
}

/// How a session ended for the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It was handed over.
    UserSpace,
    /// It ended before that, or stayed for a reason.
    Not,
}

/// Milliseconds after which a session that has not ended hangs.
const STALL: u64 = 60_000;

enum Event {
    /// From the peer of this side: at the relay's device.
    In(Segment),
    /// A copy for the socket of this side comes in once more.
    Copy(Segment),
    ToSocket(Segment),
    ToPeer(Segment),
}

/// Which of 1000 segments suffer what.
struct Link {
    lost: usize,
    doubled: usize,
    late: usize,
    delay: u64,
}

struct End {
    tcp: Tcp,
    to_write: usize,
    written: usize,
    expected: usize,
    read: usize,
    /// In a step of a millisecond, at most.
    pace: [usize; 2],
    has_read_end: bool,
}

pub(crate) struct World {
    now: u64,
    count: u64,
    /// By their time, and in the order in which they were made.
    events: BTreeMap<(u64, u64), (usize, Event)>,
    chance: Chance,
    links: [Link; 2],
    ends: [End; 2],
    pub(crate) programs: Programs,
    handover: Option<Handover>,
    is_armed: bool,
    stays: bool,
    held: [Vec<u8>; 2],
    streams: Streams,
    hold: Option<usize>,
    begin_after: u64,
    reset_at: Option<(u64, usize)>,
    /// The relay has no time for the hand-over until then, because it waits for the keeper or has other
    /// sessions.
    busy_until: u64,
    busy: Option<Chance>,
}

/// Further properties that connections may have: timestamps, also of slow clocks, tiny windows, any scale.
struct Mixture {
    chance: Chance,
    has_timestamps: bool,
}

impl Mixture {
    fn new(seed: u64) -> Mixture {
        let mut chance = Chance::new(seed ^ 1 << 63);
        Mixture { has_timestamps: chance.below(3) > 0, chance }
    }

    /// Of the peer and our socket: how much they take, their scales, their clocks. Ours is Linux's.
    fn agreed(&mut self, side: usize, rooms: [usize; 2]) -> ([usize; 2], [u8; 2], Option<[Clock; 2]>) {
        let chance = &mut self.chance;
        let peers = if chance.below(4) == 0 { 600 << side } else { rooms[0] };
        let rooms = [peers, rooms[1]];
        let scales = rooms.map(|room: usize| {
            // A host's own windows are some steps wide.
            let most = (room / 4).ilog2().min(14) as usize;
            u8::try_from(chance.below(most + 1).min(chance.below(most + 1))).expect("small")
        });
        let steps = [chance.one_of(&[1, 1, 4, 10]), 1];
        let clocks =
            steps.map(|step| Clock { first: u32::try_from(chance.next() >> 32).expect("32 bits"), step });
        (rooms, scales, self.has_timestamps.then_some(clocks))
    }
}

fn low(milliseconds: u64) -> u32 {
    u32::try_from(milliseconds).expect("a session's time")
}

/// Byte `at` of what this end writes.
fn byte(end: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (end * 0x55)).to_le_bytes()[0]
}

impl World {
    /// Peers of all kinds.
    pub(crate) fn new(seed: u64, way: Way) -> World {
        Self::with(seed, way, Some(Mixture::new(seed)))
    }

    /// Peers without timestamps, whose windows lose little when they are rounded.
    pub(crate) fn of_plain_peers(seed: u64, way: Way) -> World {
        Self::with(seed, way, None)
    }

    fn with(seed: u64, way: Way, mut mixture: Option<Mixture>) -> World {
        let mut chance = Chance::new(seed);
        let mut number = || u32::try_from(chance.next() >> 32).expect("32 bits");
        let numbers = [[number(), number()], [number(), number()]];
        let tuples = [
            ("10.0.0.1:5001".parse().expect("an address"), "10.0.0.2:443".parse().expect("an address")),
            ("10.0.1.2:80".parse().expect("an address"), "10.0.1.1:6001".parse().expect("an address")),
        ];
        let bad = chance.below(3) * 15;
        let links = [0, 1].map(|_| Link {
            lost: chance.below(bad + 1),
            doubled: chance.below(bad + 1),
            late: chance.below(2 * bad + 1),
            delay: 1 + chance.below(12) as u64,
        });
        let mut faces = [FaceState::default(); 2];
        let mut pairs = [0, 1].map(|side: usize| {
            // Ours are fixed: a relay's socket offers no more than it does at first.
            let rooms =
                [chance.one_of(&[3000, 10_000, 40_000, 200_000]), chance.one_of(&[3000, 10_000, 30_000])];
            let scales = [0, 1].map(|_| u8::try_from(chance.below(8)).expect("small"));
            let (rooms, scales, clocks) = match &mut mixture {
                None => (rooms, scales, None),
                Some(mixture) => mixture.agreed(side, rooms),
            };
            faces[side].has_timestamps = clocks.is_some();
            (faces[side].peer_scale, faces[side].own_scale) = (scales[0], scales[1]);
            faces[side].device = LOOPBACK + 1 + u32::try_from(side).expect("small");
            let (peer, own) = tuples[side];
            let agreed = Agreed { addresses: [peer, own], numbers: numbers[side], rooms, scales, clocks };
            Tcp::pair(agreed).map(Some)
        });
        let lens = [0, 1].map(|_| 1 + chance.below(chance_of_len(seed)));
        let ends = [0, 1].map(|end: usize| End {
            tcp: pairs[end][0].take().expect("not taken"),
            to_write: if way == Way::Reset { usize::MAX } else { lens[end] },
            written: 0,
            expected: if way == Way::Reset { usize::MAX } else { lens[1 - end] },
            read: 0,
            pace: [0, 1].map(|_| chance.one_of(&[100, 1000, 5000, 50_000])),
            has_read_end: false,
        });
        let [[_, down], [_, up]] = &mut pairs;
        let sockets = [down, up].map(|socket| socket.take().expect("not taken"));
        let positions = sockets.each_ref().map(|socket| Some(Position::new(socket.nxt, 0)));
        let late_asked = chance.below(4) == 0;
        World {
            now: 0,
            count: 0,
            events: BTreeMap::new(),
            links,
            ends,
            programs: Programs::new(sockets, faces, tuples),
            handover: Some(Handover::knowing(if late_asked { [None; 2] } else { positions })),
            is_armed: false,
            stays: false,
            held: [Vec::new(), Vec::new()],
            streams: Streams::default(),
            hold: None,
            busy_until: 0,
            busy: mixture.is_some().then(|| Chance::new(seed ^ 1 << 62)),
            begin_after: chance.below(8000) as u64 >> chance.below(12),
            reset_at: (way == Way::Reset).then(|| (1 + chance.below(400) as u64, chance.below(2))),
            chance,
        }
    }

    /// Until both ends have ended.
    pub(crate) fn run(&mut self) -> Result<Left> {
        loop {
            self.now += 1;
            self.ends.iter_mut().for_each(|end| end.tcp.now = self.now);
            self.programs.tick(self.now);
            ensure!(self.now < STALL, "it hangs: {}", self.describe());
            while let Some(next) = self.events.first_entry().filter(|next| next.key().0 <= self.now) {
                let (side, event) = next.remove();
                self.on(side, event);
            }
            for end in 0..2 {
                self.use_end(end)?;
            }
            self.reset_one();
            self.relay()?;
            if self.has_ended() {
                self.compare_counts()?;
                return Ok(if self.programs.is_offloaded { Left::UserSpace } else { Left::Not });
            }
        }
    }

    fn has_ended(&self) -> bool {
        if self.reset_at.is_some() {
            return self.ends.iter().all(|end| end.tcp.is_reset);
        }
        self.ends.iter().all(|end| end.has_read_end && end.tcp.unacknowledged() == 0)
    }

    /// Each byte is counted once, whether a socket or the programs have carried it. Until the flow has seen
    /// both ends, one may be taken for a byte.
    fn compare_counts(&self) -> Result<()> {
        if !self.programs.is_offloaded || self.reset_at.is_some() {
            return Ok(());
        }
        for (side, end) in self.ends.iter().enumerate() {
            let counted = self.programs.stream_bytes(side);
            ensure!(counted == end.written as u64, "side {side}: {counted} bytes counted of {}", end.written);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let ends = self.ends.each_ref().map(|end| {
            format!(
                "wrote {} of {}, read {} of {}, {:?}",
                end.written, end.to_write, end.read, end.expected, end.tcp
            )
        });
        format!(
            "at {} ms: {:?}\nsender {}\nbackend {}\n{:?}\nheld {:?}, {:?}",
            self.now,
            self.handover.as_ref().map(Handover::progress),
            ends[0],
            ends[1],
            self.programs,
            self.held.each_ref().map(Vec::len),
            self.streams
        )
    }

    fn later(&mut self, wait: u64, side: usize, event: Event) {
        self.count += 1;
        self.events.insert((self.now + wait, self.count), (side, event));
    }

    /// Over the link of this side, which orders nothing if a segment is late.
    fn send(&mut self, side: usize, segments: Vec<Segment>, is_to_peer: bool) {
        for segment in segments {
            let link = &self.links[side];
            let (lost, doubled, late, delay) = (link.lost, link.doubled, link.late, link.delay);
            let times = if self.chance.below(1000) < lost {
                0
            } else {
                1 + usize::from(self.chance.below(1000) < doubled)
            };
            for _ in 0..times {
                let more = if self.chance.below(1000) < late { self.chance.below(30) as u64 } else { 0 };
                let event =
                    if is_to_peer { Event::ToPeer(segment.clone()) } else { Event::In(segment.clone()) };
                self.later(delay + more, side, event);
            }
        }
    }

    fn on(&mut self, side: usize, event: Event) {
        let mut replies = Vec::new();
        match event {
            Event::In(segment) => self.comes_in(side, segment, false),
            Event::Copy(segment) => self.comes_in(side, segment, true),
            Event::ToSocket(segment) => {
                self.programs.reach_socket(side, self.now, &segment, &mut replies);
                self.send(side, replies, true);
            }
            Event::ToPeer(segment) => {
                self.ends[side].tcp.on(self.now, &segment, &mut replies);
                self.send(side, replies, false);
            }
        }
    }

    fn comes_in(&mut self, side: usize, segment: Segment, is_copy: bool) {
        let programs = &mut self.programs;
        if programs.stage == Stage::Free {
            return self.slip(side, segment);
        }
        let device = programs.faces[side].device;
        let mut model = Model {
            stage: programs.stage,
            faces: programs.faces,
            side,
            device,
            tuples: programs.tuples,
            milliseconds: Some(low(self.now)),
        };
        let fate = model.comes_in(&segment, true, is_copy);
        (programs.stage, programs.faces) = (model.stage, model.faces);
        match fate {
            Fate::Passes(_) => self.slip(side, segment),
            Fate::BecomesForSocket(_, segment) => self.slip(side, segment),
            Fate::Translated(name, translated) => {
                self.send(1 - side, vec![translated], true);
                if name == "copied" {
                    self.later(0, side, Event::Copy(segment));
                }
            }
            Fate::Dropped(_) | Fate::Asked | Fate::MadeRoom => {}
        }
    }

    /// To the socket: validated now, and there a little later. No longer than a grace period takes.
    fn slip(&mut self, side: usize, segment: Segment) {
        let wait = if self.chance.below(8) == 0 { self.chance.below(5) as u64 } else { 0 };
        self.later(wait, side, Event::ToSocket(segment));
    }

    /// The program at an end.
    fn use_end(&mut self, number: usize) -> Result<()> {
        let end = &mut self.ends[number];
        let mut replies = Vec::new();
        if end.written < end.to_write && end.tcp.unacknowledged() < 60_000 && self.chance.below(3) > 0 {
            let most = (end.to_write - end.written).min(1 + self.chance.below(end.pace[0]));
            let bytes: Vec<u8> = (end.written..end.written + most).map(|at| byte(number, at)).collect();
            end.tcp.write(&bytes);
            end.written += most;
        }
        end.tcp.is_shut = end.written == end.to_write;
        if self.chance.below(3) > 0 {
            let most = 1 + self.chance.below(end.pace[1]);
            for read in end.tcp.read(most, &mut replies) {
                ensure!(read == byte(1 - number, end.read), "end {number}: byte {} is another", end.read);
                end.read += 1;
            }
            ensure!(end.read <= end.expected, "end {number}: bytes behind the end");
        }
        let is_whole = end.read == end.expected;
        if end.tcp.has_end && end.tcp.unread() == 0 && !end.has_read_end {
            ensure!(is_whole, "end {number} reads the end after {} of {} bytes", end.read, end.expected);
            end.has_read_end = true;
        }
        ensure!(self.reset_at.is_some() || !end.tcp.is_reset, "end {number} is reset");
        end.tcp.go_on(self.now, &mut replies);
        self.send(number, replies, false);
        Ok(())
    }

    fn reset_one(&mut self) {
        let Some((at, end)) = self.reset_at else { return };
        if at == self.now && !self.ends[end].tcp.is_reset {
            let reset = self.ends[end].tcp.reset();
            self.send(end, vec![reset], false);
        }
    }

    /// The relay's turn.
    fn relay(&mut self) -> Result<()> {
        if self.programs.is_offloaded || self.programs.is_dead {
            return Ok(());
        }
        let mut replies = [Vec::new(), Vec::new()];
        if self.programs.sockets.iter().any(|socket| socket.is_reset) {
            self.programs.die(&mut replies);
        } else {
            for from in 0..2 {
                self.pump(from, &mut replies);
            }
            self.hand_over(&mut replies)?;
        }
        if !self.programs.is_offloaded {
            self.programs.go_on(self.now, &mut replies);
        }
        for (side, said) in replies.into_iter().enumerate() {
            self.send(side, said, true);
        }
        Ok(())
    }

    fn pump(&mut self, from: usize, replies: &mut [Vec<Segment>; 2]) {
        let to = 1 - from;
        if self.hold == Some(to) {
            return;
        }
        if self.held[to].is_empty() && !self.streams.ended[from] {
            let mut said = Vec::new();
            self.held[to] = self.programs.sockets[from].read(8000, &mut said);
            self.programs.say(from, said, &mut replies[from]);
            let socket = &self.programs.sockets[from];
            self.streams.ended[from] = socket.has_end && socket.unread() == 0 && self.held[to].is_empty();
        }
        let socket = &mut self.programs.sockets[to];
        if socket.unacknowledged() < 50_000 {
            let bytes = std::mem::take(&mut self.held[to]);
            socket.write(&bytes);
            self.streams.written[to] += bytes.len() as u64;
        }
        if self.streams.ended[from] && self.held[to].is_empty() && !self.streams.end_written[from] {
            socket.is_shut = true;
            self.streams.end_written[from] = true;
        }
    }

    fn hand_over(&mut self, replies: &mut [Vec<Segment>; 2]) -> Result<()> {
        if self.stays {
            return Ok(());
        }
        if !self.is_armed {
            self.is_armed = self.streams.written.iter().sum::<u64>() > self.begin_after;
            if self.is_armed {
                self.programs.stage = Stage::Armed;
            }
            return Ok(());
        }
        // Some relays are busy with others for a while.
        if self.chance.below(4) == 0 || self.now < self.busy_until {
            return Ok(());
        }
        if let Some(chance) = &mut self.busy
            && chance.below(4) == 0
        {
            self.busy_until = self.now + chance.below(40) as u64;
        }
        let Some(handover) = &mut self.handover else { return Ok(()) };
        let mut streams = self.streams;
        streams.held = [0, 1].map(|side| self.held[side].len() as u64);
        let was = handover.progress();
        let turn = handover.turn(&mut self.programs.connections(replies), &streams)?;
        self.hold = None;
        match turn {
            Turn::Hold(side) => self.hold = Some(side),
            Turn::StayHere(_) => {
                ensure!(was == Progress::Armed || was == Progress::Held, "it stays after the cut");
                self.programs.stage = Stage::Free;
                self.stays = true;
            }
            Turn::Offload => self.programs.is_offloaded = true,
            _ => {}
        }
        Ok(())
    }
}

fn chance_of_len(seed: u64) -> usize {
    [10_000, 60_000, 200_000][usize::try_from(seed % 3).expect("small")]
}
