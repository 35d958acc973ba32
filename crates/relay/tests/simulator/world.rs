//! All connections of a simulation, the parties at their other ends, and what may happen next.

use std::collections::{HashMap, VecDeque};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use truepeer_session::connect_as::{ConnectError, Upstream};
use truepeer_sys::CallError;

use super::connection::{Connection, Rooms};
use super::dice::Dice;
use super::offload::FlowState;
use super::party::{Party, Script};
use crate::io::Token;

/// The outcome of an attempt to connect to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dial {
    /// Connected when connect() returns, as on loopback.
    AtOnce,
    Later,
    /// Refused or unreachable when connect() returns; the next call reports it.
    FailsAtOnce(Errno),
    FailsLater(Errno),
    /// No answer, ever.
    Silent,
    InUse,
    /// connect() itself fails.
    Impossible(Errno),
}

/// A backend that waits for its session.
#[derive(Debug, Clone)]
pub(super) struct Backend {
    pub(super) script: Script,
    pub(super) rooms: Rooms,
    /// The outcome of each attempt; the last one repeats.
    pub(super) dials: VecDeque<Dial>,
    /// What it must read before the client's stream.
    pub(super) expected_opening: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) connection: Connection,
    pub(super) party: Party,
    answer: Option<Result<(), Errno>>,
    /// The session's other connection, and how many more bytes are read here than written there when none
    /// are held.
    pub(super) pair: Option<(usize, usize)>,
    /// Its flow, and its side of it, once the session is handed over.
    pub(super) flow: Option<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) places: Vec<Place>,
    /// Keyed by the last byte of the client's address. With `--send-proxy` there is none; then the first
    /// backend is used.
    backends: HashMap<u8, (Backend, usize)>,
    pub(super) attempts: Vec<Upstream>,
    /// The number of calls that did something.
    pub(super) calls: usize,
    pub(super) spliced_bytes: usize,
    /// The sessions that the programs know or knew.
    pub(super) flows: Vec<FlowState>,
    /// How often what a peer sends after the cut reaches the socket, in percent.
    pub(super) slips: usize,
}

/// The end of a client's address for a session number.
pub(super) fn last_byte(address: std::net::IpAddr) -> u8 {
    match address {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(ip) => ip.octets()[15],
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            places: Vec::new(),
            backends: HashMap::new(),
            attempts: Vec::new(),
            calls: 0,
            spliced_bytes: 0,
            flows: Vec::new(),
            slips: 0,
        }
    }

    /// A connection from a sender, for the session with this number. `plain_bytes` of its opening are not
    /// meant for the backend. for the backend.
    pub(super) fn accept(&mut self, number: u8, client: Script, rooms: Rooms, backend: Backend) -> usize {
        let id = self.places.len();
        let streams = (u64::from(number) * 2, u64::from(number) * 2 + 1);
        let party = Party::new(client, streams.0, backend.script.opening.clone(), streams.1);
        self.places.push(Place {
            connection: Connection::new(rooms, true),
            party,
            answer: None,
            pair: None,
            flow: None,
        });
        self.backends.insert(number, (backend, id));
        id
    }

    /// A session connects to its backend.
    pub(super) fn dial(&mut self, upstream: &Upstream) -> Result<usize, ConnectError> {
        self.attempts.push(*upstream);
        let number = upstream.source.map_or(1, |source| last_byte(source.ip()));
        let (backend, client) = self.backends.get_mut(&number).expect("a backend for each session");
        let dial = match backend.dials.len() {
            1 => backend.dials[0],
            _ => backend.dials.pop_front().expect("a dial for each attempt"),
        };
        let answer = match dial {
            Dial::InUse => return Err(ConnectError::TupleInUse),
            Dial::Impossible(errno) => {
                return Err(ConnectError::at_once(CallError { call: "connect", errno }));
            }
            Dial::AtOnce | Dial::Later => Some(Ok(())),
            Dial::FailsAtOnce(errno) | Dial::FailsLater(errno) => Some(Err(errno)),
            Dial::Silent => None,
        };
        let (backend, client) = (backend.clone(), *client);
        let id = self.adopt_backend(number, backend, client, answer);
        if matches!(dial, Dial::AtOnce | Dial::FailsAtOnce(_)) {
            self.answer(id);
        }
        Ok(id)
    }

    fn adopt_backend(
        &mut self,
        number: u8,
        backend: Backend,
        client: usize,
        answer: Option<Result<(), Errno>>,
    ) -> usize {
        let id = self.places.len();
        let header = self.places[client].party.script().opening.len();
        let streams = (u64::from(number) * 2, u64::from(number) * 2 + 1);
        let connection = Connection::new(backend.rooms, false);
        let opening = backend.expected_opening.len();
        let party = Party::new(backend.script, streams.1, backend.expected_opening, streams.0);
        self.places.push(Place { connection, party, answer, pair: Some((client, 0)), flow: None });
        // With --send-proxy more bytes may be written than were read.
        self.places[client].pair = (opening == 0).then_some((id, header));
        id
    }

    /// This connection doesn't belong to a session.
    pub(super) fn unpair(&mut self, id: usize) {
        self.places[id].pair = None;
    }

    fn answer(&mut self, id: usize) -> bool {
        let place = &mut self.places[id];
        match place.answer.take() {
            Some(result) if place.connection.is_dialling() && !place.connection.is_closed() => {
                place.connection.answer(result);
                true
            }
            _ => false,
        }
    }

    /// Makes something happen, if anything can.
    pub(super) fn step(&mut self) -> bool {
        const KINDS: usize = 6;
        let events = self.places.len() * KINDS;
        if events == 0 {
            return false;
        }
        let first = self.dice.below(events);
        (0..events)
            .map(|turn| (first + turn * 7) % events)
            .any(|event| self.happen(event / KINDS, event % KINDS))
            || (0..events).any(|event| self.happen(event / KINDS, event % KINDS))
    }

    fn happen(&mut self, id: usize, kind: usize) -> bool {
        match kind {
            0 => return self.answer(id),
            5 => return self.carry(id),
            _ => self.prepare_translation(id),
        }
        let Place { connection, party, .. } = &mut self.places[id];
        if connection.is_dialling() {
            return false;
        }
        match kind {
            1 if connection.can_deliver() => {
                let most = self.dice.up_to(96 << 10);
                connection.deliver(most);
                true
            }
            1 => false,
            2 => party.send(connection, &mut self.dice),
            3 => party.read(connection, &mut self.dice),
            _ => party.end(connection),
        }
    }

    /// epoll_wait(): some of the sockets on the ready list.
    pub(super) fn take_events(&mut self, most: usize) -> Vec<(Token, EventFlags)> {
        let count = self.places.len();
        let first = if count == 0 { 0 } else { self.dice.below(count) };
        let in_turn = (0..count).map(|turn| (first + turn) % count);
        let mut events = Vec::new();
        for id in in_turn {
            if events.len() < most {
                events.extend(self.places[id].connection.take_event());
            }
        }
        events
    }

    pub(super) fn has_edges(&self) -> bool {
        self.places.iter().any(|place| place.connection.has_edge())
    }

    /// Nothing may be read from a connection while earlier bytes from it are held.
    pub(super) fn check_that_nothing_is_held(&self, id: usize) {
        let here = &self.places[id].connection;
        let Some((pair, surplus)) = self.places[id].pair else { return };
        let there = &self.places[pair].connection;
        if here.is_broken() || there.is_broken() {
            return;
        }
        let held = here.read_bytes - surplus - there.written_bytes;
        assert_eq!(held, 0, "socket {id} is read although bytes from it are held");
    }
}
