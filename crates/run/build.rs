//! Builds libtruepeer.so, which `truepeer run` embeds, by a separate cargo process: a library that other
//! programs load can't be a dependency. Without it the binary is still built, and `--via preload` reports
//! that. With `TRUEPEER_REQUIRE_LIBRARY=1`, which the project's own checks set, it is an error.
//!
//! The library has its own target directory and profile, shares the parent's lock file and job slots, and is
//! rebuilt only when its sources change.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const LIBRARY: &str = "libtruepeer_preload.so";
/// The crates that it consists of.
const SOURCES: [&str; 5] = ["preload", "handover", "policy", "proto", "sys"];

fn main() -> ExitCode {
    println!("cargo::rustc-check-cfg=cfg(no_library)");
    println!("cargo::rerun-if-env-changed=TRUEPEER_LIBRARY");
    println!("cargo::rerun-if-changed=build.rs");
    for name in SOURCES {
        println!("cargo::rerun-if-changed=../{name}/src");
        println!("cargo::rerun-if-changed=../{name}/Cargo.toml");
    }
    let library = match env::var_os("TRUEPEER_LIBRARY") {
        Some(given) => Ok(PathBuf::from(given)),
        None => build(),
    };
    let found = library
        .and_then(|library| fs::canonicalize(&library).map_err(|e| format!("{}: {e}", library.display())));
    let reason = match found {
        Ok(library) => {
            println!("cargo::rustc-env=TRUEPEER_LIBRARY_FILE={}", library.display());
            return ExitCode::SUCCESS;
        }
        Err(reason) => reason,
    };
    println!("cargo::rerun-if-env-changed=TRUEPEER_REQUIRE_LIBRARY");
    if env::var_os("TRUEPEER_REQUIRE_LIBRARY").is_some_and(|value| value == "1") {
        println!("cargo::error={reason}");
        return ExitCode::FAILURE;
    }
    println!("cargo::warning=built without `truepeer run --via preload`: {reason}");
    println!("cargo::rustc-cfg=no_library");
    ExitCode::SUCCESS
}

fn build() -> Result<PathBuf, String> {
    let target = env::var("TARGET").unwrap_or_default();
    if !target.ends_with("-linux-gnu") {
        return Err(format!(
            "can't build a library for glibc programs for {target}; give a built one with \
            TRUEPEER_LIBRARY=FILE"
        ));
    }
    let dir = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("library");
    let manifest = Path::new("..").join("preload").join("Cargo.toml");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "build",
        "--lib",
        "--profile",
        "preloaded",
        "--quiet",
        "--target",
        &target,
        "--manifest-path",
    ]);
    command.arg(manifest).arg("--target-dir").arg(&dir);
    // These variables concern the outer build: clippy in place of rustc, flags, coverage.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let is_outers =
            ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"];
        if is_outers.contains(&name.as_ref()) || name.ends_with("RUSTFLAGS") {
            command.env_remove(name.as_ref());
        }
    }
    // Except that paths of this machine must not be in the library either, if they are not in the binary.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let remaps: Vec<_> =
        flags.split('\x1f').filter(|flag| flag.starts_with("--remap-path-prefix=")).collect();
    if !remaps.is_empty() {
        command.env("CARGO_ENCODED_RUSTFLAGS", remaps.join("\x1f"));
    }
    let output = command.output().map_err(|error| format!("can't run cargo: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| line.contains("error")).unwrap_or("cargo failed");
        return Err(first.to_owned());
    }
    Ok(dir.join(target).join("preloaded").join(LIBRARY))
}
