//! Sessions that relay: their deadlines, their resets, and copying or splicing.

use std::time::Duration;

use truepeer_session::CloseReason;
use truepeer_session::settings::SpliceAfter;

use super::case::{Case, Played, check_whole, script};
use super::connection::{End, Rooms};
use super::driver::budgets;
use super::party::Ending;
use super::scenario::header;

#[test]
fn a_silent_session_is_ended() {
    let mut case = Case::new();
    case.settings.idle_timeout = Some(Duration::from_secs(60));
    case.client.ending = Ending::Never;
    case.play_often(|played| {
        assert_eq!(played.closed().reason, CloseReason::Idle);
        assert_eq!(played.after(), Duration::from_secs(60));
        assert_eq!(played.at_client(|client| client.party.saw), Some(End::Fin));
        assert_eq!(played.at_backend(|backend| backend.party.saw), Some(End::Fin));
    });
}

#[test]
fn a_session_that_ends_idle_with_bytes_undelivered_does_not_end_in_order() {
    for backlog_bytes in [1 << 20, 0] {
        let mut case = Case::new();
        case.settings.idle_timeout = Some(Duration::from_secs(60));
        case.budgets = budgets(1, backlog_bytes, 1 << 20);
        case.client = script(header(1), 500_000, Ending::Fin);
        case.backend.appetite = 1000;
        case.play_often(|played| {
            assert_eq!(played.closed().reason, CloseReason::Idle);
            assert_eq!(played.at_backend(|backend| backend.connection.end_of_stream()), Some(End::Reset));
        });
    }
}

#[test]
fn a_reset_does_not_wait_longer_for_a_slow_receiver_than_a_second() {
    let mut case = Case::new();
    case.client = script(header(1), 500_000, Ending::Reset { sent: 150_000, received: 0 });
    case.backend.appetite = 1000;
    case.play_often(|played| {
        assert_eq!(played.closed().reason, CloseReason::ResetByClient);
        assert_eq!(played.after(), Duration::from_secs(1));
        assert_eq!(played.at_backend(|backend| backend.connection.end_of_stream()), Some(End::Reset));
    });
}

#[test]
fn no_event_makes_a_reset_wait_longer() {
    let mut case = Case::new();
    case.client = script(header(1), 500_000, Ending::Reset { sent: 150_000, received: 0 });
    case.backend.appetite = 1000;
    let mut driver = case.begin();
    // The backend keeps sending to a client that is gone.
    driver.run_ticking(Duration::from_millis(10), |world| world.places[1].connection.receive(b"x"));
    let played = Played(driver);
    assert_eq!(played.closed().reason, CloseReason::ResetByClient);
    assert!(played.after() <= Duration::from_secs(1), "{:?}", played.after());
}

#[test]
fn a_session_that_shares_the_worker_with_many_is_not_idle() {
    let mut case = Case::new();
    case.settings.idle_timeout = Some(Duration::from_secs(1));
    // There is always something to read and room to write, turn after turn, without an event in between.
    let rooms = Rooms { inbound: 8 << 20, outbound: 8 << 20, arrived: 8 << 20 };
    (case.client_rooms, case.backend_rooms) = (rooms, rooms);
    case.client = script(header(1), 6 << 20, Ending::Fin);
    case.client.chunk = 8 << 20;
    case.hardships.pipe_bytes = 4 << 10;
    let mut driver = case.begin();
    driver.run_slowly(Duration::from_millis(300));
    assert!(driver.closed.iter().all(|closed| closed.after > Duration::from_secs(2)), "{:?}", driver.closed);
    check_whole(&Played(driver));
}

#[test]
fn urgent_bytes_are_delivered_and_block_nothing() {
    for (length, chunk) in [(10, 5), (1_000_000, 200_000)] {
        let mut case = Case::new();
        case.client = script(header(1), length, Ending::FinAfterTheirs);
        case.client.chunk = chunk;
        case.client.urgent = true;
        case.backend.ending = Ending::Fin;
        case.play_often(check_whole);
    }
}

#[test]
fn bulk_is_spliced_even_when_the_backlog_budget_is_used_up() {
    for backlog_bytes in [1 << 20, 0] {
        let mut case = Case::new();
        case.budgets = budgets(4, backlog_bytes, 1 << 20);
        case.client.length = 1_000_000;
        case.client.chunk = 100_000;
        let played = case.play();
        check_whole(&played);
        let spliced = played.0.io.world.borrow().spliced_bytes;
        assert!(spliced > 500_000, "{spliced} with {backlog_bytes}");
    }
}

#[test]
fn a_session_with_an_urgent_byte_does_not_try_to_leave() {
    for (urgent, reason) in [(true, "urgent"), (false, "not_loaded")] {
        let mut case = Case::new();
        case.settings.splice_after = Some(SpliceAfter { is_marked: false, bytes: 1, age: Duration::ZERO });
        case.client = script(header(1), 10, Ending::FinAfterTheirs);
        case.client.urgent = urgent;
        case.backend.ending = Ending::Fin;
        let played = case.play();
        check_whole(&played);
        assert_eq!(played.0.stays(), [(reason, 1)].into());
    }
}
