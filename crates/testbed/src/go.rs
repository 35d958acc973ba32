//! Programs in Go that a test brings with it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::{Bed, Program};

/// On a machine that has compiled no Go yet, the compiler begins with the standard library: minutes if other
/// tests run. `scripts/test.sh` does that beforehand.
const BUILD_LIMIT: Duration = Duration::from_secs(240);

/// Compiles a static program (no cgo) and returns where it is.
pub fn build(bed: &Bed, name: &str, source: &str) -> anyhow::Result<PathBuf> {
    let (file, program) = (bed.write(&format!("{name}.go"), source)?, bed.dir().join(name));
    let env = ["CGO_ENABLED=0", "HOME=/tmp", "GOFLAGS=-mod=mod", "go", "build", "-o"];
    let compiler = Program::new("env").args(env).arg(&program).arg(file).start(bed)?;
    let status = compiler.wait_end_within(BUILD_LIMIT).context("go build")?;
    ensure!(status.success(), "go build: {}", compiler.log());
    Ok(program)
}
