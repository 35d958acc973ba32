//! Hand-overs between unmodified kernels, over links that lose, reorder, double and damage packets: every
//! byte arrives once and in order, and so does every end.
//!
//! `HANDOVERS=N` makes so many of each test.

mod agreed;
mod attack;
mod fates;
mod firewall;
mod frames;
mod line;
mod paths;
mod peers;
mod places;
mod relay;
mod resets;
mod reuse;
mod stand;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::packets::Mischief;
use truepeer_testbed::{Bed, Test};

use crate::paths::Narrow;
use crate::peers::Way;
use crate::stand::Stand;

const WAYS: [(&str, Way); 4] = [
    ("questions_and_answers", Way::Questions),
    ("bulk_both_ways", Way::Bulk),
    ("slow_readers", Way::Slow),
    ("resets", Way::Reset),
];

/// Hand-overs of each test; with TRUEPEER_TEST_ALL, of the longer run. `tests/simulated` makes the many.
const FEW: usize = 24;
const MANY: usize = 1000;

fn main() -> ExitCode {
    let told = std::env::var("HANDOVERS").ok().and_then(|count| count.parse().ok());
    let is_long = std::env::var_os("TRUEPEER_TEST_ALL").is_some();
    let count: usize = told.unwrap_or(if is_long { MANY } else { FEW });
    let mut tests = Vec::new();
    for (name, way) in WAYS {
        for (link, share) in [("good_links", 0), ("bad_links", 20)] {
            for v6 in [false, true] {
                let family = if v6 { "ipv6" } else { "ipv4" };
                let test = Test::new(format!("{name}_over_{link}_by_{family}"), move |bed: &Bed| {
                    all_arrives(bed, way, share, v6, count)
                });
                // A thousand take 220 s on a quiet machine.
                let limit = Duration::from_secs(220 + 2 * count as u64);
                tests.push(test.time_limit(limit).needs_program("ethtool").alone());
            }
        }
    }
    for v6 in [false, true] {
        tests.extend(by_hand(v6));
    }
    tests.push(Test::new("a_session_behind_another_stays", frames::chained));
    tests.push(Test::new(
        "of_two_chained_sessions_that_leave_at_once_one_stays_at_least",
        frames::chained_at_once,
    ));
    tests.push(Test::new(
        "a_forgotten_flow_keeps_its_addresses",
        places::a_forgotten_flow_keeps_its_addresses,
    ));
    tests.push(Test::new(
        "an_heir_of_empty_tables_begins_flows",
        places::an_heir_of_empty_tables_begins_flows,
    ));
    tests.push(Test::new(
        "no_order_lends_a_socket_that_binds_beside_others",
        reuse::no_order_lends_a_socket_that_binds_beside_others,
    ));
    tests.push(Test::new(
        "tables_of_a_namespace_that_is_gone_are_removed",
        places::tables_of_a_namespace_that_is_gone_are_removed,
    ));
    tests.push(Test::new("after_a_kill_flows_begin_at_once", places::after_a_kill_flows_begin_at_once));
    tests.push(Test::new(
        "each_process_answers_for_its_own_flows",
        places::each_process_answers_for_its_own_flows,
    ));
    tests.push(Test::new(
        "an_heir_inherits_from_its_predecessor_alone",
        places::an_heir_inherits_from_its_predecessor_alone,
    ));
    tests.push(Test::new("what_made_room_keeps_its_keys", places::what_made_room_keeps_its_keys));
    tests.push(Test::new(
        "the_keys_of_a_flow_that_is_gone_are_removed",
        places::the_keys_of_a_flow_that_is_gone_are_removed,
    ));
    for (name, test) in [
        ("rules_that_could_act_keep_sessions", firewall::rules_that_could_act_keep_sessions as fn(&Bed) -> _),
        ("rules_that_could_not_act_keep_none", firewall::rules_that_could_not_act_keep_none),
        ("the_order_of_rules_is_followed", firewall::the_order_of_rules_is_followed),
    ] {
        tests.push(Test::new(name, test).needs_program("nft").time_limit(Duration::from_secs(120)));
    }
    truepeer_testbed::main(tests)
}

/// Sessions whose relay does each step by hand.
fn by_hand(v6: bool) -> Vec<Test> {
    let family = if v6 { "ipv6" } else { "ipv4" };
    let mut tests = Vec::new();
    for (when, is_removed) in [("killed", false), ("forgotten", true)] {
        tests
            .push(Test::new(format!("a_reset_in_the_tail_is_believed_{when}_{family}"), move |bed: &Bed| {
                resets::believed(bed, v6, is_removed)
            }));
    }
    for (place, narrow) in [("a_router", Narrow::Router), ("the_relay", Narrow::Relay)] {
        for (end, from) in [("sender", 0), ("backend", 1)] {
            let name = format!("the_{end}_learns_of_a_path_that_shrinks_at_{place}_{family}");
            tests.push(Test::new(name, move |bed: &Bed| paths::goes_on(bed, v6, narrow, from)));
        }
    }
    tests.push(Test::new(format!("a_session_follows_the_route_{family}"), move |bed: &Bed| {
        paths::follows_the_route(bed, v6)
    }));
    tests.push(Test::new(format!("a_session_leaves_beside_loopback_{family}"), move |bed: &Bed| {
        agreed::leaves_beside_loopback(bed, v6)
    }));
    tests.push(Test::new(format!("a_window_of_less_than_a_step_stays_{family}"), move |bed: &Bed| {
        agreed::a_window_of_less_than_a_step_stays(bed, v6)
    }));
    tests.push(Test::new(format!("an_offer_is_not_taken_back_{family}"), move |bed: &Bed| {
        agreed::an_offer_is_not_taken_back(bed, v6)
    }));
    let name = format!("a_held_session_gets_on_when_a_window_opens_{family}");
    tests.push(Test::new(name, move |bed: &Bed| agreed::a_held_session_gets_on_when_a_window_opens(bed, v6)));
    tests.push(Test::new(format!("a_third_host_changes_nothing_{family}"), move |bed: &Bed| {
        attack::changes_nothing(bed, v6)
    }));
    tests.push(Test::new(format!("no_number_near_the_window_resets_{family}"), move |bed: &Bed| {
        attack::sweep(bed, v6)
    }));
    tests.push(Test::new(format!("no_number_of_bytes_under_way_resets_{family}"), move |bed: &Bed| {
        attack::sweep_in_flight(bed, v6)
    }));
    tests.push(Test::new(format!("an_old_end_ends_nothing_{family}"), move |bed: &Bed| {
        attack::an_old_end_ends_nothing(bed, v6)
    }));
    tests.push(Test::new(format!("copies_with_another_mark_are_not_copied_{family}"), move |bed: &Bed| {
        resets::copies_with_another_mark(bed, v6)
    }));
    tests.push(Test::new(format!("a_forged_syn_closes_no_window_{family}"), move |bed: &Bed| {
        attack::a_syn_closes_no_window(bed, v6)
    }));
    tests.push(Test::new(format!("a_syn_makes_room_a_second_after_a_reset_{family}"), move |bed: &Bed| {
        attack::syn_after_reset(bed, v6)
    }));
    tests.push(Test::new(format!("a_syn_with_a_newer_timestamp_makes_room_{family}"), move |bed: &Bed| {
        attack::a_newer_timestamp_makes_room(bed, v6)
    }));
    tests.push(Test::new(
        format!("resets_keep_no_addresses_of_an_ended_session_{family}"),
        move |bed: &Bed| attack::resets_keep_no_addresses(bed, v6),
    ));
    tests.push(Test::new(format!("a_tag_of_priority_goes_and_others_pass_{family}"), move |bed: &Bed| {
        frames::tagged(bed, v6)
    }));
    tests
}

fn all_arrives(bed: &Bed, way: Way, share: usize, v6: bool, count: usize) -> Result<()> {
    let stand = Stand::make(bed, Mischief::of_each(share))?;
    if way == Way::Slow {
        stand.shrink_receive_buffers()?;
    }
    let serving = stand.serve(v6)?;
    let outcome = stand.sender.run(|| {
        in_parallel(24.min(count), count, |n| peers::talk(serving.relay_at, way, n as u64, &serving.fates))
    })?;
    let told = serving.relay.tally();
    println!("{told:?} {:?}", stand.counters());
    let backend = stand.backend_is_content(&serving);
    outcome.with_context(|| format!("{told:?}\n{}\nthe backend: {backend:?}", serving.relay.describe()))?;
    backend?;
    // The programs don't learn of a lost reset, and both peers are gone: docs/internals/splice.md, *A reset
    // is sent once*.
    if way != Way::Reset || share == 0 {
        serving
            .relay
            .wait_for_ends()
            .with_context(|| stand.peers_sockets().unwrap_or_else(|error| error.to_string()))?;
    }
    // A damaged window that is learnt, or an old one that is not, is counted, too.
    let beyond = stand.counters().into_iter().find(|(name, _)| *name == "beyond_edge");
    ensure!(share > 0 || beyond.is_none(), "a peer has sent more than the other one takes: {beyond:?}");
    // Every second reset comes at any moment; all other peers wait until their session has left or stays.
    let decided = if way == Way::Reset { count / 4 } else { count };
    ensure!(told.armed >= decided * 3 / 4, "{told:?}");
    ensure!(told.offload + told.stayed >= decided, "some have neither left nor stayed: {told:?}");
    // A peer that takes nothing for two seconds keeps its session here, so how many leave depends on the
    // machine's load. tests/simulated requires a share, by its own clock.
    ensure!(share > 0 || told.offload > 0, "none left user space: {told:?}");
    Ok(())
}
