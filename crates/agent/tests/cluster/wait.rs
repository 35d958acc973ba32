//! Waiting for a state, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks again until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(20);
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
