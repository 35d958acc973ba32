//! [`Offload`] in a simulation: what the kernel's programs do to a session, as streams of bytes.
//!
//! ```text
//! party ─▶ Connection ─┬─ before the cut, or slips ─▶ the relay's socket ─▶ relay ─▶ the other connection
//!                      └─ Translated ── when all that the sockets got is there ────▶ the other connection
//! ```
//! TCP would keep translated bytes until those before them have come: so a byte that the relay loses holds up
//! all that follow, and one that it writes twice is found by the party that reads it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use truepeer_splice::{Connections, Mapping, Pending, Reason, Stage};
use truepeer_sys::CallError;
use truepeer_sys::repair::Received;

use super::connection::{End, Translated};
use super::io::SimSocket;
use super::world::World;
use crate::offload::{Flow, Offload};

/// How often the programs, or the calls that a hand-over needs, cause difficulties, in percent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Obstacles {
    /// A session can't begin to leave.
    pub(super) refuses: usize,
    /// The session has to wait: for packets of its peers, a grace period, an offer that is used up.
    pub(super) waits: usize,
    /// The session's way changes just before the cut.
    pub(super) changes: usize,
    /// A call fails before the cut.
    pub(super) fails: usize,
    /// A call fails after the cut.
    pub(super) breaks: usize,
    /// What a peer sends after the cut reaches the socket.
    pub(super) slips: usize,
}

impl Obstacles {
    pub(super) const NONE: Self = Self { refuses: 0, waits: 0, changes: 0, fails: 0, breaks: 0, slips: 0 };
}

/// The programs.
pub(super) struct SimOffload {
    world: Rc<RefCell<World>>,
    obstacles: Obstacles,
    /// Peers can be asked, and sockets closed silently.
    pub(super) has_keeper: bool,
}

/// What the programs know of a session.
#[derive(Debug)]
pub(super) struct FlowState {
    /// Its connections: downstream, upstream.
    places: [usize; 2],
    /// Bytes of the header, which are not the backend's.
    surplus: usize,
    /// The first numbers of what our sockets write, and of what their peers send.
    first: [[u32; 2]; 2],
    stage: Stage,
    /// A program that saw an older stage may still run.
    in_grace: bool,
    segments: [u64; 2],
    reset_by: Option<usize>,
    /// The peer of this side is gone, and says nothing more.
    pub(super) gone: Option<usize>,
    pub(super) has_lost_its_way: bool,
    pub(super) questions: [u64; 2],
}

/// A session on its way. Dropped, its packets are the sockets' again.
pub(super) struct SimArmed {
    world: Rc<RefCell<World>>,
    obstacles: Obstacles,
    has_keeper: bool,
    flow: usize,
}

/// A session that has left.
pub(super) struct SimFlow {
    world: Rc<RefCell<World>>,
    flow: usize,
}

impl SimOffload {
    pub(super) fn new(world: &Rc<RefCell<World>>, obstacles: Obstacles) -> Self {
        world.borrow_mut().slips = obstacles.slips;
        Self { world: Rc::clone(world), obstacles, has_keeper: true }
    }
}

impl Offload for SimOffload {
    type Socket = SimSocket;
    type Armed = SimArmed;
    type Flow = SimFlow;

    fn arm(&self, sockets: [&SimSocket; 2], _: Duration) -> Result<SimArmed, Reason> {
        let places = sockets.map(|socket| socket.id);
        let mut world = self.world.borrow_mut();
        world.calls += 1;
        if world.dice.percent(self.obstacles.refuses) {
            return Err(Reason::TableFull);
        }
        let (_, surplus) = world.places[places[0]].pair.ok_or(Reason::SendProxy)?;
        let mut first = [[0; 2]; 2];
        first.as_flattened_mut().iter_mut().for_each(|number| *number = world.number());
        let flow = world.flows.len();
        world.flows.push(FlowState {
            places,
            surplus,
            first,
            stage: Stage::Armed,
            in_grace: false,
            segments: [0; 2],
            reset_by: None,
            gone: None,
            has_lost_its_way: false,
            questions: [0; 2],
        });
        drop(world);
        Ok(SimArmed {
            world: Rc::clone(&self.world),
            obstacles: self.obstacles,
            has_keeper: self.has_keeper,
            flow,
        })
    }

    fn connections<'a>(armed: &'a mut SimArmed, sockets: [&'a SimSocket; 2]) -> impl Connections + 'a {
        let mut world = armed.world.borrow_mut();
        assert_eq!(world.flows[armed.flow].places, sockets.map(|socket| socket.id));
        world.calls += 1;
        drop(world);
        Turned(armed)
    }

    fn stream_bytes(armed: &SimArmed) -> u64 {
        let world = armed.world.borrow();
        if world.flows[armed.flow].stage == Stage::Armed {
            return 0;
        }
        world.stream_bytes(armed.flow).iter().sum()
    }

    fn give_up(armed: SimArmed, _: [&SimSocket; 2], _: bool) {
        let mut world = armed.world.borrow_mut();
        assert_eq!(world.flows[armed.flow].stage, Stage::Armed, "it can't stay after the cut");
        world.flows[armed.flow].stage = Stage::Free;
    }

    fn release(armed: SimArmed, sockets: [SimSocket; 2]) -> SimFlow {
        if armed.has_keeper {
            let mut world = armed.world.borrow_mut();
            for socket in &sockets {
                world.places[socket.id].connection.is_silent = true;
            }
        }
        drop(sockets);
        SimFlow { world: armed.world, flow: armed.flow }
    }

    fn can_ask(&self) -> bool {
        self.has_keeper
    }

    fn ask(&self, flow: &SimFlow, side: usize, _: u32) {
        let state = &mut self.world.borrow_mut().flows[flow.flow];
        state.questions[side] += 1;
        // The answer of a peer that is still there.
        state.segments[side] += u64::from(state.gone != Some(side));
    }

    fn reset(&self, flow: SimFlow) {
        let mut world = self.world.borrow_mut();
        let places = world.flows[flow.flow].places;
        for (place, other) in [(places[0], places[1]), (places[1], places[0])] {
            // What was translated is ahead of the reset.
            if world.socket_bytes_are_there(place) {
                let translated = world.places[place].connection.translated.as_mut();
                let bytes = translated.map(|translated| std::mem::take(&mut translated.bytes));
                world.places[other].connection.arrive(bytes.unwrap_or_default());
            }
        }
        world.flows[flow.flow].stage = Stage::Free;
        for place in places {
            world.places[place].connection.arrive_at_end(End::Reset);
        }
    }
}

impl Flow for SimFlow {
    fn stage(&self) -> Stage {
        self.world.borrow().flows[self.flow].stage
    }

    fn bytes(&self) -> [u64; 2] {
        self.world.borrow().stream_bytes(self.flow)
    }

    fn segments(&self) -> [u64; 2] {
        self.world.borrow().flows[self.flow].segments
    }

    fn reset_by(&self) -> Option<usize> {
        self.world.borrow().flows[self.flow].reset_by
    }

    fn has_lost_its_way(&self) -> bool {
        self.world.borrow().flows[self.flow].has_lost_its_way
    }
}

/// A session on its way, in a turn.
struct Turned<'a>(&'a mut SimArmed);

impl Turned<'_> {
    fn dice(&self, percent: usize) -> bool {
        self.0.world.borrow_mut().dice.percent(percent)
    }

    fn look<T>(&self, side: usize, look: impl FnOnce(&FlowState, &super::world::Place) -> T) -> T {
        let world = self.0.world.borrow();
        let flow = &world.flows[self.0.flow];
        look(flow, &world.places[flow.places[side]])
    }

    fn change<T>(&self, change: impl FnOnce(&mut FlowState) -> T) -> T {
        change(&mut self.0.world.borrow_mut().flows[self.0.flow])
    }

    fn call<T>(&self, answer: T) -> Result<T, CallError> {
        let is_cut = self.change(|flow| flow.stage != Stage::Armed);
        let Obstacles { fails, breaks, .. } = self.0.obstacles;
        if self.dice(if is_cut { breaks } else { fails }) {
            return Err(CallError { call: "a call of the simulation", errno: Errno::PERM });
        }
        Ok(answer)
    }
}

/// The number of the byte after `count` ones.
fn after(first: u32, count: usize) -> u32 {
    first.wrapping_add(u32::try_from(count).expect("short streams"))
}

impl Connections for Turned<'_> {
    fn can_repair(&self) -> bool {
        self.0.has_keeper
    }

    fn is_heard(&self, _: usize) -> bool {
        !self.dice(self.0.obstacles.waits)
    }

    fn scales_fit(&self) -> bool {
        true
    }

    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError> {
        let next = self.look(side, |flow, place| {
            let (_, unacknowledged, _) = place.connection.stand();
            (unacknowledged == 0).then(|| after(flow.first[side][0], place.connection.written_bytes))
        });
        self.call(next)
    }

    fn received(&mut self, side: usize) -> Result<Received, CallError> {
        let received = self.look(side, |flow, place| {
            let (unread, _, has_end) = place.connection.stand();
            let next = place.connection.received_bytes() + usize::from(has_end);
            let unread = u32::try_from(unread).expect("a buffer");
            Received { next: after(flow.first[side][1], next), unread }
        });
        self.call(received)
    }

    fn is_established(&mut self, side: usize) -> Result<bool, CallError> {
        self.call(self.look(side, |_, place| place.connection.is_established()))
    }

    fn pending_bytes(&mut self, side: usize) -> Result<Pending, CallError> {
        self.call(self.look(side, |_, place| {
            let (unread, ..) = place.connection.stand();
            Pending { unread: unread as u64, unacknowledged: place.connection.unacknowledged() as u64 }
        }))
    }

    fn has_acknowledged(&self, side: usize, number: u32) -> bool {
        self.look(side, |flow, place| {
            let (_, unacknowledged, _) = place.connection.stand();
            let arrived = place.connection.written_bytes - unacknowledged;
            let has_end = place.connection.end_of_stream().is_some();
            after(flow.first[side][0], arrived + usize::from(has_end)) == number
        })
    }

    fn hold(&mut self, _: &Mapping) {}

    fn offers_fit(&self) -> bool {
        !self.dice(self.0.obstacles.waits)
    }

    fn may_be_cut(&self) -> Result<(), Reason> {
        if self.dice(self.0.obstacles.changes) { Err(Reason::Device) } else { Ok(()) }
    }

    fn reset_when_closed(&mut self) {}

    fn cut(&mut self, mapping: &Mapping, bytes: [u64; 2]) {
        self.0.world.borrow_mut().cut(self.0.flow, mapping, bytes);
    }

    fn ask_peers(&mut self) {}

    fn keep(&mut self, side: usize, next: u32) {
        let received = self.look(side, |flow, place| {
            let (.., has_end) = place.connection.stand();
            after(flow.first[side][1], place.connection.received_bytes() + usize::from(has_end))
        });
        assert_eq!(next, received);
    }

    fn all_is_delivered(&mut self, ended: [bool; 2]) -> bool {
        self.0.world.borrow_mut().all_is_delivered(self.0.flow, ended)
    }

    fn back_to_tail(&mut self) -> bool {
        self.change(|flow| {
            let goes_back = flow.stage == Stage::Spliced;
            if goes_back {
                flow.stage = Stage::Tail;
            }
            goes_back
        })
    }

    fn fall_silent(&mut self) -> bool {
        self.0.has_keeper
    }

    fn has_ended(&mut self) -> bool {
        self.change(|flow| matches!(flow.stage, Stage::Closing | Stage::Dead))
    }

    fn ask_for_grace(&mut self) {
        self.change(|flow| flow.in_grace = true);
    }

    fn is_grace_over(&self) -> bool {
        let goes_on = self.dice(self.0.obstacles.waits);
        self.change(|flow| {
            flow.in_grace &= goes_on;
            !flow.in_grace
        })
    }
}

impl World {
    fn number(&mut self) -> u32 {
        u32::try_from(self.dice.below(1 << 32)).expect("32 bits")
    }

    /// How often a socket got something after the cut.
    pub(super) fn slipped(&self) -> usize {
        let translated = self.places.iter().filter_map(|place| place.connection.translated.as_ref());
        translated.map(|translated| translated.slipped).sum()
    }

    /// Bytes of each peer's stream, whoever has carried them.
    fn stream_bytes(&self, flow: usize) -> [u64; 2] {
        let FlowState { places, surplus, .. } = self.flows[flow];
        [(places[0], surplus), (places[1], 0)].map(|(place, surplus)| {
            let connection = &self.places[place].connection;
            let translated = connection.translated.as_ref().map_or(0, |translated| translated.total);
            (connection.received_bytes() - surplus + translated) as u64
        })
    }

    /// The numbers and lengths that the relay has counted must be those of the streams.
    fn cut(&mut self, flow: usize, mapping: &Mapping, bytes: [u64; 2]) {
        let FlowState { places, surplus, first, .. } = self.flows[flow];
        let surpluses = [surplus, 0];
        for side in 0..2 {
            let peers = after(first[side][1], surpluses[side]);
            assert_eq!(mapping.shifts[side], first[1 - side][0].wrapping_sub(peers), "a wrong shift");
        }
        assert_eq!(bytes, self.stream_bytes(flow), "wrong lengths");
        for (side, place) in places.into_iter().enumerate() {
            self.places[place].connection.translated = Some(Translated::default());
            self.places[place].flow = Some((flow, side));
        }
        self.flows[flow].stage = Stage::Tail;
    }

    fn all_is_delivered(&mut self, flow: usize, ended: [bool; 2]) -> bool {
        let places = self.flows[flow].places;
        for (side, place) in places.into_iter().enumerate() {
            assert!(self.socket_bytes_are_there(place), "bytes from side {side} are not delivered");
            if let Some(translated) = self.places[place].connection.translated.as_mut() {
                translated.has_ended |= ended[side];
            }
        }
        let moves = self.flows[flow].stage == Stage::Tail;
        if moves {
            self.flows[flow].stage = Stage::Spliced;
        }
        self.close_if_ended(flow);
        moves
    }

    fn close_if_ended(&mut self, flow: usize) {
        let has_ended = |place: usize| {
            self.places[place].connection.translated.as_ref().is_some_and(|translated| translated.has_ended)
        };
        if self.flows[flow].stage == Stage::Spliced && self.flows[flow].places.into_iter().all(has_ended) {
            self.flows[flow].stage = Stage::Closing;
        }
    }

    /// Whether all bytes that the relay's socket got here have arrived at the other connection's far end.
    fn socket_bytes_are_there(&self, id: usize) -> bool {
        let Some((other, surplus)) = self.places[id].pair else { return false };
        let there = &self.places[other].connection;
        let (_, in_flight, _) = there.stand();
        self.places[id].connection.received_bytes() - surplus == there.written_bytes - in_flight
    }

    /// Before the party here acts: how much it may send, and whether that reaches a socket.
    pub(super) fn prepare_translation(&mut self, id: usize) {
        let Some((flow, _)) = self.places[id].flow else { return };
        let Some((other, _)) = self.places[id].pair else { return };
        let FlowState { stage, in_grace, .. } = self.flows[flow];
        let may_slip = stage == Stage::Tail || (stage == Stage::Spliced && in_grace);
        let slips = may_slip && self.dice.percent(self.slips);
        let most = self.places[other].connection.room_at_their_end();
        let (unread, ..) = self.places[id].connection.stand();
        let (_, in_flight, _) = self.places[other].connection.stand();
        let Some(translated) = self.places[id].connection.translated.as_mut() else { return };
        translated.room = most.saturating_sub(translated.bytes.len() + unread + in_flight);
        translated.slips = slips;
    }

    /// The programs translate what was sent here.
    pub(super) fn carry(&mut self, id: usize) -> bool {
        let Some((flow, side)) = self.places[id].flow else { return false };
        let Some((other, _)) = self.places[id].pair else { return false };
        let is_over = matches!(self.flows[flow].stage, Stage::Free | Stage::Dead);
        let Some(translated) = self.places[id].connection.translated.as_ref() else { return false };
        let (waiting, end) = (translated.bytes.len(), translated.end.filter(|_| !translated.has_ended));
        if is_over || (waiting == 0 && end.is_none()) || !self.socket_bytes_are_there(id) {
            return false;
        }
        if waiting > 0 {
            let most = waiting.min(self.places[other].connection.room_at_their_end());
            if most == 0 {
                return false;
            }
            let length = self.dice.up_to(most);
            let Some(translated) = self.places[id].connection.translated.as_mut() else { return false };
            let bytes: Vec<_> = translated.bytes.drain(..length).collect();
            self.flows[flow].segments[side] += 1;
            let there = &mut self.places[other].connection;
            // Where the far end has closed its socket, a reset follows what it has sent before.
            if !there.arrive(bytes)
                && let Some(back) = there.translated.as_mut()
            {
                back.end = Some(End::Reset);
            }
            return true;
        }
        match end {
            Some(End::Reset) => self.reset_by(flow, side),
            _ => {
                self.places[other].connection.arrive_at_end(End::Fin);
                if let Some(translated) = self.places[id].connection.translated.as_mut() {
                    translated.has_ended = true;
                }
                self.close_if_ended(flow);
            }
        }
        true
    }

    /// A reset of the peer of this side has passed.
    fn reset_by(&mut self, flow: usize, side: usize) {
        let other = self.flows[flow].places[1 - side];
        self.places[other].connection.arrive_at_end(End::Reset);
        self.places[other].connection.answer_with_reset();
        let state = &mut self.flows[flow];
        state.segments[side] += 1;
        (state.stage, state.reset_by) = (Stage::Dead, Some(side));
    }
}
