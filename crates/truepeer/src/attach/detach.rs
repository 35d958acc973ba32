//! Detaching: waits for open connections, in one network namespace or in all.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use truepeer_bpf::{NewConnections, Place, detach_now, drain};

use super::{all, pins};
use crate::output::tell;
use crate::spec::PlaceArgs;

/// How often it checks whether the last connection has ended.
const INTERVAL: Duration = Duration::from_millis(200);

/// Stops checking new connections, and detaches when the last open one has ended.
pub(super) fn drain_and_detach(
    place: &Place,
    new: NewConnections,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let mut waiting = Waiting::begin(new)?;
    loop {
        let open = drain(place, new)?.total();
        if open == 0 {
            return Ok(detach_now(place, new)?);
        }
        waiting.wait(open, out)?;
    }
}

/// The same in every network namespace. One that can't be detached holds up no other.
pub(super) fn all(
    place: &PlaceArgs,
    now: bool,
    new: NewConnections,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let mut left = all::find(&pins(place.pins.as_deref(), false)?)?;
    let mut failed = 0;
    let mut waiting = Waiting::begin(new)?;
    while !left.is_empty() {
        let mut open = 0;
        let mut later = Vec::new();
        for namespace in left {
            let ended = match if now { Ok(0) } else { namespace.drain(new) } {
                Ok(0) => namespace.detach(new),
                Ok(count) => {
                    open += count;
                    later.push(namespace);
                    continue;
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) => writeln!(out, "detached: {}", namespace.name())?,
                Err(error) => {
                    tell!("error: {error:#}");
                    failed += 1;
                }
            }
        }
        left = later;
        if open > 0 {
            waiting.wait(open, out)?;
        }
    }
    ensure!(failed == 0, "not detached: {failed} network namespaces");
    Ok(())
}

/// For open connections, or for a signal.
struct Waiting {
    is_interrupted: Arc<AtomicBool>,
    new: NewConnections,
    told: usize,
}

impl Waiting {
    fn begin(new: NewConnections) -> Result<Self> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&is_interrupted)).context("can't wait for signals")?;
        }
        Ok(Self { is_interrupted, new, told: 0 })
    }

    fn wait(&mut self, open: usize, out: &mut (dyn Write + Send)) -> Result<()> {
        if self.is_interrupted.load(Ordering::Relaxed) {
            bail!(
                "interrupted: {open} open connections are still served; new ones {}; type detach again to resume waiting and \
                 then remove everything, detach --now to cut them off, attach to check new ones again",
                fate_of(self.new)
            );
        }
        if open != self.told {
            let fate = fate_of(self.new);
            writeln!(out, "waiting for {open} open connections (--now cuts them off); new ones {fate}")?;
            out.flush()?;
            self.told = open;
        }
        thread::sleep(INTERVAL);
        Ok(())
    }
}

/// Describes how new connections are treated while `detach` waits.
fn fate_of(new: NewConnections) -> &'static str {
    match new {
        NewConnections::Pass => "pass unchecked, with their header (fail-open; --refuse-new refuses them)",
        NewConnections::Refuse => "are refused if their sender must send a header",
    }
}
