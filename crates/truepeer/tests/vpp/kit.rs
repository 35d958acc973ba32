//! Runs `truepeer vpp …` in tests.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Program};

pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) well: bool,
    pub(crate) out: String,
    /// Both streams.
    pub(crate) said: String,
}

impl Outcome {
    /// Expects success, and returns the output.
    pub(crate) fn well(self) -> Result<String> {
        ensure!(self.well, "failed: {}", self.said);
        Ok(self.out)
    }

    /// Expects failure, and returns the output.
    pub(crate) fn failed(self) -> Result<String> {
        ensure!(!self.well, "went well: {}", self.said);
        Ok(self.said)
    }
}

/// The private directory of a bed's tests, short enough for sockets.
pub(crate) fn place(bed: &Bed) -> PathBuf {
    bed.dir().join("v")
}

/// `truepeer vpp WORDS --dir …`.
pub(crate) fn vpp(bed: &Bed, words: &str) -> Program {
    let program = Program::new(TRUEPEER).arg("vpp").args(words.split_whitespace());
    program.arg("--dir").arg(place(bed))
}

/// Runs it to its end.
pub(crate) fn outcome(bed: &Bed, program: &Program) -> Result<Outcome> {
    let running = program.start(bed)?;
    let well = running.wait_end()?.success();
    Ok(Outcome { well, out: running.stdout(), said: running.log() })
}

/// Runs `truepeer vpp WORDS`.
pub(crate) fn run(bed: &Bed, words: &str) -> Result<Outcome> {
    outcome(bed, &vpp(bed, words))
}

/// Checks that nothing of it is left.
pub(crate) fn ensure_nothing_left(bed: &Bed) -> Result<()> {
    ensure!(!place(bed).exists(), "{} is still there", place(bed).display());
    Ok(())
}
