//! The library that the program's dynamic linker loads.

use std::process::ExitCode;

use anyhow::{Result, bail};
use truepeer_handover::{Sending, Settings};

use super::program::Program;

/// Becomes a program that accepts connections.
pub(super) fn run(_settings: &Settings, _program: &Program) -> Result<ExitCode> {
    bail!("this version was built without its library")
}

/// Becomes a program that makes connections.
pub(super) fn connect(_sending: &Sending, _program: &Program) -> Result<ExitCode> {
    bail!("this version was built without its library")
}
