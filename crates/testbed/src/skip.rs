//! A test's third outcome: it can't run on this machine.

/// Why a test can't run here. It is an ordinary error, so that `?` passes it on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Skip {
    /// What the machine lacks, and how to provide it.
    pub reason: String,
}

/// Ends the test: `return skip("no IPv6 on this machine")`.
pub fn skip<T>(reason: impl Into<String>) -> anyhow::Result<T> {
    Err(Skip { reason: reason.into() }.into())
}
