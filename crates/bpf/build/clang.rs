//! Compiles one of the kernel's programs with clang. Other crates' build scripts use this file, too.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `c/PROGRAM.bpf.c` to an object in OUT_DIR. `includes`: further directories of headers.
pub(crate) fn compile(program: &str, includes: &[&str]) -> Result<(), String> {
    let source = Path::new("c").join(program).with_extension("bpf.c");
    let name = Path::new(program).file_name().unwrap_or_default();
    let object = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name).with_extension("o");
    let output = Command::new("clang")
        // v3 has compare-and-exchange; it needs Linux 5.12.
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Wextra", "-Werror"])
        // BTF names the source files: without this directory, so that two builds make the same bytes.
        .args(["-fdebug-compilation-dir=.", "-Ic"])
        .args(includes.iter().map(|directory| format!("-I{directory}")))
        .arg("-idirafter")
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
