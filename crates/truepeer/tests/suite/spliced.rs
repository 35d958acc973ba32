//! The tests of `truepeer proxy` for TCP once more, while each session leaves user space as soon as it can
//! (`--splice auto --splice-after 0`). Most of these sessions end before they could leave: they show that an
//! attempt harms nothing. [`LEAVE`] lists those that last longer.

use anyhow::ensure;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Test};

use crate::{
    backends, chains, crowds, delivery, destinations, faults, kernel, launch, limits, operation, refusals,
    senders,
};

const AT_ONCE: [&str; 4] = ["--splice", "auto", "--splice-after", "0"];

/// Tests that would show nothing more, and why.
const LEFT_OUT: [(&str, &[&str]); 7] = [
    (
        "truepeer ends at the start, before it says that it has loaded anything",
        &[
            "a_broken_line_of_an_allow_list_is_named",
            "a_dynamic_destination_needs_a_list",
            "a_foreign_address_ends_it_with_one_clear_line",
            "a_loop_over_an_address_of_an_interface_is_refused",
            "an_ipv4_client_is_refused_by_an_ipv6_backend",
            "an_option_that_is_wrong_is_named",
        ],
    ),
    (
        "it counts lines, and the second truepeer says as well that the first one has the tables",
        &["a_port_in_use_ends_it_with_one_clear_line"],
    ),
    (
        "other programs' command lines have no --splice",
        &[
            "a_drop_in_allows_what_that_program_allows_and_warns",
            "a_drop_in_ends_at_once",
            "cloudflares_options_work_by_name",
            "go_mmproxys_example_works_by_a_link",
            "mmproxys_options_work_by_a_link",
            "tproxy_by_iptables_as_go_mmproxy_documents_it",
            "under_the_drop_in_name_this_host_may_be_claimed",
        ],
    ),
    (
        "started by a program or from a file, not by the command line that gets the options",
        &[
            "a_listener_beside_a_passed_socket_is_refused_and_nothing_changes",
            "a_name_that_leads_elsewhere_now_is_resolved_again",
            "a_name_that_was_not_passed_is_refused",
            "a_passed_socket_serves_and_survives_truepeer",
            "a_socket_that_is_no_listener_is_named_and_not_taken",
            "passed_sockets_are_checked",
            "passed_sockets_are_known_by_name_also_after_an_upgrade",
        ],
    ),
    (
        "a reload that denies a client ends its sessions that have left, which tests/splice shows",
        &["lists_are_read_again_and_open_sessions_go_on"],
    ),
    (
        "sessions with --mark stay",
        &["a_backend_on_another_host_sees_the_client", "the_mark_is_on_upstream_packets"],
    ),
    (
        "without CAP_BPF sessions stay",
        &[
            "a_missing_capability_is_explained",
            "sending_needs_no_privilege",
            "two_truepeers_of_one_user_share_the_pipe_quota_and_lose_nothing",
            "without_the_privilege_a_held_port_is_named_and_counted",
        ],
    ),
];

/// truepeer's log is not among the bed's.
const LOG_ELSEWHERE: [&str; 2] =
    ["a_log_that_nobody_can_write_stops_nothing", "a_log_that_nobody_reads_stops_nothing"];

/// Here sessions last long enough to leave, so some must.
const LEAVE: [&str; 3] = [
    "an_idle_session_ends_in_time",
    "openssh_logs_the_client",
    "thousands_of_stuck_sessions_keep_a_limit_of_all_memory",
];

/// They take some seconds each, or the whole machine. Without `--splice` each `make test` runs them.
const LONG: [&str; 16] = [
    "a_backend_that_is_killed_and_started_again_gets_no_wrong_byte",
    "a_control_groups_memory_for_tcp_that_is_used_up_slows_senders_only",
    "a_process_that_stood_still_for_3_seconds_loses_nothing",
    "an_idle_session_holds_less_than_a_kibibyte",
    "calls_that_fail_for_want_of_memory_end_sessions_only",
    "eight_thousand_senders_that_say_nothing_hold_nobody_up",
    "haproxy_health_checks_reach_the_backend_as_the_sender",
    "haproxy_terminating_tls_shows_the_client_and_its_certificate",
    "haproxy_v1_shows_the_client",
    "haproxy_v2_with_unique_id_and_checksum_shows_the_client",
    "killed_10_times_it_serves_again_each_time",
    "postgresql_knows_the_client",
    "senders_that_stop_in_the_middle_hold_nobody_up",
    "ten_thousand_connections_in_one_moment_are_all_served",
    "thousands_of_stuck_sessions_keep_a_limit_of_all_memory",
    "twenty_thousand_connections_against_1024_descriptors_are_survived",
];

pub(crate) fn tests() -> Vec<Test> {
    let all: Vec<Test> = [
        senders::tests(),
        backends::tests(),
        refusals::tests(),
        delivery::tests(),
        destinations::tests(),
        chains::tests(),
        launch::tests(),
        operation::tests(),
        faults::tests(),
        crowds::tests(),
        kernel::tests(),
        limits::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let left_out = || LEFT_OUT.into_iter().flat_map(|(_, names)| names);
    for name in left_out().chain(&LOG_ELSEWHERE).chain(&LEAVE).chain(&LONG) {
        assert!(all.iter().any(|test| test.name() == *name), "no test is called {name}");
    }
    let is_left_out = |test: &Test| left_out().any(|name| *name == test.name());
    all.into_iter().filter(|test| !is_left_out(test)).map(spliced).collect()
}

fn spliced(test: Test) -> Test {
    let name = test.name().to_owned();
    let before = |bed: &Bed| {
        mount_bpf_in_place()?;
        bed.add_proxy_options(&AT_ONCE);
        Ok(())
    };
    let after = move |bed: &Bed| {
        let is_in = |names: &[&str]| names.contains(&name.as_str());
        let (loaded, left) =
            (bed.times_logged("sessions may leave"), bed.times_logged("has left user space"));
        ensure!(loaded > 0 || is_in(&LOG_ELSEWHERE), "no truepeer has loaded the programs");
        ensure!(left > 0 || !is_in(&LEAVE), "no session has left user space");
        Ok(())
    };
    let test = if LONG.contains(&test.name()) { test.long() } else { test };
    test.between(before, after).of_group("spliced")
}
