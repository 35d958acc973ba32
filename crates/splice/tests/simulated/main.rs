//! Hand-overs as a pure model: peers, sockets, links and programs in one process and in made up time. Loss,
//! other order, doubling, delay, segments that slip to a socket, windows that close, ends and resets come at
//! any moment: every byte arrives, in order, once, and every end.
//!
//! Peers have timestamps, of slow clocks too, or none; windows of all sizes and scales.
//!
//! 2,000 hand-overs; with TRUEPEER_TEST_ALL 100,000. `HANDOVERS=N` makes so many of each test; `SEED=N`
//! begins with that session.

#[path = "../../../bpf/tests/splice/model.rs"]
mod model;
mod relay;
mod tcp;
mod world;

use anyhow::{Context, Result, ensure};

use crate::world::{Left, Way, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Sessions until so many have left user space; the others end before, or stay.
fn run(way: Way, few: u64) -> Result<()> {
    const MOST_SESSIONS: u64 = 6;
    let more = if std::env::var_os("TRUEPEER_TEST_ALL").is_some() { 50 } else { 1 };
    let wanted = number("HANDOVERS").unwrap_or(few * more);
    let first = number("SEED").unwrap_or(0);
    let mut left = 0;
    for seed in first.. {
        let outcome = World::new(seed, way).run().with_context(|| format!("SEED={seed}"))?;
        left += u64::from(outcome == Left::UserSpace);
        let sessions = seed - first + 1;
        if left >= wanted {
            println!("{left} of {sessions} left user space");
            break;
        }
        ensure!(sessions < wanted * MOST_SESSIONS + 10, "only {left} of {sessions} left user space");
    }
    Ok(())
}

#[test]
fn every_byte_and_end_arrives() -> Result<()> {
    run(Way::Orderly, 1400)
}

#[test]
fn a_reset_is_learnt_by_the_other_end() -> Result<()> {
    run(Way::Reset, 600)
}

/// At the cut our socket has segments ahead of a gap, and its window is closed.
#[test]
fn a_copy_opens_the_window_of_a_socket_with_a_gap() -> Result<()> {
    World::of_plain_peers(33_985, Way::Orderly).run().map(drop)
}

/// Until a socket is closed, it answers segments that slipped to it: it must not offer more than the other
/// peer takes.
#[test]
fn a_socket_that_still_stands_in_spliced_offers_no_more_than_the_other_peer_takes() -> Result<()> {
    World::of_plain_peers(29_069, Way::Reset).run().map(drop)
}
