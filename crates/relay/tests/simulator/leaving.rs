//! Sessions that leave user space, with the relay's own session: every byte arrives once and in order, and
//! each end is passed on, whatever the programs, the kernel and the peers do at whichever moment.
//!
//! 2,000 hand-overs; with TRUEPEER_TEST_ALL 100,000. `HANDOVERS=N` makes so many of each test, `SEED=N`
//! begins with that scenario.

use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use truepeer_session::CloseReason;
use truepeer_session::counters::Counter;
use truepeer_session::settings::SpliceAfter;

use super::case::{Case, Played, check_whole, script};
use super::connection::End;
use super::dice::Dice;
use super::driver::Driver;
use super::offload::{Obstacles, SimOffload};
use super::party::Ending;
use super::scenario::{Scenario, check_delivery, header, parties};
use super::strategies::scenario;
use crate::tcp::session::Verdict;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// The scenario of this number: up to three sessions at once.
fn scenario_of(seed: u64, resets: bool, obstacles: Obstacles) -> Scenario {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let drawn = scenario(60_000, resets).new_tree(&mut runner).expect("a scenario").current();
    let mut dice = Dice::new(seed);
    let bytes = if dice.percent(50) { 0 } else { dice.below(20_000) as u64 };
    Scenario { leaving: Some((bytes, obstacles)), ..drawn }
}

/// Scenarios until so many sessions have left, and a check of each.
fn play(few: u64, resets: bool, obstacles: Obstacles, check: impl Fn(&Driver, &[usize])) {
    let more = if std::env::var_os("TRUEPEER_TEST_ALL").is_some() { 50 } else { 1 };
    let wanted = number("HANDOVERS").unwrap_or(few * more);
    let (mut left, mut slipped, mut sessions) = (0, 0, 0);
    for seed in number("SEED").unwrap_or(0).. {
        println!("SEED={seed}");
        let (driver, clients) = scenario_of(seed, resets, obstacles).play();
        check(&driver, &clients);
        left += driver.count(Counter::Spliced);
        slipped += driver.io.world().slipped();
        sessions += clients.len() as u64;
        driver.check_that_nothing_is_left();
        if left >= wanted {
            break;
        }
        assert!(sessions < 20 * wanted + 100, "only {left} of {sessions} have left");
    }
    println!("{left} of {sessions} left user space; {slipped} times a socket got something after its cut");
    assert!(slipped > 0 || obstacles.slips == 0);
}

const USUAL: Obstacles = Obstacles { refuses: 5, waits: 30, changes: 5, fails: 1, breaks: 0, slips: 50 };

fn check_all(driver: &Driver, clients: &[usize]) {
    for &client in clients {
        parties(driver, client, |client, backend| {
            check_delivery(client, backend);
            check_delivery(backend, client);
        });
    }
}

#[test]
fn every_byte_and_end_arrives() {
    play(1400, false, USUAL, |driver, clients| {
        check_all(driver, clients);
        let mut bytes = [0, 0];
        for &client in clients {
            assert_eq!(driver.reason(client), Some(&CloseReason::Finished));
            parties(driver, client, |client, backend| {
                assert_eq!((client.saw, backend.saw), (Some(End::Fin), Some(End::Fin)));
                bytes[0] += client.sent_of_stream() as u64;
                bytes[1] += backend.sent_of_stream() as u64;
            });
        }
        let counted = [Counter::BytesUp, Counter::BytesDown].map(|counter| driver.count(counter));
        assert_eq!(counted, bytes, "bytes up and down are counted once");
    });
}

#[test]
fn a_reset_is_passed_on() {
    play(600, true, USUAL, |driver, clients| {
        check_all(driver, clients);
        for &client in clients {
            assert!(driver.reason(client).is_some(), "the session has not ended");
        }
    });
}

/// Bytes on their way are lost then. No peer may take that for an end.
#[test]
fn calls_that_fail_after_the_cut_reset_both() {
    let obstacles = Obstacles { breaks: 2, ..USUAL };
    let wrecks = std::cell::Cell::new(0);
    play(50, false, obstacles, |driver, clients| {
        for &client in clients {
            let is_broken = driver.reason(client) != Some(&CloseReason::Finished);
            wrecks.set(wrecks.get() + u64::from(is_broken));
            parties(driver, client, |client, backend| {
                for (source, sink) in [(client, backend), (backend, client)] {
                    assert!(sink.saw.is_some(), "an end is not passed on");
                    if !is_broken || sink.saw == Some(End::Fin) {
                        check_delivery(source, sink);
                    }
                }
            });
        }
    });
    println!("{} sessions broke", wrecks.get());
    assert!(wrecks.get() > 0);
}

/// A session that leaves as soon as it can.
fn leaving(obstacles: Obstacles) -> (Case, impl Fn(&Case) -> Driver) {
    let mut case = Case::new();
    case.settings.splice_after = Some(SpliceAfter { is_marked: false, bytes: 0, age: Duration::ZERO });
    let begin = move |case: &Case| {
        let mut driver = case.begin();
        driver.io.offload = Ok(SimOffload::new(&driver.io.world, obstacles));
        driver
    };
    (case, begin)
}

/// A session whose parties say something, and then nothing.
fn silent(idle: Option<Duration>) -> Driver {
    let (mut case, begin) = leaving(Obstacles::NONE);
    case.settings.idle_timeout = idle;
    case.client = script(header(1), 500, Ending::Never);
    case.backend = script(Vec::new(), 3000, Ending::Never);
    begin(&case)
}

/// Runs it for a while.
fn run_for(driver: &mut Driver, seconds: usize, mut act: impl FnMut(&mut Driver, usize)) {
    for second in 0..seconds {
        driver.run_until(Duration::from_secs(second as u64));
        act(driver, second);
    }
}

fn both_saw(played: &Played, end: Option<End>) {
    assert_eq!(played.at_client(|client| client.party.saw), end);
    assert_eq!(played.at_backend(|backend| backend.party.saw), end);
}

#[test]
fn a_silent_session_that_has_left_is_ended() {
    let mut driver = silent(Some(Duration::from_secs(60)));
    driver.run();
    assert_eq!(driver.count(Counter::Spliced), 1);
    let played = Played(driver);
    assert_eq!(played.closed().reason, CloseReason::Idle);
    both_saw(&played, Some(End::Reset));
}

#[test]
fn a_peer_that_is_gone_is_asked_nine_times_and_then_the_other_one_is_reset() {
    for side in 0..2 {
        let mut driver = silent(None);
        run_for(&mut driver, 900, |driver, second| {
            if second == 1 {
                driver.io.world().flows[0].gone = Some(side);
            }
        });
        let asked = driver.io.world().flows[0].questions[side];
        assert!(asked >= 9, "{asked}");
        let reason = if side == 0 { CloseReason::ResetByClient } else { CloseReason::ResetByBackend };
        let played = Played(driver);
        assert_eq!(played.closed().reason, reason);
        both_saw(&played, Some(End::Reset));
    }
}

#[test]
fn peers_that_answer_keep_a_silent_session() {
    let mut driver = silent(None);
    run_for(&mut driver, 3600, |_, _| {});
    assert!(driver.closed.is_empty());
    both_saw(&Played(driver), None);
}

#[test]
fn without_the_keeper_nobody_is_asked_and_nobody_taken_for_gone() {
    let mut driver = silent(None);
    run_for(&mut driver, 3600, |driver, second| {
        if second == 1 {
            driver.io.offload.as_mut().expect("sessions leave").has_keeper = false;
        }
    });
    assert_eq!(driver.io.world().flows[0].questions, [0, 0]);
    assert!(driver.closed.is_empty());
}

#[test]
fn a_session_that_has_lost_its_way_is_reset() {
    let mut driver = silent(None);
    run_for(&mut driver, 10, |driver, second| {
        driver.io.world().flows[0].has_lost_its_way = second >= 3;
    });
    let played = Played(driver);
    assert_eq!(played.closed().reason, CloseReason::WayLost);
    both_saw(&played, Some(End::Reset));
}

#[test]
fn the_operator_ends_a_session_that_has_left() {
    let mut driver = silent(None);
    run_for(&mut driver, 5, |driver, second| {
        if second == 3 {
            driver.order_left(|| Verdict::Close(CloseReason::EndedByOperator));
        }
    });
    let played = Played(driver);
    assert_eq!(played.closed().reason, CloseReason::EndedByOperator);
    both_saw(&played, Some(End::Reset));
}

/// Another process takes it over: nothing is said to the peers, and their bytes go on.
#[test]
fn a_session_that_is_released_goes_on_without_this_process() {
    let (mut case, begin) = leaving(Obstacles::NONE);
    case.client = script(header(1), 500, Ending::FinAfterTheirs);
    case.backend = script(Vec::new(), 3000, Ending::Never);
    let mut driver = begin(&case);
    run_for(&mut driver, 3, |driver, second| {
        if second == 1 {
            driver.order_left(|| Verdict::Offloaded);
            assert_eq!(driver.len(), 0);
            driver.io.world().places[1].connection.receive_fin();
        }
    });
    let played = Played(driver);
    assert!(played.0.closed.is_empty());
    assert_eq!(played.at_client(|client| client.party.saw), Some(End::Fin));
    assert_eq!(played.at_backend(|backend| backend.party.saw), Some(End::Fin));
}

/// Sockets that can't be closed silently stay open until both streams have ended.
#[test]
fn without_the_keeper_a_session_after_its_cut_ends_in_order() {
    let obstacles = Obstacles { waits: 60, ..Obstacles::NONE };
    let mut seen = 0;
    for seed in 0..200 {
        let (mut case, begin) = leaving(obstacles);
        case.seed = seed;
        case.client = script(header(1), 30_000, Ending::FinAfterTheirs);
        case.backend = script(Vec::new(), 30_000, Ending::Fin);
        let mut driver = begin(&case);
        driver.io.offload.as_mut().expect("sessions leave").has_keeper = false;
        driver.run();
        seen += driver.count(Counter::Spliced);
        check_whole(&Played(driver));
    }
    assert!(seen > 0);
}
