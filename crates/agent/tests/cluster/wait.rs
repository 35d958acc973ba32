//! Waiting for a state, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks again until there is an answer.
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    within(Duration::from_secs(20), what, ask)
}

/// How many times longer everything may take here, as on an emulated machine.
fn patience() -> u32 {
    let given = std::env::var("TRUEPEER_TEST_PATIENCE").ok();
    given.and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// For what itself takes long.
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit * patience();
    let mut complaint = String::new();
    while Instant::now() < end {
        match ask() {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(error) => complaint = format!(": {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("waited in vain for {what}{complaint}")
}
