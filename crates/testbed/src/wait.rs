//! Waits for a state, never for a time.

use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for a state before the test fails. It is long because waiting costs nothing if all is
/// well, and other tests may keep the machine busy.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A state is looked at again after the first of these, later after up to the second.
const PERIODS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Waits until `holds` returns true. Fails after [`WAIT_LIMIT`] with the state's name in the message.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    wait_until(WAIT_LIMIT, || Ok(holds())).map_err(|error| error.context(format!("waited for {what}")))
}

/// Like [`wait_for`], with the limit as a parameter, and a check that may fail itself (which ends the wait).
pub(crate) fn wait_until(
    limit: Duration,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        if holds()? {
            return Ok(());
        }
        let waited = begin.elapsed();
        anyhow::ensure!(waited < limit, "timed out after {limit:?}");
        // Many states are asked of other programs: the longer it takes, the less often, or the question
        // itself would keep the processor from what is waited for.
        thread::sleep((waited / 8).clamp(PERIODS[0], PERIODS[1]));
    }
}
