//! `truepeer vpp down`: ends what `up` started, and nothing else.

use std::fs;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::place::VppPlace;
use super::process::State;
use truepeer_config::spec::VppPlaceArgs;

/// How long VPP may take to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Ends VPP. If none runs, that is a success: the result is the same.
pub(super) fn down(args: &VppPlaceArgs, out: &mut dyn Write) -> Result<()> {
    let place = VppPlace::of(args.dir.as_deref())?;
    if !place.state().exists() {
        writeln!(out, "nothing to end: truepeer has no VPP in {}", place.dir().display())?;
        return Ok(());
    }
    let _lock = place.lock()?;
    let Some(state) = State::read(&place.state())? else {
        writeln!(out, "nothing to end: another truepeer vpp down was first")?;
        return Ok(());
    };
    match state.process()? {
        None => writeln!(out, "VPP (process {}) had ended already", state.pid)?,
        Some(process) => {
            process.signal(Signal::TERM)?;
            if !process.ends_within(STOP_TIMEOUT)? {
                writeln!(out, "VPP does not end by itself: killed")?;
                process.signal(Signal::KILL)?;
                ensure!(process.ends_within(STOP_TIMEOUT)?, "VPP (process {}) can't be ended", state.pid);
            }
            writeln!(out, "ended VPP (process {})", state.pid)?;
        }
    }
    clear(&place, &state.prefix);
    writeln!(out, "cleared {}", place.dir().display())?;
    Ok(())
}

/// Removes the files of VPP and of `up`.
pub(super) fn clear(place: &VppPlace, prefix: &str) {
    place.clear();
    clear_shared_memory(prefix);
}

/// Removes what a killed VPP leaves outside of its directory.
pub(super) fn clear_shared_memory(prefix: &str) {
    for name in ["global_vm", "vpe-api"] {
        let _ = fs::remove_file(format!("/dev/shm/{prefix}-{name}"));
    }
}
