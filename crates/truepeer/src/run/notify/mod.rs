//! The supervisor that the kernel asks.

use std::process::ExitCode;

use anyhow::{Result, bail};
use truepeer_handover::{Sending, Settings};

use super::program::Program;

/// Starts a program that accepts connections, under a supervisor; ends with its status.
pub(super) fn run(_settings: &Settings, program: &Program) -> Result<ExitCode> {
    bail!("{} needs the mechanism notify, which this version has not", program.file.display())
}

/// Starts a program that makes connections, under a supervisor; ends with its status.
pub(super) fn connect(_sending: &Sending, program: &Program) -> Result<ExitCode> {
    bail!("{} needs the mechanism notify, which this version has not", program.file.display())
}
