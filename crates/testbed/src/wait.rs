//! Waiting for a state, never for a time.

use std::thread;
use std::time::{Duration, Instant};

/// How long a state may take to come about before the test fails. Long, because it costs nothing when all is
/// well, and the machine may be busy with other tests.
pub const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// How often a state is looked at.
const PERIOD: Duration = Duration::from_millis(2);

/// Looks until `holds` does, or fails after [`WAIT_LIMIT`] naming what was waited for.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    wait_until(WAIT_LIMIT, || Ok(holds())).map_err(|error| error.context(format!("waited for {what}")))
}

/// Like [`wait_for`], with the deadline as a parameter and a look that may itself fail (which ends the wait).
pub(crate) fn wait_until(
    limit: Duration,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        if holds()? {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "it had not come about after {limit:?}");
        thread::sleep(PERIOD);
    }
}
