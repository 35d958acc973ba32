//! `truepeer vpp status`: shows VPP's state by VPP's own commands.

use std::io::Write;

use anyhow::{Context, Result, bail};

use super::control::Control;
use super::place::VppPlace;
use super::process::{Process, State};
use truepeer_config::spec::VppPlaceArgs;

/// The commands.
const QUESTIONS: [&str; 3] = ["show interface address", "show app ns", "show session verbose"];

/// Writes the state.
///
/// # Errors
/// VPP is not running, or its layout is incomplete.
pub(super) fn status(args: &VppPlaceArgs, out: &mut dyn Write) -> Result<()> {
    let (place, state, _) = running(args)?;
    let control = Control { vppctl: state.vppctl.clone(), socket: place.cli_socket() };
    let version = control.ask("show version").with_context(|| format!("process {}", state.pid))?;
    writeln!(out, "{} (process {}), in {}", version.trim(), state.pid, place.dir().display())?;
    writeln!(out, "layout {}", state.layout)?;
    for question in QUESTIONS {
        writeln!(out, "{}", control.command(question))?;
        for line in control.ask(question)?.lines().filter(|line| !line.trim().is_empty()) {
            writeln!(out, "  {}", line.trim_end())?;
        }
    }
    if !state.complete {
        bail!(
            "its layout is incomplete because truepeer vpp up was interrupted; type truepeer vpp down, then up again"
        );
    }
    Ok(())
}

/// Finds the VPP that runs there.
pub(super) fn running(args: &VppPlaceArgs) -> Result<(VppPlace, State, Process)> {
    let place = VppPlace::of(args.dir.as_deref())?;
    let Some(state) = State::read(&place.state())? else {
        bail!("no VPP started by truepeer runs in {}; truepeer vpp up starts one", place.dir().display());
    };
    let Some(process) = state.process()? else {
        bail!("VPP (process {}) has ended unexpectedly; truepeer vpp up starts another one", state.pid);
    };
    Ok((place, state, process))
}
