//! The plan of confinement.

use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::spec::{ConfineMode, ConfineSpec, UserName, text};

/// What the process gives up after its start, and the user that it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfineConfig {
    pub mode: ConfineMode,
    /// `None`: a process that root has started becomes a user of its own.
    #[serde(with = "text::maybe")]
    pub user: Option<UserName>,
}

impl ConfineConfig {
    pub fn of(spec: &ConfineSpec, usual: ConfineMode) -> Result<Self, Problem> {
        // `--user` implies confinement.
        let usual = if spec.user.is_some() { ConfineMode::Auto } else { usual };
        let mode = spec.confine.unwrap_or(usual);
        if mode == ConfineMode::Off && spec.user.is_some() {
            return Err(Problem::at("user", "expected no --confine off with it"));
        }
        Ok(Self { mode, user: spec.user.clone() })
    }
}
