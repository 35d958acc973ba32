//! Compiles `c/*/*.bpf.c` with clang; those in `c/test` in debug builds only, which tests use. Without clang
//! the crate is built without kernel programs, and `truepeer attach` reports that. With
//! `TRUEPEER_REQUIRE_CLANG=1`, which the project's own checks set, it is an error.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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
    PROGRAMS.iter().chain(of_tests).try_for_each(|program| compile(program))
}

fn compile(program: &str) -> Result<(), String> {
    let source = Path::new("c").join(program).with_extension("bpf.c");
    let name = Path::new(program).file_name().unwrap_or_default();
    let object = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name).with_extension("o");
    let output = Command::new("clang")
        // v3 has compare-and-exchange; it needs Linux 5.12.
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Wextra", "-Werror"])
        // BTF names the source files: without this directory, so that two builds make the same bytes.
        .args(["-fdebug-compilation-dir=.", "-Ic", "-idirafter"])
        .arg(include_dir())
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(|error| format!("can't run clang ({error}): apt-get install clang libbpf-dev"))?;
    if output.status.success() {
        strip(&object);
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let hint = if said.contains("bpf_helpers.h") { ": apt-get install libbpf-dev" } else { "" };
    let first = said.lines().find(|line| line.contains("error")).unwrap_or_default();
    Err(format!("clang refuses {}{hint} ({first})", source.display()))
}

/// The directory of this architecture's kernel headers (`asm/types.h`) on Debian and Ubuntu: its own, or the
/// cross compiler's.
fn include_dir() -> PathBuf {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let places = [format!("/usr/include/{arch}-linux-gnu"), format!("/usr/{arch}-linux-gnu/include")];
    let found = places.into_iter().find(|place| Path::new(place).join("asm").is_dir());
    found.unwrap_or_else(|| "/usr/include".to_owned()).into()
}

/// Removes debugging information, most of an object. BTF, which the kernel reads, stays. This only saves
/// space.
fn strip(object: &Path) {
    let _ = Command::new("llvm-strip").arg("-g").arg(object).status();
}
