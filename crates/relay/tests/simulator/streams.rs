//! Properties of whole sessions, for random streams, schedules and difficulties.

use proptest::prelude::*;
use truepeer_session::CloseReason;

use super::connection::{End, Rooms};
use super::io::Hardships;
use super::party::{Ending, Script};
use super::scenario::{Plan, Scenario, check_delivery, header, parties};
use super::strategies::scenario;
use super::world::Dial;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn every_byte_arrives_once_and_in_order_and_each_end_is_passed_on(scenario in scenario(300_000, false)) {
        let (driver, clients) = scenario.play();
        for client in clients {
            assert_eq!(driver.reason(client), Some(&CloseReason::Finished));
            parties(&driver, client, |client, backend| {
                check_delivery(client, backend);
                check_delivery(backend, client);
                assert_eq!((client.saw, backend.saw), (Some(End::Fin), Some(End::Fin)));
            });
        }
        driver.check_that_nothing_is_left();
    }

    #[test]
    fn a_reset_is_passed_on_after_what_came_before_it(scenario in scenario(200_000, true)) {
        let (driver, clients) = scenario.play();
        for client in clients {
            assert!(driver.reason(client).is_some(), "the session has not ended");
            parties(&driver, client, |client, backend| {
                check_delivery(client, backend);
                check_delivery(backend, client);
            });
        }
        driver.check_that_nothing_is_left();
    }

    #[test]
    fn a_receiver_that_stops_reading_stops_its_sender(
        mut scenario in scenario(300_000, false),
        appetite in 0..100_000_usize,
    ) {
        for plan in &mut scenario.plans {
            plan.backend.appetite = appetite;
            plan.client.length = 1_500_000;
            plan.client.chunk = 200_000;
            plan.client.ending = Ending::Fin;
            plan.shorten();
        }
        // Each read checks that no bytes are held.
        let (driver, clients) = scenario.play();
        for client in clients {
            assert_eq!(driver.reason(client), None, "the session can't have ended");
            parties(&driver, client, |client, backend| {
                assert_eq!(backend.received_of_stream(), appetite);
                assert_eq!(backend.saw, None);
                check_delivery(backend, client);
            });
        }
    }
}

/// The end came with the header, and what came between fills the backend's socket so far that it is not
/// writable: the only event to come says that there is room again.
#[test]
fn an_end_behind_first_bytes_that_fill_the_socket_is_passed_on() {
    let script = |opening, length, ending| Script {
        opening,
        length,
        chunk: 100_000,
        gulp: 4096,
        appetite: usize::MAX,
        ending,
        urgent: false,
        hears_first: 0,
    };
    for seed in 0..100 {
        let scenario = Scenario {
            seed,
            plans: vec![Plan {
                client: script(header(1), 61, Ending::Fin),
                client_rooms: Rooms { inbound: 10_000, outbound: 10_000, arrived: 10_000 },
                backend: script(Vec::new(), 0, Ending::FinAfterTheirs),
                backend_rooms: Rooms { inbound: 80, outbound: 67, arrived: 7 },
                dial: Dial::AtOnce,
            }],
            hardships: Hardships::NONE,
            pipes: 3,
            backlog_bytes: 0,
            leaving: None,
        };
        let (driver, clients) = scenario.play();
        assert_eq!(driver.reason(clients[0]), Some(&CloseReason::Finished), "seed {seed}");
        driver.check_that_nothing_is_left();
    }
}
