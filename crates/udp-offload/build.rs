//! Compiles `c/udp_offload.bpf.c` with clang, as crates/bpf does. Without clang the crate is built without
//! it, and flows stay in user space.

#[path = "../bpf/build/clang.rs"]
mod clang;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=../bpf/c/lib");
    println!("cargo::rustc-check-cfg=cfg(no_programs)");
    let Err(reason) = clang::compile("udp_offload", &["../bpf/c"]) else { return ExitCode::SUCCESS };
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-env-changed=TRUEPEER_REQUIRE_CLANG");
    if env::var_os("TRUEPEER_REQUIRE_CLANG").is_some_and(|value| value == "1") {
        println!("cargo::error={reason}");
        return ExitCode::FAILURE;
    }
    // crates/bpf warns.
    println!("cargo::rustc-cfg=no_programs");
    ExitCode::SUCCESS
}
