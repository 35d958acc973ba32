//! `truepeer vpp`: with a stand-in where VPP's behaviour doesn't matter, and with a real VPP if there is one.

#[allow(dead_code, reason = "other tests use all of it")]
#[path = "../tls/authority.rs"]
mod authority;
mod https;
mod kit;
mod real;
mod stand_in;

use std::process::ExitCode;

use truepeer_testbed::tests;

fn main() -> ExitCode {
    let mut all = tests![
        stand_in::the_loopback_layout_comes_up_and_goes_down,
        stand_in::the_ethernet_layout_is_of_the_named_devices,
        stand_in::a_line_that_fails_leaves_nothing,
        stand_in::a_vpp_that_ends_at_once_is_told_with_its_last_words,
        stand_in::a_second_one_needs_another_place,
        stand_in::one_that_ended_by_itself_is_cleared_and_replaced,
        stand_in::an_interrupted_start_leaves_nothing,
        stand_in::programs_are_told_where_vpp_is,
        stand_in::programs_that_load_no_library_are_refused,
        stand_in::without_vpp_one_line_says_so,
        stand_in::a_plan_is_printed_without_vpp,
        stand_in::the_demonstration_is_the_program_beside_truepeer,
    ];
    all.extend(
        tests![
            real::the_loopback_layout_carries_connections,
            real::the_ethernet_layout_answers_on_the_wire,
            real::a_device_that_does_not_exist_leaves_nothing,
            real::one_that_is_killed_is_cleared_and_replaced,
        ]
        .into_iter()
        .map(truepeer_testbed::Test::alone),
    );
    all.extend(https::tests());
    truepeer_testbed::main(all)
}
