//! Properties of whole sessions, for random streams, schedules and difficulties.

use proptest::prelude::*;
use truepeer_session::CloseReason;

use super::connection::End;
use super::party::Ending;
use super::scenario::{check_delivery, parties, scenario};

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
