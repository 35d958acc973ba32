//! Sessions made and scheduled by a fuzzer's bytes: what each party does, and what happens next.
//!
//! The parties' streams and scripts are the oracle. It never looks at a session's own state.

use rustix::io::Errno;
use truepeer_session::CloseReason;
use truepeer_session::settings::ListenerSettings;

use super::connection::{End, Rooms};
use super::dice::Dice;
use super::driver::{Driver, budgets, open_policy};
use super::io::Hardships;
use super::party::{Ending, Script};
use super::scenario::{Plan, check_delivery, header, parties};
use super::world::Dial;

/// The longest stream: long enough to be spliced.
const MOST: usize = 200_000;

/// Plays up to three sessions at once.
///
/// # Panics
/// A byte is lost, doubled or changed; an end or a reset is not passed on, or is made up; a header that is
/// not one reaches a backend; a session never ends; something that was taken is not given back.
pub fn any_sessions(bytes: &[u8]) {
    let mut dice = Dice::given(bytes);
    let plans: Vec<_> = (1..=up_to_three(&mut dice)).map(|number| fuzzed(&mut dice, number)).collect();
    let budgets = budgets(dice.below(4), [0, 100_000, usize::MAX / 2][dice.below(3)], 1 << 20);
    let settings = ListenerSettings::on(([192, 0, 2, 200], 8443).into());
    let mut driver = Driver::new(0, settings, open_policy(), budgets, hardships(&mut dice));
    driver.io.world().dice = dice;
    let clients: Vec<_> =
        (1..).zip(&plans).map(|(number, plan)| plan.sessions.begin(&mut driver, number)).collect();
    driver.run();
    for (plan, &client) in plans.iter().zip(&clients) {
        plan.check(&driver, client);
    }
    if plans.iter().all(|plan| plan.kind != Kind::StopsReading) {
        driver.check_that_nothing_is_left();
    }
}

/// What is unusual about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    /// The header ends too early, or is none.
    NoHeader,
    /// The backend refuses, doesn't answer, or the client's address is in use.
    NotDialled,
    /// The backend reads some bytes and then no more.
    StopsReading,
}

struct Fuzzed {
    kind: Kind,
    sessions: Plan,
}

fn up_to_three(dice: &mut Dice) -> u8 {
    [1, 1, 2, 3][dice.below(4)]
}

fn fuzzed(dice: &mut Dice, number: u8) -> Fuzzed {
    let kind = match dice.below(16) {
        0 => Kind::NoHeader,
        1 | 2 => Kind::NotDialled,
        3 => Kind::StopsReading,
        _ => Kind::Usual,
    };
    let (mut client, mut backend) = (script(dice, header(number)), script(dice, Vec::new()));
    let mut dial = if dice.percent(50) { Dial::AtOnce } else { Dial::Later };
    match kind {
        Kind::Usual => {}
        Kind::NoHeader => {
            let at = dice.below(client.opening.len());
            match dice.below(2) {
                0 => (client.length, client.opening) = (0, client.opening[..at].to_vec()),
                _ => client.opening[at] = 0,
            }
        }
        Kind::NotDialled => {
            let refused = Errno::CONNREFUSED;
            dial = [
                Dial::FailsAtOnce(refused),
                Dial::FailsLater(refused),
                Dial::Impossible(refused),
                Dial::Silent,
                Dial::InUse,
            ][dice.below(5)];
        }
        Kind::StopsReading => backend.appetite = dice.below(5000),
    }
    // One party must be the first to end.
    if client.ending == Ending::FinAfterTheirs && backend.ending == Ending::FinAfterTheirs {
        backend.ending = Ending::Fin;
    }
    client.wait_at_most_for(backend.length);
    backend.wait_at_most_for(client.length);
    let (client_rooms, backend_rooms) = (rooms(dice), rooms(dice));
    let mut sessions = Plan { client, client_rooms, backend, backend_rooms, dial };
    sessions.shorten();
    Fuzzed { kind, sessions }
}

fn script(dice: &mut Dice, opening: Vec<u8>) -> Script {
    // Lengths around the limits: none, less than a read, a read, several reads.
    let length = match dice.below(8) {
        0 => 0,
        1..=3 => dice.up_to(200),
        4 | 5 => 4000 + dice.below(1000),
        6 => 65_530 + dice.below(10),
        _ => dice.below(MOST),
    };
    let ending = match dice.below(8) {
        0..=2 => Ending::Fin,
        3 | 4 => Ending::FinAfterTheirs,
        5 => Ending::Close,
        _ => Ending::Reset {
            sent: opening.len() + dice.below(length + 1),
            received: dice.below(length + 1) / 4,
        },
    };
    let (chunk, gulp, urgent) = (chunk(dice), chunk(dice), dice.percent(20));
    Script { opening, length, chunk, gulp, appetite: usize::MAX, ending, urgent, hears_first: 0 }
}

fn chunk(dice: &mut Dice) -> usize {
    match dice.below(3) {
        0 => dice.up_to(8),
        1 => 100 + dice.below(4900),
        _ => 60_000 + dice.below(140_000),
    }
}

fn rooms(dice: &mut Dice) -> Rooms {
    let mut room = || match dice.below(3) {
        0 => dice.up_to(100),
        1 => 1000 + dice.below(19_000),
        _ => 60_000 + dice.below(240_000),
    };
    Rooms { inbound: room(), outbound: room(), arrived: room() }
}

fn hardships(dice: &mut Dice) -> Hardships {
    let mut percent = |most| if dice.percent(50) { 0 } else { dice.below(most) };
    Hardships {
        meanwhile: percent(80),
        interrupts: percent(40),
        partial: percent(40),
        no_pipe: percent(40),
        pipe_bytes: [1000 + dice.below(4000), 64 << 10, 256 << 10][dice.below(3)],
        watches: usize::MAX,
    }
}

impl Fuzzed {
    fn check(&self, driver: &Driver, client: usize) {
        match self.kind {
            Kind::Usual => self.check_relayed(driver, client),
            Kind::NoHeader | Kind::NotDialled => self.check_refused(driver, client),
            // Every byte that was read has been compared, and whatever is held was checked to be none.
            Kind::StopsReading => {}
        }
    }

    fn check_relayed(&self, driver: &Driver, client: usize) {
        let reason = driver.reason(client).expect("the session has ended");
        let is_orderly = |script: &Script| matches!(script.ending, Ending::Fin | Ending::FinAfterTheirs);
        let Plan { client: sender, backend, .. } = &self.sessions;
        let is_orderly = is_orderly(sender) && is_orderly(backend);
        if !is_orderly && matches!(reason, CloseReason::Header(_)) {
            // The client was gone before its header was read.
            return;
        }
        parties(driver, client, |client, backend| {
            check_delivery(client, backend);
            check_delivery(backend, client);
            if is_orderly {
                assert_eq!((client.saw, backend.saw), (Some(End::Fin), Some(End::Fin)));
            }
        });
        if is_orderly {
            assert_eq!(reason, &CloseReason::Finished);
        }
    }

    fn check_refused(&self, driver: &Driver, client: usize) {
        assert!(driver.reason(client).is_some(), "the session has not ended");
        let world = driver.io.world.borrow();
        let client = &world.places[client].party;
        let backend = world.places.iter().map(|place| &place.party).find(|party| party.hears(client));
        if let Some(backend) = backend {
            assert!(self.kind == Kind::NotDialled, "a backend was dialled without a header");
            assert_eq!((backend.received_of_stream(), backend.sent_of_stream()), (0, 0));
        }
        assert_eq!(client.received_of_stream(), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_make_sessions_that_keep_the_promises(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            super::any_sessions(&bytes);
        }
    }

    /// The backend sends, marks its last byte as urgent and resets before truepeer hears that it has
    /// answered.
    #[test]
    fn an_urgent_byte_before_a_reset_is_delivered() {
        super::any_sessions(&[
            206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 0, 0, 0, 0, 206, 206, 206, 206, 206,
            206, 41, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 91, 206, 206, 206,
            252, 162, 208, 35, 255, 255, 128, 171, 171, 171, 171, 171, 171, 171, 171, 171, 171, 171, 171,
            171, 171, 171, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 206, 209, 217, 0, 4,
        ]);
    }

    /// A send buffer of one byte, which the network empties during calls: each second write finds it full,
    /// with progress in between.
    #[test]
    fn a_send_buffer_of_one_byte_fills_up_again_and_again() {
        super::any_sessions(&[
            24, 24, 0, 212, 24, 0, 100, 100, 102, 155, 155, 155, 27, 1, 0, 0, 0, 0, 0, 0, 61, 0, 0, 0, 0, 0,
            0, 0, 0, 47,
        ]);
    }
}
