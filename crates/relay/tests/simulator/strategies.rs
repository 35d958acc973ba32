//! Random scenarios for proptest.

use proptest::prelude::*;

use super::connection::Rooms;
use super::io::Hardships;
use super::party::{Ending, Script};
use super::scenario::{Plan, Scenario, header};
use super::world::Dial;

fn room() -> impl Strategy<Value = usize> {
    prop_oneof![1..100_usize, 1000..20_000_usize, 60_000..300_000_usize]
}

fn rooms() -> impl Strategy<Value = Rooms> {
    (room(), room(), room()).prop_map(|(inbound, outbound, arrived)| Rooms { inbound, outbound, arrived })
}

/// Lengths around the limits: none, less than a read, a read, several reads.
fn length(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..200_usize, 4000..5000_usize, 65_530..65_540_usize, 0..most.max(1)]
        .prop_map(move |length| length.min(most))
}

fn orderly() -> impl Strategy<Value = Ending> {
    prop_oneof![3 => Just(Ending::Fin), 2 => Just(Ending::FinAfterTheirs)]
}

fn any_ending(opening: usize, length: usize) -> impl Strategy<Value = Ending> {
    let reset = (0..=length, 0..=length)
        .prop_map(move |(sent, received)| Ending::Reset { sent: opening + sent, received: received / 4 });
    prop_oneof![2 => orderly(), 1 => Just(Ending::Close), 3 => reset]
}

/// What a party sends, how it sends it, and how it reads.
fn script(opening: Vec<u8>, most: usize, resets: bool) -> impl Strategy<Value = Script> {
    let chunk = prop_oneof![1..8_usize, 100..5000_usize, 60_000..200_000_usize];
    (length(most), chunk.clone(), chunk, prop::bool::weighted(0.2)).prop_flat_map(
        move |(length, chunk, gulp, urgent)| {
            let ending = if resets { any_ending(opening.len(), length).boxed() } else { orderly().boxed() };
            let opening = opening.clone();
            ending.prop_map(move |ending| Script {
                opening: opening.clone(),
                length,
                chunk,
                gulp,
                appetite: usize::MAX,
                ending,
                urgent,
                hears_first: 0,
            })
        },
    )
}

fn plan(number: u8, most: usize, resets: bool) -> impl Strategy<Value = Plan> {
    let dial = prop_oneof![Just(Dial::AtOnce), Just(Dial::Later)];
    let parties = (script(header(number), most, resets), script(Vec::new(), most, resets));
    (parties, rooms(), rooms(), dial).prop_map(
        |((mut client, mut backend), client_rooms, backend_rooms, dial)| {
            // One party must be the first to end.
            if client.ending == Ending::FinAfterTheirs && backend.ending == Ending::FinAfterTheirs {
                backend.ending = Ending::Fin;
            }
            client.wait_at_most_for(backend.length);
            backend.wait_at_most_for(client.length);
            let mut plan = Plan { client, client_rooms, backend, backend_rooms, dial };
            plan.shorten();
            plan
        },
    )
}

fn hardships() -> impl Strategy<Value = Hardships> {
    let percent = || prop_oneof![Just(0_usize), 1..40_usize];
    let pipe = prop_oneof![1000..5000_usize, Just(64 << 10), Just(256 << 10)];
    (percent(), percent(), percent(), percent(), pipe).prop_map(
        |(meanwhile, interrupts, partial, no_pipe, pipe_bytes)| Hardships {
            meanwhile: meanwhile * 2,
            interrupts,
            partial,
            no_pipe,
            pipe_bytes,
            watches: usize::MAX,
        },
    )
}

/// Up to three sessions at once.
pub(super) fn scenario(most: usize, resets: bool) -> impl Strategy<Value = Scenario> {
    let plans = (1..=3_u8).prop_flat_map(move |count| {
        (0..count).map(|number| plan(number + 1, most, resets)).collect::<Vec<_>>()
    });
    let backlog = prop_oneof![Just(0_usize), Just(100_000), Just(usize::MAX / 2)];
    (any::<u64>(), plans, hardships(), 0..4_usize, backlog).prop_map(
        |(seed, plans, hardships, pipes, backlog_bytes)| Scenario {
            seed,
            plans,
            hardships,
            pipes,
            backlog_bytes,
            leaving: None,
        },
    )
}
