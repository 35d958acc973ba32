//! Compiles `c/*/*.bpf.c` with clang; those in `c/test` in debug builds only, which tests use. Without clang
//! the crate is built without kernel programs, and `truepeer attach` reports that. With
//! `TRUEPEER_REQUIRE_CLANG=1`, which the project's own checks set, it is an error.

#[path = "build/clang.rs"]
mod clang;

use std::env;
use std::process::ExitCode;

const PROGRAMS: [&str; 11] = [
    "attach/tcp_ingress",
    "attach/tcp_egress",
    "attach/peer_name",
    "attach/tcp_end",
    "attach/udp_ingress",
    "attach/udp_egress",
    "attach/udp_send",
    "attach/backstop",
    "attach/witness",
    "offload/splice_in",
    "offload/splice_out",
];

/// Programs that only tests run. A release has none of them.
const TEST_PROGRAMS: [&str; 6] = [
    "test/bans_test",
    "test/header_check",
    "test/tcp_ingress_test",
    "test/tcp_egress_test",
    "test/tcp_end_test",
    "test/other_programs",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rustc-check-cfg=cfg(no_programs)");
    println!("cargo::rustc-check-cfg=cfg(test_programs)");
    let for_tests = env::var_os("PROFILE").is_some_and(|profile| profile == "debug");
    if for_tests {
        println!("cargo::rustc-cfg=test_programs");
    }
    let Err(reason) = compile_all(for_tests) else { return ExitCode::SUCCESS };
    // Only then: with a variable, a shell that has another PATH would build everything above this crate
    // again.
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-env-changed=TRUEPEER_REQUIRE_CLANG");
    if env::var_os("TRUEPEER_REQUIRE_CLANG").is_some_and(|value| value == "1") {
        println!("cargo::error={reason}");
        return ExitCode::FAILURE;
    }
    println!("cargo::warning=built without `truepeer attach`: {reason}");
    println!("cargo::rustc-cfg=no_programs");
    ExitCode::SUCCESS
}

fn compile_all(for_tests: bool) -> Result<(), String> {
    let of_tests = TEST_PROGRAMS.iter().filter(|_| for_tests);
    PROGRAMS.iter().chain(of_tests).try_for_each(|program| clang::compile(program, &[]))
}
