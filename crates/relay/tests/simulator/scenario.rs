//! Several sessions on one worker, and the properties of each when it has ended.

use std::collections::VecDeque;
use std::time::Duration;

use truepeer_session::settings::{ListenerSettings, SpliceAfter};

use super::connection::{End, Rooms};
use super::driver::{Driver, budgets, open_policy};
use super::io::Hardships;
use super::offload::{Obstacles, SimOffload};
use super::party::{Ending, Party, Script};
use super::world::{Backend, Dial};

/// One session: what each party sends and how, and when the backend answers.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) client: Script,
    pub(super) client_rooms: Rooms,
    pub(super) backend: Script,
    pub(super) backend_rooms: Rooms,
    pub(super) dial: Dial,
}

/// Several sessions on one worker.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) plans: Vec<Plan>,
    pub(super) hardships: Hardships,
    pub(super) pipes: usize,
    pub(super) backlog_bytes: usize,
    /// After how many bytes sessions leave user space, and what stands in their way. `None`: they stay.
    pub(super) leaving: Option<(u64, Obstacles)>,
}

/// The header that session `number`'s sender writes.
pub(super) fn header(number: u8) -> Vec<u8> {
    format!("PROXY TCP4 192.0.2.{number} 198.51.100.1 4000 443\r\n").into_bytes()
}

impl Scenario {
    /// Runs it to the end. Returns the indices of the clients' connections.
    pub(super) fn play(&self) -> (Driver, Vec<usize>) {
        let mut settings = ListenerSettings::on(([192, 0, 2, 200], 8443).into());
        if let Some((bytes, _)) = self.leaving {
            settings.splice_after = Some(SpliceAfter { is_marked: false, bytes, age: Duration::MAX });
        }
        let budgets = budgets(self.pipes, self.backlog_bytes, 1 << 20);
        let mut driver = Driver::new(self.seed, settings, open_policy(), budgets, self.hardships);
        if let Some((_, obstacles)) = self.leaving {
            driver.io.offload = Ok(SimOffload::new(&driver.io.world, obstacles));
        }
        let clients = (1..).zip(&self.plans).map(|(number, plan)| plan.begin(&mut driver, number)).collect();
        driver.run();
        (driver, clients)
    }
}

impl Plan {
    /// One byte at a time is only for short streams: long ones should need a few hundred steps.
    pub(super) fn shorten(&mut self) {
        let least = self.client.length.max(self.backend.length) / 100;
        for script in [&mut self.client, &mut self.backend] {
            script.chunk = script.chunk.max(least);
            script.gulp = script.gulp.max(least);
        }
        for rooms in [&mut self.client_rooms, &mut self.backend_rooms] {
            for room in [&mut rooms.inbound, &mut rooms.outbound, &mut rooms.arrived] {
                *room = (*room).max(least);
            }
        }
    }

    pub(super) fn begin(&self, driver: &mut Driver, number: u8) -> usize {
        let backend = Backend {
            script: self.backend.clone(),
            rooms: self.backend_rooms,
            dials: VecDeque::from([self.dial]),
            expected_opening: Vec::new(),
        };
        driver.begin(number, self.client.clone(), self.client_rooms, backend)
    }
}

/// The party at the client's end of a session, and the one at the backend's.
pub(super) fn parties(driver: &Driver, client: usize, check: impl FnOnce(&Party, &Party)) {
    let world = driver.io.world.borrow();
    // Backends are numbered by their clients' addresses. The index is found by the stream that each expects.
    let here = &world.places[client].party;
    let there = world.places.iter().map(|place| &place.party).find(|party| party.hears(here));
    check(here, there.expect("the backend was dialled"));
}

/// Checks what `source` sent against what `sink` read.
pub(super) fn check_delivery(source: &Party, sink: &Party) {
    let (sent, received) = (source.sent_of_stream(), sink.received_of_stream());
    let resets = |party: &Party| matches!(party.script().ending, Ending::Reset { .. });
    let sink_left = resets(sink) || sink.script().ending == Ending::Close;
    if sink.saw == Some(End::Fin) {
        assert!(source.has_ended, "an end is passed on although there was none");
        assert!(!resets(source), "a reset becomes an orderly end");
        assert_eq!(received, source.script().length, "an end is passed on before the last byte");
    }
    if sink_left {
        return;
    }
    assert_eq!(received, sent, "bytes are lost");
    if source.has_ended {
        assert!(sink.saw.is_some(), "the end is not passed on");
    }
    if resets(source) && source.has_ended {
        assert_eq!(sink.saw, Some(End::Reset), "a reset is not passed on");
    }
}
