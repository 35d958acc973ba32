//! The third outcome of a test: this machine can't tell.

/// Why a test could not be run here. An error like any other on its way out of the test, so that `?` carries it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Skip {
    /// What the machine lacks, and what would mend it.
    pub reason: String,
}

/// Leaves the test: `return skip("no IPv6 on this machine")`.
pub fn skip<T>(reason: impl Into<String>) -> anyhow::Result<T> {
    Err(Skip { reason: reason.into() }.into())
}
