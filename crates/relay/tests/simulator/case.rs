//! One session with usual parties and settings, for tests that change one thing.

use std::collections::VecDeque;
use std::time::Duration;

use truepeer_policy::{HeaderRule, Policy};
use truepeer_session::CloseReason;
use truepeer_session::budget::Budgets;
use truepeer_session::settings::ListenerSettings;

use super::connection::Rooms;
use super::driver::{Closed, Driver, budgets, open_policy};
use super::io::Hardships;
use super::party::{Ending, Script};
use super::scenario::{check_delivery, header};
use super::world::{Backend, Dial, Place};

pub(super) const ROOMS: Rooms = Rooms { inbound: 100_000, outbound: 100_000, arrived: 100_000 };

#[derive(Debug)]
pub(super) struct Case {
    pub(super) client: Script,
    pub(super) client_rooms: Rooms,
    pub(super) backend: Script,
    pub(super) backend_rooms: Rooms,
    /// The bytes that the backend must read before the client's stream.
    pub(super) expected_opening: Vec<u8>,
    pub(super) dials: Vec<Dial>,
    pub(super) settings: ListenerSettings,
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) hardships: Hardships,
    pub(super) seed: u64,
}

pub(super) fn script(opening: Vec<u8>, length: usize, ending: Ending) -> Script {
    let (chunk, gulp, appetite) = (10_000, 10_000, usize::MAX);
    Script { opening, length, chunk, gulp, appetite, ending, urgent: false, hears_first: 0 }
}

impl Case {
    /// A request, a response, and both parties end.
    pub(super) fn new() -> Self {
        Self {
            client: script(header(1), 500, Ending::Fin),
            client_rooms: ROOMS,
            backend: script(Vec::new(), 3000, Ending::FinAfterTheirs),
            backend_rooms: ROOMS,
            expected_opening: Vec::new(),
            dials: vec![Dial::AtOnce],
            settings: ListenerSettings::on(([192, 0, 2, 200], 8443).into()),
            policy: open_policy(),
            budgets: budgets(4, 1 << 20, 1 << 20),
            hardships: Hardships::NONE,
            seed: 1,
        }
    }

    pub(super) fn with_rule(rule: HeaderRule, opening: &[u8]) -> Self {
        let mut case = Self::new();
        case.policy.senders.header = rule;
        case.client.opening = opening.to_vec();
        case
    }

    pub(super) fn dialling(dials: &[Dial]) -> Self {
        Self { dials: dials.to_vec(), ..Self::new() }
    }

    pub(super) fn play(&self) -> Played {
        let mut driver = self.begin();
        driver.run();
        Played(driver)
    }

    /// The session has started; nothing has happened yet.
    pub(super) fn begin(&self) -> Driver {
        let (settings, policy) = (self.settings.clone(), self.policy.clone());
        let mut driver = Driver::new(self.seed, settings, policy, self.budgets.clone(), self.hardships);
        let backend = Backend {
            script: self.backend.clone(),
            rooms: self.backend_rooms,
            dials: VecDeque::from(self.dials.clone()),
            expected_opening: self.expected_opening.clone(),
        };
        driver.begin(1, self.client.clone(), self.client_rooms, backend);
        driver
    }

    /// Runs it with each of many seeds.
    pub(super) fn play_often(mut self, mut check: impl FnMut(&Played)) {
        for seed in 0..100 {
            self.seed = seed;
            let played = self.play();
            check(&played);
            played.0.check_that_nothing_is_left();
        }
    }
}

/// Everything was delivered in both directions.
pub(super) fn check_whole(played: &Played) {
    assert_eq!(played.closed().reason, CloseReason::Finished);
    played.at_client(|client| {
        played.at_backend(|backend| {
            check_delivery(&client.party, &backend.party);
            check_delivery(&backend.party, &client.party);
        });
    });
}

/// A finished session.
pub(super) struct Played(pub(super) Driver);

impl Played {
    pub(super) fn closed(&self) -> &Closed {
        self.0.closed.first().expect("the session has ended")
    }

    /// The time at which it ended.
    pub(super) fn after(&self) -> Duration {
        self.closed().after
    }

    pub(super) fn attempts(&self) -> usize {
        self.0.io.world.borrow().attempts.len()
    }

    pub(super) fn at_client<T>(&self, look: impl FnOnce(&Place) -> T) -> T {
        look(&self.0.io.world.borrow().places[0])
    }

    pub(super) fn at_backend<T>(&self, look: impl FnOnce(&Place) -> T) -> T {
        look(self.0.io.world.borrow().places.get(1).expect("the backend was dialled"))
    }
}
